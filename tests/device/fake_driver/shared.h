// Shared memory files (memfd) by which the fake driver shares memory and events between processes. One process opens
// the file of another through /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "driver_state.h"

namespace tutti::cuda::fake {

// Makes the state of an event in a file that other processes can open. Sets `fd` to that file. Returns null if the
// operating system cannot provide it.
std::shared_ptr<EventState> make_shared_state(int& fd);

// Opens the file that has the descriptor `fd` in the process `owner`. Returns -1 if the process has exited, or if that
// descriptor is no longer the file with this inode. The process must belong to the same user.
int open_file_of(pid_t owner, int fd, std::uint64_t inode);
std::uint64_t inode_of(int fd);

}  // namespace tutti::cuda::fake

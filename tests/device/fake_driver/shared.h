// Shared memory files (memfd) by which the fake driver shares memory between processes. One process opens
// the file of another through /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace tutti::cuda::fake {

// Opens the file that has the descriptor `fd` in the process `owner`. Returns -1 if the process has exited, or if that
// descriptor is no longer the file with this inode. The process must belong to the same user.
int open_file_of(pid_t owner, int fd, std::uint64_t inode);
std::uint64_t inode_of(int fd);

}  // namespace tutti::cuda::fake

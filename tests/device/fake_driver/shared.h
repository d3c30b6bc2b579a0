// Files of one process opened by another: what carries memory and events between processes here.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "world.h"

namespace tutti::cuda::fake {

// State of an event in memory that other processes can open; `fd` names it. Null: the system refuses.
std::shared_ptr<EventState> make_shared_state(int& fd);

// The file that `fd` is in process `owner`, if it still is the one with that inode; else -1. The process must belong to
// the same user.
int open_file_of(pid_t owner, int fd, std::uint64_t inode);
std::uint64_t inode_of(int fd);

}  // namespace tutti::cuda::fake

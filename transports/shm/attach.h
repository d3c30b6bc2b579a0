// Cross-memory attach: another process's memory, read and written by system calls (process_vm_readv,
// process_vm_writev). The kernel lets a process do so where it might also debug the other one: the same user, and
// nothing in between that forbids it (Yama's ptrace_scope, a container's system call filter). Whether it does is tried,
// not guessed.
//
// A process number may be given to another process once the first has ended; the caller looks whether it lives before
// its calls (SegmentExchange::peer_gone); numbers come round only after all others, so no call meets a stranger.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "transports/shm/segment.h"
#include "transports/transport.h"

namespace tutti {

// Whether this process can attach to that one, the owner of the segment whose header is given. It says where the owner
// has mapped the segment: what stands there must be this header.
bool can_attach(pid_t process, const SegmentHeader& header);

// Thread-safe. `address` as the other process sees it.
MemoryAccess read_process(pid_t process, std::uint64_t address, std::byte* to, std::size_t bytes);
MemoryAccess write_process(pid_t process, std::uint64_t address, const std::byte* from, std::size_t bytes);

}  // namespace tutti

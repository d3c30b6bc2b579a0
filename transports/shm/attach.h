// Cross-memory attach: reading and writing the memory of another process by system calls (process_vm_readv,
// process_vm_writev). The kernel permits them if this process could also debug the other one. Normally that is the case
// if both processes have the same user, and neither Yama's ptrace_scope nor a system call filter of a container forbids
// it. The only reliable way to find out is to try, see can_attach().
//
// When a process has exited, the kernel may give its process number to another process. The caller therefore checks
// that the process is alive before each call of read_process() and write_process() (SegmentExchange::peer_gone).
// Between that check and the call the number is practically never given to another process, because the kernel reuses a
// number only after all others. can_attach() needs no such check, because it compares what it reads with the expected
// header.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "transports/shm/segment.h"
#include "transports/transport.h"

namespace tutti {

// Whether this process can read and write the memory of `process`, and `process` is the owner of the segment with this
// `header`. `header.address` is the address at which the owner has mapped the segment. The test reads that address in
// the other process and expects the same header there. It also tests whether the system call for writing is permitted.
// The result is false if the header has no nonce.
bool can_attach(pid_t process, const SegmentHeader& header);

// read_process() copies `bytes` bytes from `address` to `to`; write_process() copies them from `from` to `address`.
// `address` is an address in `process`. Thread-safe.
MemoryAccess read_process(pid_t process, std::uint64_t address, std::byte* to, std::size_t bytes);
MemoryAccess write_process(pid_t process, std::uint64_t address, const std::byte* from, std::size_t bytes);

}  // namespace tutti

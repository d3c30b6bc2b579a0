#include "transports/shm/attach.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace tutti {
namespace {

using Transfer = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

// Whether this process can read the byte at `address` in `process`.
bool is_readable(pid_t process, std::uint64_t address) {
  std::byte byte{};
  const iovec local{.iov_base = &byte, .iov_len = 1};
  const iovec remote{.iov_base = reinterpret_cast<void*>(address), .iov_len = 1};  // NOLINT: in another process
  return process_vm_readv(process, &local, 1, &remote, 1, 0) == 1;
}

// Determines why the last system call has moved no byte. The kernel reports EFAULT both for memory of this process
// and for memory of the other one. So the function tests whether the source of the first byte that was not moved is
// readable: if it is, the destination is at fault.
MemoryAccess refusal(Transfer transfer, pid_t process, std::uint64_t address, const std::byte* here) {
  if (errno == ESRCH) return MemoryAccess::kGone;
  if (errno != EFAULT) return MemoryAccess::kForbidden;
  const bool own = transfer == &process_vm_readv ? is_readable(process, address)
                                                 : !is_readable(getpid(), reinterpret_cast<std::uintptr_t>(here));
  return own ? MemoryAccess::kOwnRefused : MemoryAccess::kRefused;
}

// Repeats the system call, because the kernel may move fewer bytes than requested.
MemoryAccess move(Transfer transfer, pid_t process, std::uint64_t address, std::byte* here, std::size_t bytes) {
  while (bytes > 0) {
    const iovec local{.iov_base = here, .iov_len = bytes};
    const iovec remote{.iov_base = reinterpret_cast<void*>(address), .iov_len = bytes};  // NOLINT: in another process
    const ssize_t moved = transfer(process, &local, 1, &remote, 1, 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return refusal(transfer, process, address, here);
    if (moved == 0) return MemoryAccess::kRefused;
    here += moved;
    address += static_cast<std::uint64_t>(moved);
    bytes -= static_cast<std::size_t>(moved);
  }
  return MemoryAccess::kDone;
}

}  // namespace

bool can_attach(pid_t process, const SegmentHeader& header) {
  SegmentHeader there{};
  if (process <= 0 || header.nonce == there.nonce) return false;
  const MemoryAccess access = read_process(process, header.address, reinterpret_cast<std::byte*>(&there), sizeof there);
  if (access != MemoryAccess::kDone || there != header) return false;
  // A call that writes nothing: a system call filter may forbid only writing.
  return process_vm_writev(process, nullptr, 0, nullptr, 0, 0) == 0;
}

MemoryAccess read_process(pid_t process, std::uint64_t address, std::byte* to, std::size_t bytes) {
  return move(&process_vm_readv, process, address, to, bytes);
}

MemoryAccess write_process(pid_t process, std::uint64_t address, const std::byte* from, std::size_t bytes) {
  return move(&process_vm_writev, process, address, const_cast<std::byte*>(from), bytes);  // NOLINT: only read
}

}  // namespace tutti

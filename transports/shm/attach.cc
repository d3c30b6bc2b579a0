#include "transports/shm/attach.h"

#include <sys/uio.h>

#include <cerrno>
#include <cstring>

namespace tutti {
namespace {

using Transfer = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

// The kernel may move less than was asked for.
MemoryAccess move(Transfer transfer, pid_t process, std::uint64_t address, std::byte* here, std::size_t bytes) {
  while (bytes > 0) {
    const iovec local{.iov_base = here, .iov_len = bytes};
    const iovec remote{.iov_base = reinterpret_cast<void*>(address), .iov_len = bytes};  // NOLINT: another process's
    const ssize_t moved = transfer(process, &local, 1, &remote, 1, 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno == ESRCH ? MemoryAccess::kGone : MemoryAccess::kRefused;
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
  return access == MemoryAccess::kDone && std::memcmp(&there, &header, sizeof there) == 0;
}

MemoryAccess read_process(pid_t process, std::uint64_t address, std::byte* to, std::size_t bytes) {
  return move(&process_vm_readv, process, address, to, bytes);
}

MemoryAccess write_process(pid_t process, std::uint64_t address, const std::byte* from, std::size_t bytes) {
  return move(&process_vm_writev, process, address, const_cast<std::byte*>(from), bytes);  // NOLINT: only read
}

}  // namespace tutti

#include "transports/shm/mapping.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/system/system_calls.h"
#include "transports/shm/owned_descriptor.h"

namespace tutti {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Mappings of a peer's memory of at least this size get a second view of their first page.
//
// A rank reads the first page of every peer's segment, which contains the header, the status board and the doorbell.
// With hundreds of ranks, segments are so large that each of these pages would need page tables of its own: 8 KiB for
// each pair of ranks, which is 8 GiB for 1,024 ranks. The kernel places the small second views next to each other, so
// that up to 512 of these pages share one page table. Segments reach this size with about 127 ranks, if TUTTI_SLOTS and
// TUTTI_SLOT_BYTES have their default values.
constexpr std::size_t kLarge = std::size_t{512} << 20;

Error system_error(const char* call, std::size_t bytes, const std::string& advice) {
  return {ErrorCode::kSystem, ErrorScope::kCall, -1,
          fmt::format("{} for {} bytes of shared memory failed: {}; {}", call, bytes, std::strerror(errno), advice)};
}

// Returns advice for a failure of mmap(). The kernel reports the same error (ENOMEM) for two different limits, so the
// text contains the number of mappings, from which the user can see whether the limit of mappings was reached.
std::string more_mappings() {
  const int error = errno;  // restored below, because the caller is about to report it
  std::ifstream maps("/proc/self/maps");
  std::ifstream limit("/proc/sys/vm/max_map_count");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  std::size_t most = 0;
  const bool known = static_cast<bool>(limit >> most);
  errno = error;
  return fmt::format("raise vm.max_map_count{} or the address-space limit (ulimit -v)",
                     known ? fmt::format(" (this process has {} mappings of at most {})", count, most) : "");
}

// Whether a system call failed because it is forbidden or not implemented. In that case freeing memory or raising a
// limit does not help.
bool is_forbidden(int error) { return error == EPERM || error == EACCES || error == ENOSYS; }

constexpr const char* kFileName = "tutti";

const char* advice_for_memfd(int error) {
  if (is_forbidden(error)) return "a sandbox (seccomp) forbids it, or this kernel is older than 3.17";
  if (error == EMFILE) return "raise the limit of open files (ulimit -n)";
  if (error == ENFILE) return "raise the machine's limit of open files (sysctl fs.file-max)";
  return "is memory left?";
}

Result<int> create_sealed_memfd(std::size_t bytes) {
  if (Mapping::refusal()) {
    Error error = *Mapping::refusal();
    error.scope = ErrorScope::kCall;  // a communicator that works without shared memory can continue
    return error;
  }
  OwnedDescriptor fd(create_memfd(kFileName));
  if (fd.get() < 0) return system_error("memfd_create", bytes, advice_for_memfd(errno));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error("ftruncate", bytes, "ask for less memory");
  }
  if (!seal_size(fd.get())) return system_error("sealing a memfd", bytes, "is this kernel older than 3.17?");
  return fd.release();
}

// Maps memory for reading and writing; null if that fails. If the mapping is at least 2 MiB long, its address is a
// multiple of 2 MiB, so that the kernel can use huge pages. `fd`: the file to map, or -1 for anonymous memory.
std::byte* map_aligned(int fd, std::size_t bytes) {
  const int flags = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
  if (bytes < kHugePage) {
    void* plain = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    return plain == MAP_FAILED ? nullptr : static_cast<std::byte*>(plain);
  }
  void* reserved = mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(reserved);
  const std::size_t skip = (kHugePage - reinterpret_cast<std::uintptr_t>(start) % kHugePage) % kHugePage;
  const std::size_t length = (bytes + page_size() - 1) / page_size() * page_size();
  void* mapped = mmap(start + skip, length, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
  if (skip > 0) munmap(start, skip);
  munmap(start + skip + length, bytes + kHugePage - skip - length);
  if (mapped == MAP_FAILED) {
    munmap(start + skip, length);
    return nullptr;
  }
  return static_cast<std::byte*>(mapped);
}

// Whether the kernel's list of this process's mappings shows all of [data, data+bytes) as private, readable and
// writable memory without a file. Any other memory must not be remapped, because that would separate it from the file
// or the processes with which it is shared.
bool is_private_memory(const void* data, std::size_t bytes) {
  auto next = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t end = next + bytes;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; next < end && std::getline(maps, line);) {  // the lines are in ascending order of addresses
    std::uintptr_t from = 0;
    std::uintptr_t to = 0;
    char kind[5] = {};
    unsigned long inode = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %4s %*s %*s %lu", &from, &to, kind, &inode) != 4) return false;
    if (to <= next) continue;
    if (from > next || kind[0] != 'r' || kind[1] != 'w' || kind[3] != 'p' || inode != 0) return false;
    next = to;
  }
  return next >= end;
}

}  // namespace

std::size_t page_size() {
  static const auto kBytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return kBytes;
}

const std::optional<Error>& Mapping::refusal() {
  static const std::optional<Error> kRefusal = []() -> std::optional<Error> {
    const OwnedDescriptor fd(create_memfd(kFileName));
    if (fd.get() >= 0 || !is_forbidden(errno)) return std::nullopt;
    return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1,
                 fmt::format("memfd_create failed: {}; {}", std::strerror(errno), advice_for_memfd(errno))};
  }();
  return kRefusal;
}

Result<std::shared_ptr<Mapping>> Mapping::create(std::size_t bytes, bool huge) {
  TUTTI_ASSERT(bytes > 0);
  OwnedDescriptor fd;
  if (!refusal()) {
    auto memfd = create_sealed_memfd(bytes);
    if (!memfd) return memfd.error();
    fd.reset(*memfd);
  }
  std::byte* data = map_aligned(fd.get(), bytes);
  if (data == nullptr) return system_error("mmap", bytes, "ask for less, or " + more_mappings());
  if (huge) madvise(data, bytes, MADV_HUGEPAGE);  // some kernels refuse; small pages are used then
  return std::shared_ptr<Mapping>(
      new Mapping(fd.release(), data, bytes, Origin::kMapped));  // the constructor is private
}

Result<std::shared_ptr<Mapping>> Mapping::map(int received_fd) {
  const OwnedDescriptor fd(received_fd);
  return map_open(fd.get());
}

Result<std::shared_ptr<Mapping>> Mapping::map_again(const Mapping& mapping) { return map_open(mapping.fd()); }

Result<std::shared_ptr<Mapping>> Mapping::map_open(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return system_error("fstat", 0, "the peer sent an invalid descriptor");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  const int seals = fcntl(fd, F_GET_SEALS);
  if (bytes == 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, -1,
                 "a peer shared a file that is not a sealed memfd: does it run another version of Tutti?"};
  }
  std::byte* data = map_aligned(fd, bytes);
  if (data == nullptr) return system_error("mmap", bytes, more_mappings());
  // The Mapping keeps no descriptor (-1), because mapped memory remains valid after the descriptor is closed.
  std::shared_ptr<Mapping> mapping(new Mapping(-1, data, bytes, Origin::kMapped));
  if (bytes >= kLarge) {
    void* const page = mmap(nullptr, page_size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) mapping->first_page_ = static_cast<std::byte*>(page);  // otherwise data() is used
  }
  return mapping;
}

Result<std::shared_ptr<Mapping>> Mapping::adopt(void* data, std::size_t bytes) {
  TUTTI_ASSERT(reinterpret_cast<std::uintptr_t>(data) % page_size() == 0 && bytes % page_size() == 0 && bytes > 0);
  if (!is_private_memory(data, bytes)) {
    return Error{
        ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
        fmt::format("{} bytes at {} are not private, writable memory all through: memory of files, shared memory and "
                    "memory that is registered already cannot be registered",
                    bytes, data)};
  }
  auto memfd = create_sealed_memfd(bytes);
  if (!memfd) return memfd.error();
  OwnedDescriptor fd(*memfd);
  // Copies the contents by write(), because write() loads missing pages, and reports invalid memory as EFAULT instead
  // of a signal.
  for (std::size_t done = 0; done < bytes;) {
    const auto written = pwrite(fd.get(), static_cast<std::byte*>(data) + done, bytes - done, static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0)
      return system_error("copying to shared pages", bytes, "is all of the range mapped, and memory left?");
    done += static_cast<std::size_t>(written);
  }
  if (mmap(data, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(), 0) == MAP_FAILED) {
    return system_error("mmap over the registered range", bytes, "the memory is as before; " + more_mappings());
  }
  return std::shared_ptr<Mapping>(new Mapping(fd.release(), static_cast<std::byte*>(data), bytes, Origin::kAdopted));
}

std::shared_ptr<Mapping> Mapping::lend(int fd, std::byte* data, std::size_t bytes) {
  OwnedDescriptor owned(fd);  // closed if there is no memory for the object
  std::shared_ptr<Mapping> mapping(new Mapping(-1, data, bytes, Origin::kLent));
  mapping->fd_ = owned.release();
  return mapping;
}

void Mapping::retire() {
  if (std::exchange(retired_, true) || origin_ == Origin::kLent) return;
  if (origin_ == Origin::kMapped) {
    // Peers may keep the memory mapped for a while, but its pages can be freed immediately.
    if (fd_ >= 0) fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes_));
    return;
  }
  // Copies the contents to private pages, which then replace the shared pages in one step.
  void* copy = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return;  // the pages stay shared, with the same contents, so no data is lost
  std::memcpy(copy, data_, bytes_);
  if (mremap(copy, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, data_) == MAP_FAILED) munmap(copy, bytes_);
}

Mapping::~Mapping() {
  if (origin_ == Origin::kAdopted) retire();
  if (first_page_ != nullptr) munmap(first_page_, page_size());
  if (origin_ == Origin::kMapped) munmap(data_, (bytes_ + page_size() - 1) / page_size() * page_size());
  if (fd_ >= 0) close(fd_);
}

}  // namespace tutti

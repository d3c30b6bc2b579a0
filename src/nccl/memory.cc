#include "nccl/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "cuda/driver.h"
#include "cuda/pointer.h"
#include "cuda/resources.h"
#include "cuda/virtual_memory.h"
#include "nccl/api.h"

namespace tutti::nccl {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// What ncclMemAlloc() gave: ncclMemFree() gets an address and nothing else, so the table is the process's.
struct Allocation {
  std::size_t bytes = 0;                          // of host memory, as mapped
  std::optional<cuda::ShareableMemory> device{};  // in place of it
};
struct Table {
  std::mutex mutex;
  std::map<void*, Allocation> allocations;
};

Table& table() {
  static auto& the = *new Table;  // never destroyed: what a program did not free ends with the process
  return the;
}

bool has_context(const cuda::Driver& driver) {
  cuda::CUcontext context = nullptr;
  return driver.api().ctx_get_current(&context) == cuda::CUresult::kSuccess && context != nullptr;
}

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

ncclResult_t allocate_on_host(void** place, std::size_t bytes) {
  const std::size_t mapped = round_up(bytes, bytes >= kHugePage ? kHugePage : static_cast<std::size_t>(getpagesize()));
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return fail(ncclSystemError,
                fmt::format("ncclMemAlloc: the system does not give {} bytes ({})", bytes, std::strerror(errno)));
  }
  const std::scoped_lock lock(table().mutex);
  table().allocations[data].bytes = mapped;
  *place = data;
  return ncclSuccess;
}

ncclResult_t allocate_on_device(const cuda::Driver& driver, void** place, std::size_t bytes) {
  // A driver without virtual memory gives plain memory, which is aligned less than a window has to be.
  auto memory = cuda::ShareableMemory::allocate(driver, bytes + NCCL_WIN_REQUIRED_ALIGNMENT);
  if (!memory) return fail(memory.error());
  void* data = reinterpret_cast<void*>(round_up(memory->address(), NCCL_WIN_REQUIRED_ALIGNMENT));
  const std::scoped_lock lock(table().mutex);
  table().allocations[data].device.emplace(*std::move(memory));
  *place = data;
  return ncclSuccess;
}

// Whether the piece is inside host memory of ours.
bool is_own_host_memory(const void* data, std::size_t bytes) {
  const std::scoped_lock lock(table().mutex);
  auto after = table().allocations.upper_bound(const_cast<void*>(data));
  if (after == table().allocations.begin()) return false;
  const auto& [start, allocation] = *--after;
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(data) - static_cast<std::byte*>(start));
  return offset <= allocation.bytes && bytes <= allocation.bytes - offset;
}

}  // namespace

bool is_host_memory(const void* data) {
  const cuda::Driver* driver = cuda::Driver::loaded();
  if (driver == nullptr) return true;
  const auto info = cuda::classify(*driver, data);
  return info.ok() && (info->kind == cuda::MemoryKind::kHost || info->kind == cuda::MemoryKind::kPinned);
}

Status write_memory(void* to, const void* from, std::size_t bytes) {
  if (is_host_memory(to)) {
    std::memcpy(to, from, bytes);
    return {};
  }
  const cuda::Driver& driver = *cuda::Driver::loaded();
  auto stream = cuda::Stream::create(driver);
  if (!stream) return stream.error();
  TUTTI_TRY(driver.check(
      driver.api().memcpy_htod_async(reinterpret_cast<cuda::CUdeviceptr>(to), from, bytes, stream->handle()),
      "copying into a window"));
  return stream->synchronize();
}

Result<Memory> register_if_useful(Communicator& communicator, void* data, std::size_t bytes) {
  if (!is_host_memory(data)) {
    if (!communicator.runs_on_devices()) return Memory();
    return communicator.register_memory(data, bytes);
  }
  const auto page = static_cast<std::size_t>(getpagesize());
  const bool whole = reinterpret_cast<std::uintptr_t>(data) % page == 0;
  if (!whole || !is_own_host_memory(data, round_up(bytes, page))) return Memory();
  auto registered = communicator.register_memory(data, round_up(bytes, page));
  // Registered with another communicator already: it is used as it is.
  if (!registered && registered.error().code == ErrorCode::kInvalidArgument) return Memory();
  return registered;
}

TUTTI_NCCL(ncclResult_t, MemAlloc, void** ptr, size_t size) {
  return guarded([&] {
    if (ptr == nullptr) return fail(ncclInvalidArgument, "ncclMemAlloc: the place for the address is null");
    *ptr = nullptr;
    if (size == 0) return ncclSuccess;
    const cuda::Driver* driver = cuda::Driver::loaded();
    return driver != nullptr && has_context(*driver) ? allocate_on_device(*driver, ptr, size)
                                                     : allocate_on_host(ptr, size);
  });
}

TUTTI_NCCL(ncclResult_t, MemFree, void* ptr) {
  return guarded([&] {
    if (ptr == nullptr) return ncclSuccess;
    std::map<void*, Allocation>::node_type freed;
    {
      const std::scoped_lock lock(table().mutex);
      freed = table().allocations.extract(ptr);
    }
    if (freed.empty()) {
      return fail(ncclInvalidArgument,
                  fmt::format("ncclMemFree: {} is none of ncclMemAlloc()'s, or freed already", ptr));
    }
    if (!freed.mapped().device) munmap(ptr, freed.mapped().bytes);
    return ncclSuccess;
  });
}

}  // namespace tutti::nccl

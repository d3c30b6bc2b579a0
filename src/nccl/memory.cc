#include "nccl/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "cuda/driver.h"
#include "cuda/pointer.h"
#include "cuda/resources.h"
#include "cuda/virtual_memory.h"
#include "nccl/api.h"
#include "nccl/streams.h"

namespace tutti::nccl {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

// An allocation of ncclMemAlloc(): host memory from mmap, or device memory. The destructor frees it.
class Block {
 public:
  Block(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  Block(cuda::ShareableMemory device, std::byte* data, std::size_t bytes)
      : data_(data), bytes_(bytes), device_(std::move(device)) {}
  ~Block() {
    if (!device_) munmap(data_, bytes_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  std::byte* data() const { return data_; }
  bool holds(const void* data, std::size_t bytes) const {
    const auto offset = reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(data_);
    return offset <= bytes_ && bytes <= bytes_ - offset;
  }

 private:
  std::byte* const data_;
  const std::size_t bytes_;
  const std::optional<cuda::ShareableMemory> device_;
};

namespace {

// The allocations of ncclMemAlloc() that ncclMemFree() has not freed yet, by address. The table is global, because
// ncclMemFree() receives an address and nothing else.
struct Table {
  std::mutex mutex;
  std::map<const void*, std::shared_ptr<Block>> blocks;  // shared with Registration::block
};

Table& table() {
  // Never destroyed: the system frees memory that the program did not free when the process exits.
  static auto& the = *new Table;
  return the;
}

// Adds the allocation to the table and stores its address in *place.
ncclResult_t add_block(std::shared_ptr<Block> block, void** place) {
  *place = block->data();
  const std::scoped_lock lock(table().mutex);
  table().blocks[*place] = std::move(block);
  return ncclSuccess;
}

// The allocation of ncclMemAlloc() that contains the whole range of `bytes` bytes at `data`, or null.
std::shared_ptr<Block> block_of(const void* data, std::size_t bytes) {
  const std::scoped_lock lock(table().mutex);
  auto after = table().blocks.upper_bound(data);
  if (after == table().blocks.begin()) return nullptr;
  const auto& [start, block] = *--after;
  return block->holds(data, bytes) ? block : nullptr;
}

ncclResult_t allocate_on_host(void** place, std::size_t bytes) {
  const std::size_t mapped = round_up(bytes, bytes >= kHugePage ? kHugePage : static_cast<std::size_t>(getpagesize()));
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return fail(ncclSystemError,
                fmt::format("ncclMemAlloc: cannot allocate {} bytes ({})", bytes, std::strerror(errno)));
  }
  return add_block(std::make_shared<Block>(static_cast<std::byte*>(data), mapped), place);
}

ncclResult_t allocate_on_device(const cuda::Driver& driver, void** place, std::size_t bytes) {
  // A driver without virtual memory management returns plain memory, with a smaller alignment than a window
  // requires. Therefore more is allocated, and the start is rounded up.
  const std::size_t asked = bytes + NCCL_WIN_REQUIRED_ALIGNMENT;
  auto memory = cuda::ShareableMemory::allocate(driver, asked);
  if (!memory) return fail(memory.error());
  const std::uintptr_t address = round_up(memory->address(), NCCL_WIN_REQUIRED_ALIGNMENT);
  auto* data = reinterpret_cast<std::byte*>(address);  // NOLINT: an address in device memory
  return add_block(std::make_shared<Block>(*std::move(memory), data, bytes), place);
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

Result<Registration> register_if_useful(Communicator& communicator, void* data, std::size_t bytes) {
  Registration made{.block = block_of(data, bytes), .memory = {}};
  const bool on_host = is_host_memory(data);
  if (on_host) {
    const auto page = static_cast<std::size_t>(getpagesize());
    const bool whole = reinterpret_cast<std::uintptr_t>(data) % page == 0;
    bytes = round_up(bytes, page);
    if (!whole || made.block == nullptr || !made.block->holds(data, bytes)) return made;
  } else if (!communicator.runs_on_devices()) {
    return made;
  }
  auto registered = communicator.register_memory(data, bytes);
  if (registered) {
    made.memory = *std::move(registered);
    return made;
  }
  // The buffer is used without registration after two errors. kUnsupported (device memory): for example, peers cannot
  // map memory of this type, it consists of too many allocations, or the communicator has reached its limit of
  // registrations. kInvalidArgument for host memory: it is already registered, or not all of it is writable.
  const ErrorCode code = registered.error().code;
  if (code == ErrorCode::kUnsupported || (on_host && code == ErrorCode::kInvalidArgument)) return made;
  return registered.error();
}

TUTTI_NCCL(ncclResult_t, MemAlloc, void** ptr, size_t size) {
  return guarded([&] {
    if (ptr == nullptr) return fail(ncclInvalidArgument, "ncclMemAlloc: the place for the address is null");
    *ptr = nullptr;
    if (size == 0) return ncclSuccess;
    if (size > SIZE_MAX / 2)
      return fail(ncclSystemError, fmt::format("ncclMemAlloc: {} bytes are more than any memory has", size));
    const cuda::Driver* driver = cuda::Driver::loaded();
    return driver != nullptr && has_context(*driver) ? allocate_on_device(*driver, ptr, size)
                                                     : allocate_on_host(ptr, size);
  });
}

TUTTI_NCCL(ncclResult_t, MemFree, void* ptr) {
  return guarded([&] {
    if (ptr == nullptr) return ncclSuccess;
    const std::scoped_lock lock(table().mutex);
    if (table().blocks.erase(ptr) > 0) return ncclSuccess;
    return fail(ncclInvalidArgument,
                fmt::format("ncclMemFree: {} was not returned by ncclMemAlloc(), or was freed already", ptr));
  });
}

}  // namespace tutti::nccl

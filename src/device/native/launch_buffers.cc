// LaunchGroup::LaunchBuffers: finds a free buffer, and fills it.
#include "device/native/launch_buffers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "device/native/device_failure.h"

namespace tutti::detail {
namespace {

// Largest number of buffers. There is a limit because those of captured launches are never reused.
constexpr std::size_t kMostLaunchBuffers = 4096;
constexpr std::size_t kPreallocatedBuffers = 8;
constexpr std::size_t kLaunchAlignment = 16;

std::size_t aligned_for_launch(std::size_t bytes) {
  return (bytes + kLaunchAlignment - 1) / kLaunchAlignment * kLaunchAlignment;
}

template <class T>
std::size_t table_bytes(const std::vector<T>& table) {
  return aligned_for_launch(table.size() * sizeof(T));
}

std::size_t tables_bytes(const DeviceGeometry& tables) {
  return table_bytes(tables.cuts) + table_bytes(tables.contiguous) + table_bytes(tables.starts);
}

std::size_t calls_bytes(std::size_t calls) {
  return calls > device::kInlineCalls ? aligned_for_launch(calls * sizeof(device::Call)) : 0;
}

// Writes tables one after another into pinned host memory that the device reads.
class BufferWriter {
 public:
  explicit BufferWriter(const cuda::PinnedMemory& memory) : memory_(memory) {}

  // Copies `count` values. Returns the address at which the device reads the copy, or null if `count` is 0.
  template <class T>
  T* put(const T* values, std::size_t count) {
    if (count == 0) return nullptr;
    TUTTI_ASSERT(at_ + count * sizeof(T) <= memory_.bytes().size());
    std::memcpy(memory_.bytes().data() + at_, values, count * sizeof(T));
    T* const found = reinterpret_cast<T*>(memory_.device_address() + at_);  // NOLINT: a device's address
    at_ += aligned_for_launch(count * sizeof(T));
    return found;
  }

 private:
  const cuda::PinnedMemory& memory_;
  std::size_t at_ = 0;
};

}  // namespace

Status LaunchGroup::LaunchBuffers::preallocate(std::size_t members, std::uint32_t ranks,
                                               std::uint32_t transfer_queues) {
  if (!buffers_.empty()) return {};
  const std::size_t tables =
      aligned_for_launch(ranks * sizeof(device::Cut)) + 2 * aligned_for_launch((ranks + 1) * sizeof(std::uint64_t));
  const std::size_t transfers = transfer_queues * (sizeof(device::TransferQueue) + sizeof(device::TransferPart));
  for (std::size_t i = 0; i < kPreallocatedBuffers; ++i) {
    TUTTI_TRY(add(std::max(calls_bytes(members) + members * tables, aligned_for_launch(transfers))));
  }
  return {};
}

Status LaunchGroup::LaunchBuffers::add(std::size_t bytes) {
  if (buffers_.size() >= kMostLaunchBuffers) {
    return call_error(
        ErrorCode::kUnsupported,
        "too many calls of more than 8 ranks on a GPU, of blocks of several lengths, or of many sends and "
        "receives, are captured in graphs or under way");
  }
  auto memory = cuda::PinnedMemory::allocate(driver_, bytes);
  if (!memory) return memory.error();
  buffers_.push_back({.memory = std::move(*memory), .done = nullptr, .used = false});
  return {};
}

void LaunchGroup::LaunchBuffers::reuse_after(const std::shared_ptr<cuda::Event>& done) {
  if (in_use_) buffers_.back().done = done;
}

// Returns a free buffer of at least `bytes` bytes for the current launch, or makes one.
Result<const cuda::PinnedMemory*> LaunchGroup::LaunchBuffers::take(std::size_t bytes) {
  const cuda::RelaxedCapture relaxed(driver_);
  const auto is_free = [bytes](const Buffer& one) {
    if (one.memory.bytes().size() < bytes) return false;
    if (!one.used) return true;
    if (one.done == nullptr) return false;
    const auto finished = one.done->finished();
    return finished.ok() && *finished;
  };
  const auto found = std::find_if(buffers_.begin(), buffers_.end(), is_free);
  if (found != buffers_.end()) {
    // the last element of buffers_ is always the buffer of the current launch
    std::rotate(found, found + 1, buffers_.end());
  } else {
    TUTTI_TRY(add(bytes));
  }
  in_use_ = true;
  Buffer& taken = buffers_.back();
  taken.used = true;
  taken.done = nullptr;
  return &taken.memory;
}

Status LaunchGroup::LaunchBuffers::fill(const DeviceTransfers& transfers, device::TransferLaunch& launch) {
  const auto& [queues, parts] = transfers;
  launch.queue_count = static_cast<std::uint32_t>(queues.size());
  if (queues.size() <= device::kInlineQueues && parts.size() <= device::kInlineParts) {
    std::ranges::copy(queues, launch.inline_queues);
    std::ranges::copy(parts, launch.inline_parts);
    return {};
  }
  auto memory = take(table_bytes(queues) + table_bytes(parts));
  if (!memory) return memory.error();
  BufferWriter writer(**memory);
  launch.queues = writer.put(queues.data(), queues.size());
  launch.parts = writer.put(parts.data(), parts.size());
  return {};
}

Result<const device::Call*> LaunchGroup::LaunchBuffers::fill(const Calls& calls) {
  std::size_t bytes = calls_bytes(calls.size());
  for (const auto& call : calls) bytes += tables_bytes(call->tables);
  if (bytes == 0) return nullptr;
  auto memory = take(bytes);
  if (!memory) return memory.error();
  BufferWriter writer(**memory);
  std::vector<device::Call> whole;
  for (const auto& call : calls) {
    device::Geometry& geometry = call->call.geometry;
    geometry.cuts = writer.put(call->tables.cuts.data(), call->tables.cuts.size());
    geometry.contiguous = writer.put(call->tables.contiguous.data(), call->tables.contiguous.size());
    geometry.starts = writer.put(call->tables.starts.data(), call->tables.starts.size());
    whole.push_back(call->call);
  }
  return calls_bytes(calls.size()) == 0 ? nullptr : writer.put(whole.data(), whole.size());
}

}  // namespace tutti::detail

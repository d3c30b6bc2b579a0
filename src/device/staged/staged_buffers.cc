// StagedBuffers: the layout of the block, and the copies.
#include "device/staged/staged_buffers.h"

#include <new>
#include <utility>

#include "base/assert.h"
#include "cuda/resources.h"

namespace tutti::detail {
namespace {

// Peers on this machine access the copies in place, so no two copies (nor the flag) share a cache line.
constexpr std::size_t kBufferAlignment = 4096;

std::size_t aligned_for_peers(std::size_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

}  // namespace

std::size_t StagedBuffers::add(const void* data, std::size_t bytes, std::size_t part) {
  const std::size_t offset =
      buffers_.empty() ? kBufferAlignment : aligned_for_peers(buffers_.back().offset + buffers_.back().bytes);
  buffers_.push_back(
      {.device = reinterpret_cast<std::uintptr_t>(data), .offset = offset, .bytes = bytes, .part = part});
  return buffers_.size() - 1;
}

void StagedBuffers::copy_in(std::size_t buffer, std::size_t offset, std::size_t bytes) {
  if (bytes > 0) copies_in_.push_back({.buffer = buffer, .offset = offset, .bytes = bytes});
}

void StagedBuffers::copy_out(std::size_t buffer, std::size_t offset, std::size_t bytes) {
  if (bytes > 0) copies_out_.push_back({.buffer = buffer, .offset = offset, .bytes = bytes});
}

Status StagedBuffers::allocate(StagingPool& pool, int device) {
  auto block = pool.take(buffers_.back().offset + buffers_.back().bytes, device);
  if (!block) return block.error();
  block_ = std::move(*block);
  flag_ = new (block_.window->data()) std::atomic<std::uint32_t>(0);  // placement new: the flag lies in the block
  return {};
}

Status StagedBuffers::enqueue(const cuda::Driver& driver, Direction direction, std::size_t part,
                              cuda::CUstream stream) const {
  const bool in = direction == Direction::kIn;
  for (const Copy& copy : in ? copies_in_ : copies_out_) {
    const Buffer& buffer = buffers_[copy.buffer];
    if (buffer.part != part) continue;
    std::byte* host = staged(copy.buffer) + copy.offset;
    const cuda::CUdeviceptr device = buffer.device + copy.offset;
    const cuda::CUresult result = in ? driver.api().memcpy_dtoh_async(host, device, copy.bytes, stream)
                                     : driver.api().memcpy_htod_async(device, host, copy.bytes, stream);
    TUTTI_TRY(driver.check(result, in ? "copying a call's input from the device" : "copying its output back"));
  }
  return {};
}

}  // namespace tutti::detail

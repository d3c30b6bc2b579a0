// StagedBuffers: the buffers of one staged call: their device memory, their copies in one block of pinned host memory,
// and the flag for which the call's streams wait. Belongs to a StagedCall, and is used only by src/device/staged. The
// caller's thread fills it in; afterwards only the flag changes, which any thread may set.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "device/staged/staging_pool.h"

namespace tutti::detail {

class StagedBuffers {
 public:
  // Adds a buffer of device memory that the part `part` of the call uses. Returns the number of the buffer.
  std::size_t add(const void* data, std::size_t bytes, std::size_t part);
  // Bytes [offset, offset + bytes) of a buffer are copied to host memory before the call, or back to the device
  // after it.
  void copy_in(std::size_t buffer, std::size_t offset, std::size_t bytes);
  void copy_out(std::size_t buffer, std::size_t offset, std::size_t bytes);
  // Allocates the host memory. Call it once, after all buffers were added. `device`: see StagingPool::take(). Errors:
  // kSystem.
  Status allocate(StagingPool& pool, int device);
  std::byte* staged(std::size_t buffer) const { return block_.window->data() + buffers_[buffer].offset; }

  // Puts the copies of a part into the stream.
  enum class Direction : std::uint8_t { kIn, kOut };
  Status enqueue(const cuda::Driver& driver, Direction direction, std::size_t part, cuda::CUstream stream) const;

  // The value of the flag that releases the streams.
  static constexpr std::uint32_t kGoOn = 1;
  cuda::CUdeviceptr flag_address() const { return block_.pin->device_address(); }
  void release_streams() { flag_->store(kGoOn, std::memory_order_release); }
  void reset_flag() { flag_->store(0, std::memory_order_release); }  // for the next replay
  // Returns the block, which this object must not use any more.
  StagingPool::Block take_block() { return std::move(block_); }

 private:
  struct Buffer {
    std::uint64_t device = 0;  // device address
    std::size_t offset = 0;    // offset of the copy in the block
    std::size_t bytes = 0;
    std::size_t part = 0;
  };
  struct Copy {
    std::size_t buffer = 0;
    std::size_t offset = 0;  // offset in the buffer
    std::size_t bytes = 0;
  };
  std::vector<Buffer> buffers_;
  std::vector<Copy> copies_in_;
  std::vector<Copy> copies_out_;
  StagingPool::Block block_;
  std::atomic<std::uint32_t>* flag_ = nullptr;  // at the start of the block, before the buffers
};

}  // namespace tutti::detail

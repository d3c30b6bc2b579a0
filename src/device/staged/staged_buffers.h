// StagedBuffers: the buffers of one staged call: their device memory, and their copies in one block of pinned host
// memory. The block also contains a flag for which the call's streams wait. Each object belongs to a StagedCall, and
// only src/device/staged uses the class. The thread that makes the call fills the object in. Afterwards, until
// take_block(), nothing in it changes except this flag, which any thread may set.
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
  // Adds a buffer of device memory. `part`: the part of the call (StagedCall::Part, the work in one stream) that
  // copies this buffer. Returns the index of the buffer.
  std::size_t add(const void* data, std::size_t bytes, std::size_t part);
  // Plans a copy of bytes [offset, offset + bytes) of a buffer: copy_in() from the device to host memory, before
  // the call; copy_out() from host memory to the device, after it. enqueue() puts the copies into a stream.
  void copy_in(std::size_t buffer, std::size_t offset, std::size_t bytes);
  void copy_out(std::size_t buffer, std::size_t offset, std::size_t bytes);
  bool copies_out() const { return !copies_out_.empty(); }  // whether a copy out was planned
  // Allocates the host memory. Call it once, after all buffers were added. `device`: see StagingPool::take().
  // Errors: those of StagingPool::take().
  Status allocate(StagingPool& pool, int device);
  std::byte* staged(std::size_t buffer) const { return block_.window->data() + buffers_[buffer].offset; }

  // Puts the planned copies of one part into the stream: kIn those of copy_in(), kOut those of copy_out().
  enum class Direction : std::uint8_t { kIn, kOut };
  Status enqueue(const cuda::Driver& driver, Direction direction, std::size_t part, cuda::CUstream stream) const;

  // The streams wait until the flag has this value; before, it is 0.
  static constexpr std::uint32_t kGoOn = 1;
  cuda::CUdeviceptr flag_address() const { return block_.pin->device_address(); }
  void release_streams() { flag_->store(kGoOn, std::memory_order_release); }
  // Call it at the end of each replay of a captured call, so that the stream of the next replay waits for the flag
  // again.
  void reset_flag() { flag_->store(0, std::memory_order_release); }
  // Moves the block out. Call it last, because this object cannot be used without the block.
  StagingPool::Block take_block() { return std::move(block_); }

 private:
  struct Buffer {
    std::uint64_t device = 0;  // address of the buffer on the device
    std::size_t offset = 0;    // offset of the host copy in the block, in bytes
    std::size_t bytes = 0;
    std::size_t part = 0;
  };
  struct Copy {
    std::size_t buffer = 0;
    std::size_t offset = 0;  // offset in the buffer, in bytes
    std::size_t bytes = 0;
  };
  std::vector<Buffer> buffers_;
  std::vector<Copy> copies_in_;
  std::vector<Copy> copies_out_;
  StagingPool::Block block_;
  std::atomic<std::uint32_t>* flag_ = nullptr;  // in the block, at its start; null before allocate()
};

}  // namespace tutti::detail

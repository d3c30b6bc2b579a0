// TestBuffers: two buffers on the GPU of a rank, and a stream, for a test at set-up. While the object exists, the GPU's
// context is current on the thread that made it, so only that thread may use it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "cuda/resources.h"
#include "device/rank_device.h"
#include "tutti/result.h"

namespace tutti::detail {

class TestBuffers {
 public:
  // Two buffers of `bytes` bytes each. `device` must outlive the object. Errors: those of the driver, as for all
  // functions here.
  static Result<std::unique_ptr<TestBuffers>> make(const RankDevice& device, std::size_t bytes);

  void* stream() const { return stream_.handle(); }
  void* address(int buffer) const { return reinterpret_cast<void*>(memory(buffer).address()); }
  // Copy `bytes` to or from the beginning of buffer 0 or 1. The copy has ended when the function returns.
  Status put(int buffer, std::span<const std::byte> bytes);
  Status get(int buffer, std::span<std::byte> bytes);
  Status wait() { return stream_.synchronize(); }  // until all work in the stream has ended

 private:
  TestBuffers(const RankDevice& device, cuda::ContextScope scope, cuda::Stream stream, cuda::DeviceMemory first,
              cuda::DeviceMemory second)
      : device_(device),
        scope_(std::move(scope)),
        stream_(std::move(stream)),
        first_(std::move(first)),
        second_(std::move(second)) {}
  const cuda::DeviceMemory& memory(int buffer) const { return buffer == 0 ? first_ : second_; }

  const RankDevice& device_;
  cuda::ContextScope scope_;  // declared before the members that are freed in the context
  cuda::Stream stream_;
  cuda::DeviceMemory first_;
  cuda::DeviceMemory second_;
};

}  // namespace tutti::detail

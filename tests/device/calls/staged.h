// Helpers for tests of calls on device memory, with the fake driver: the GPU of a rank, with a stream.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "communicator/support.h"
#include "cuda/driver.h"
#include "cuda/resources.h"
#include "tests/device/fake_driver/control.h"
#include "tests/device/unit/driver_support.h"
#include "tutti/tutti.h"

namespace tutti::test {

using Bytes = std::vector<std::byte>;

inline const cuda::Driver& driver() {
  static const cuda::Driver* opened = [] {
    auto result = cuda::Driver::open();
    EXPECT_TRUE(result.ok()) << to_string(result.error());
    return *result;
  }();
  return *opened;
}

inline const cuda::fake::Control& fake() {
  const cuda::fake::Control* control = cuda::fake::control();
  EXPECT_NE(control, nullptr) << "libcuda.so.1 is not the fake driver";
  return *control;
}

// The GPU of one rank, with a stream. Its context is current on the constructing thread while this object exists.
class Gpu {
 public:
  explicit Gpu(int device)
      : context_(*cuda::PrimaryContext::retain(driver(), device)),
        scope_(*cuda::ContextScope::enter(driver(), context_.context())),
        stream_(*cuda::Stream::create(driver())) {}
  // Uses the context `own`, which the test created and must destroy, in place of the primary context.
  Gpu(int device, cuda::CUcontext own)
      : context_(*cuda::PrimaryContext::retain(driver(), device)),
        scope_(*cuda::ContextScope::enter(driver(), own)),
        stream_(*cuda::Stream::create(driver())) {}

  cuda::CUstream stream() const { return stream_.handle(); }
  void synchronize() const { EXPECT_TRUE(stream_.synchronize().ok()); }
  cuda::DeviceMemory allocate(std::size_t bytes) const { return *cuda::DeviceMemory::allocate(driver(), bytes); }
  void put(const cuda::DeviceMemory& to, const Bytes& bytes) const {
    EXPECT_EQ(driver().api().memcpy_htod_async(to.address(), bytes.data(), bytes.size(), stream_.handle()),
              cuda::CUresult::kSuccess);
    synchronize();
  }
  Bytes get(const cuda::DeviceMemory& from) const {
    Bytes bytes(from.bytes());
    EXPECT_EQ(driver().api().memcpy_dtoh_async(bytes.data(), from.address(), bytes.size(), stream_.handle()),
              cuda::CUresult::kSuccess);
    synchronize();
    return bytes;
  }

 private:
  cuda::PrimaryContext context_;
  cuda::ContextScope scope_;
  cuda::Stream stream_;
};

inline void* pointer(const cuda::DeviceMemory& memory) { return reinterpret_cast<void*>(memory.address()); }

inline CallOptions on(const Gpu& gpu) {
  CallOptions options;
  options.stream = gpu.stream();
  return options;
}

}  // namespace tutti::test

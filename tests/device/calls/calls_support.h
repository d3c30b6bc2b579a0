// Helpers for tests of calls that GPUs carry out: communicators on the fake driver, the GPU of one rank with a stream
// and memory, and collective calls whose results can be compared bit by bit with those of the host.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuda/driver.h"
#include "cuda/resources.h"
#include "tests/device/fake_driver/control.h"
#include "tests/device/fake_driver/fake_device.h"
#include "tests/device/unit/driver_support.h"
#include "tutti/tutti.h"

namespace tutti::testing {

using Bytes = std::vector<std::byte>;
using Communicators = std::vector<std::unique_ptr<Communicator>>;

// Sets up small devices, so that launches of all ranks are emulated quickly and long calls have many tiles. The
// environment is read only once, when the fake driver is loaded.
inline const cuda::fake::Control& small_devices() {
  static const cuda::fake::Control& control = [&]() -> const cuda::fake::Control& {
    setenv("FAKE_CUDA_BLOCKS", "32", 0);
    setenv("FAKE_CUDA_DEVICES", "4", 0);
    setenv("TUTTI_DEVICE_THREADS", "32", 0);
    setenv("TUTTI_DEVICE_BLOCKS", "4", 0);
    setenv("TUTTI_DEVICE_SLOT_BYTES", "4096", 0);
    const cuda::fake::Control* found = cuda::fake::control();
    EXPECT_NE(found, nullptr) << "libcuda.so.1 is not the fake driver";
    register_device_kernels(*found, FakeDeviceOptions::from_environment());
    return *found;
  }();
  return control;
}

inline const cuda::Driver& driver() {
  static const cuda::Driver* opened = [] {
    small_devices();
    auto result = cuda::Driver::open();
    EXPECT_TRUE(result.ok()) << to_string(result.error());
    return *result;
  }();
  return *opened;
}

// A GPU and a stream on it. The GPU's primary context is current on the constructing thread while this object exists.
class Gpu {
 public:
  explicit Gpu(int device)
      : context_(*cuda::PrimaryContext::retain(driver(), device)),
        scope_(*cuda::ContextScope::enter(driver(), context_.context())),
        stream_(*cuda::Stream::create(driver())) {}

  cuda::CUstream stream() const { return stream_.handle(); }
  void synchronize() const {
    const Status status = stream_.synchronize();
    EXPECT_TRUE(status.ok()) << to_string(status.error());
  }
  cuda::DeviceMemory allocate(std::size_t bytes) const { return *cuda::DeviceMemory::allocate(driver(), bytes); }
  void put(const cuda::DeviceMemory& to, const Bytes& bytes) const {
    EXPECT_EQ(driver().api().memcpy_htod_async(to.address(), bytes.data(), bytes.size(), stream()),
              cuda::CUresult::kSuccess);
    synchronize();
  }
  Bytes get(const cuda::DeviceMemory& from) const {
    Bytes bytes(from.bytes());
    EXPECT_EQ(driver().api().memcpy_dtoh_async(bytes.data(), from.address(), bytes.size(), stream()),
              cuda::CUresult::kSuccess);
    synchronize();
    return bytes;
  }
  CallOptions options(Algorithm algorithm = Algorithm::kAuto) const {
    CallOptions options;
    options.stream = stream();
    options.algorithm = algorithm;
    return options;
  }

 private:
  cuda::PrimaryContext context_;
  cuda::ContextScope scope_;
  cuda::Stream stream_;
};

inline void* pointer(const cuda::DeviceMemory& memory) { return reinterpret_cast<void*>(memory.address()); }

// Creates ranks in this process, rank i on devices[i]. If all devices are kNoDevice, the ranks have no GPUs.
inline Communicators ranks_on(const std::vector<std::int32_t>& devices, CommunicatorOptions options = {}) {
  driver();
  options.devices = devices;
  auto ranks = Communicator::create_all(static_cast<std::int32_t>(devices.size()), options);
  EXPECT_TRUE(ranks.ok()) << to_string(ranks.error());
  return *std::move(ranks);
}

template <class Body>
void on_every_rank(Communicators& ranks, Body body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

inline Bytes random_bits(std::size_t bytes, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bits(bytes);
  for (std::byte& byte : bits) byte = static_cast<std::byte>(random());
  return bits;
}

struct CallShape {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::size_t count = 0;
  DataType type = DataType::kInt32;
  ReduceOp op = ReduceOp::kSum;
  bool in_place = false;
  Algorithm algorithm = Algorithm::kAuto;

  std::size_t block() const { return count * size_of(type); }
  std::size_t bytes(std::size_t ranks) const { return 2 * ranks * block(); }  // a rank's buffer: output, then input
};

// The call of one rank, with its input and output in `memory`. The root is rank 1, or rank 0 if there is only one rank.
inline CollectiveCall call_of(const CallShape& shape, std::size_t rank, std::size_t ranks, void* memory) {
  using Kind = CollectiveKind;
  auto* buffer = static_cast<std::byte*>(memory);
  const bool many_in =
      shape.kind == Kind::kReduceScatter || shape.kind == Kind::kAllToAll || shape.kind == Kind::kScatter;
  const bool many_out = shape.kind == Kind::kAllGather || shape.kind == Kind::kAllToAll || shape.kind == Kind::kGather;
  std::byte* input = buffer + ranks * shape.block();
  std::byte* output = buffer;
  const bool rooted = shape.kind == Kind::kGather || shape.kind == Kind::kScatter;
  // For gather and scatter, only the root can work in place.
  if (shape.in_place && (!rooted || rank == (ranks > 1 ? 1 : 0))) {
    input = buffer + (many_out && !many_in ? rank * shape.block() : 0);
    output = buffer + (many_in && !many_out ? rank * shape.block() : 0);
  }
  return {.kind = shape.kind,
          .input = input,
          .output = output,
          .count = shape.count,
          .type = shape.type,
          .op = shape.op,
          .root = ranks > 1 ? 1 : 0};
}

// Runs the call and returns the buffers of all ranks after it. `devices` has the GPU of each rank; it is empty if the
// ranks have no GPUs.
inline std::vector<Bytes> outcome(Communicators& ranks, const CallShape& shape,
                                  const std::vector<std::int32_t>& devices) {
  std::vector<Bytes> buffers(ranks.size());
  on_every_rank(ranks, [&](Communicator& rank) {
    const auto me = static_cast<std::size_t>(rank.rank());
    Bytes& buffer = buffers[me];
    buffer = random_bits(shape.bytes(ranks.size()) + 16, static_cast<std::uint32_t>(me));
    if (devices.empty()) {
      CallOptions options;
      options.algorithm = shape.algorithm;
      const Status status = rank.run(call_of(shape, me, ranks.size(), buffer.data()), options);
      EXPECT_TRUE(status.ok()) << to_string(status.error());
      return;
    }
    const Gpu gpu(devices[me]);
    const cuda::DeviceMemory memory = gpu.allocate(buffer.size());
    gpu.put(memory, buffer);
    const Status status = rank.run(call_of(shape, me, ranks.size(), pointer(memory)), gpu.options(shape.algorithm));
    EXPECT_TRUE(status.ok()) << to_string(status.error());
    buffer = gpu.get(memory);
    const Status later = rank.async_status();
    EXPECT_TRUE(later.ok()) << to_string(later.error());
  });
  return buffers;
}

}  // namespace tutti::testing

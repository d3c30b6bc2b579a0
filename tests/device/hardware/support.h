// Fixtures of the tests on a real GPU. A test is skipped, with the reason, if there is no GPU. Also has ranks that
// share the GPU.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "bench/gpu/gpu.h"
#include "conformance/suite.h"
#include "device/native/device_calls.h"
#include "kernels/device/device_image.h"
#include "tests/device/fake_driver/control.h"

namespace tutti::test {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    auto gpu = bench::Gpu::open(0, kernels::device_image());
    if (!gpu && gpu.error().code == ErrorCode::kUnsupported) GTEST_SKIP() << "not run: " << to_string(gpu.error());
    ASSERT_TRUE(gpu.ok()) << to_string(gpu.error());
    gpu_ = *std::move(gpu);
  }

  bench::Gpu& gpu() { return *gpu_; }

  // Whether kernels may be missing. This is the case in a build without nvcc, and with the fake driver.
  static bool may_lack_kernels() {
    return kernels::device_image().empty() || (cuda::Driver::loaded() != nullptr && cuda::fake::control() != nullptr);
  }

 private:
  std::unique_ptr<bench::Gpu> gpu_;
};

// The stream and the device memory of one rank.
//
// The thread of the test creates it before the ranks' first call and destroys it after their last call. The reason is
// that the driver waits for the whole device when memory is freed, and may do so when it is allocated. A rank that did
// this between calls could wait for calls of other ranks that wait for this rank, a deadlock.
class RankResources {
 public:
  RankResources(const bench::Gpu& gpu, std::size_t bytes)
      : gpu_(&gpu),
        stream_(*cuda::Stream::create(gpu.driver())),
        memory_(*gpu.allocate(bytes)),
        other_(*gpu.allocate(bytes)) {}

  // Makes the context current on the calling thread.
  cuda::ContextScope enter() const { return *cuda::ContextScope::enter(gpu_->driver(), gpu_->context()); }

  CallOptions options(Algorithm algorithm = Algorithm::kAuto) const {
    CallOptions options = with(algorithm);
    options.stream = stream_.handle();
    return options;
  }
  cuda::CUstream stream() const { return stream_.handle(); }
  const cuda::Driver& driver() const { return gpu_->driver(); }
  const cuda::DriverApi& api() const { return gpu_->driver().api(); }
  const cuda::DeviceMemory& memory() const { return memory_; }
  const cuda::DeviceMemory& other() const { return other_; }
  std::byte* data() const { return bench::pointer_to(memory_); }

  void put(const cuda::DeviceMemory& to, const std::vector<std::byte>& bytes) const {
    ASSERT_LE(bytes.size(), to.bytes());
    ASSERT_EQ(api().memcpy_htod_async(to.address(), bytes.data(), bytes.size(), stream()), cuda::CUresult::kSuccess);
    ASSERT_TRUE(stream_.synchronize().ok());
  }
  std::vector<std::byte> get(const cuda::DeviceMemory& from, std::size_t count) const {
    std::vector<std::byte> bytes(count);
    EXPECT_EQ(api().memcpy_dtoh_async(bytes.data(), from.address(), count, stream()), cuda::CUresult::kSuccess);
    const Status done = stream_.synchronize();
    EXPECT_TRUE(done.ok()) << to_string(done.error());
    return bytes;
  }

 private:
  const bench::Gpu* gpu_;
  cuda::Stream stream_;
  cuda::DeviceMemory memory_;
  cuda::DeviceMemory other_;
};

// The fixture for calls of several ranks of this process that share the GPU.
class GpuCalls : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) has_evaluator_ = gpu().kernel("tutti_evaluate_simple").ok();
  }

  std::vector<RankResources> make_resources(const Communicators& ranks, std::size_t bytes) {
    std::vector<RankResources> all_resources;
    for (std::size_t i = 0; i < ranks.size(); ++i) all_resources.emplace_back(gpu(), bytes);
    return all_resources;
  }

  // Creates ranks and calls body(communicator, resources) for each of them, in a thread of its own.
  void run_with_resources(std::int32_t ranks, std::size_t bytes,
                          const std::function<void(Communicator&, const RankResources&)>& body) {
    Communicators all = make_ranks(ranks);
    const std::vector<RankResources> all_resources = make_resources(all, bytes);
    on_every_rank(all, [&](Communicator& rank) {
      const RankResources& resources = all_resources[static_cast<std::size_t>(rank.rank())];
      const auto scope = resources.enter();
      body(rank, resources);
    });
    all.clear();  // destroy the communicators before the streams that they may still use
  }

  // Checks that the GPU has carried out all `calls` calls of this rank or, in a build without device code, that the
  // host has carried out all of them.
  void expect_on_the_gpu(const Communicator& rank, std::uint64_t calls) const {
    EXPECT_EQ(rank.runs_on_devices(), has_evaluator_);
    EXPECT_EQ(detail::calls_on_device(rank), rank.runs_on_devices() ? calls : 0) << "calls carried out by the GPU";
  }

 private:
  bool has_evaluator_ = false;
};

}  // namespace tutti::test

// What the tests on a GPU share: the GPU, or the reason why there is none to test on; ranks that share it.
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

  // Whether a kernel that is not found is no failure: in a build without nvcc, and over the double of the driver.
  static bool has_no_kernels() {
    return kernels::device_image().empty() || (cuda::Driver::loaded() != nullptr && cuda::fake::control() != nullptr);
  }

 private:
  std::unique_ptr<bench::Gpu> gpu_;
};

// One rank's stream and device memory. Made and given back by the test's own thread, before the ranks' first call and
// after their last: the driver waits for the whole device when memory is given back (and may when it is taken), and so
// for calls of other ranks that wait for this one.
class Seat {
 public:
  Seat(const bench::Gpu& gpu, std::size_t bytes)
      : gpu_(&gpu),
        stream_(*cuda::Stream::create(gpu.driver())),
        memory_(*gpu.allocate(bytes)),
        other_(*gpu.allocate(bytes)) {}

  // Makes the context the calling thread's own.
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

// Calls of several ranks in this process on the one GPU.
class GpuCalls : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) has_evaluator_ = gpu().kernel("tutti_evaluate_simple").ok();
  }

  std::vector<Seat> seats_for(const Communicators& ranks, std::size_t bytes) {
    std::vector<Seat> seats;
    for (std::size_t i = 0; i < ranks.size(); ++i) seats.emplace_back(gpu(), bytes);
    return seats;
  }

  // body(communicator, seat), one thread per rank.
  void on_every_seat(std::int32_t ranks, std::size_t bytes,
                     const std::function<void(Communicator&, const Seat&)>& body) {
    Communicators all = make_ranks(ranks);
    const std::vector<Seat> seats = seats_for(all, bytes);
    on_every_rank(all, [&](Communicator& rank) {
      const Seat& seat = seats[static_cast<std::size_t>(rank.rank())];
      const auto scope = seat.enter();
      body(rank, seat);
    });
    all.clear();  // before the streams that it may still use
  }

  // That the GPU has carried out all of `calls` calls of this rank. Without device code the host does.
  void expect_on_the_gpu(const Communicator& rank, std::uint64_t calls) const {
    EXPECT_EQ(rank.runs_on_devices(), has_evaluator_);
    EXPECT_EQ(detail::calls_on_device(rank), rank.runs_on_devices() ? calls : 0) << "by the host";
  }

 private:
  bool has_evaluator_ = false;
};

}  // namespace tutti::test

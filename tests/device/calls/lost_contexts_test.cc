// Tests of calls on device memory whose context is lost, because a kernel failed or the context was destroyed; with the
// fake driver. Such a stream never reaches the call and does not report anything by itself. Nevertheless the call must
// end, its rank must report the reason, and the errors of the peers must name that rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/device/calls/staged.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using Kind = CollectiveKind;
using Clock = std::chrono::steady_clock;

// Errors must come sooner than the timeouts of the communicators, which are patience().
const std::chrono::milliseconds kSoon = patience() * 2 / 3;

enum class LossCause { kKernel, kDestroyed };

// The configuration of two ranks, the number of their devices, and how rank 0 loses its context. Rank 1 has a context
// of its own.
struct Loss {
  JobConfiguration configuration;
  int devices;
  LossCause cause;
  std::string name() const {
    return std::string(configuration.name) + (devices == 1 ? " one device" : " two devices") +
           (cause == LossCause::kKernel ? " a kernel fails" : " it is destroyed");
  }
};

std::vector<Loss> losses() {
  std::vector<Loss> all;
  for (const JobConfiguration& configuration : {kConfigurations[0], kConfigurations[1], kAttachedConfigurations[0]}) {
    for (const int devices : {1, 2}) {
      for (const LossCause cause : {LossCause::kKernel, LossCause::kDestroyed})
        all.push_back({configuration, devices, cause});
    }
  }
  return all;
}

// A kernel that runs until fail() is called, and then fails with kIllegalAddress.
class BadKernel {
 public:
  explicit BadKernel(const Gpu& gpu) : stream_(gpu.stream()) {
    fake().register_kernel({"bad", {}, [this](const cuda::fake::FakeLaunch&) {
                              while (!fail_) std::this_thread::sleep_for(std::chrono::microseconds(50));
                              return cuda::CUresult::kIllegalAddress;
                            }});
    module_.emplace(*cuda::Module::load(driver(), "fake image"));
  }
  void launch() { launch(stream_); }
  void launch(cuda::CUstream stream) {
    ASSERT_EQ(driver().api().launch_kernel(*module_->function("bad"), 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr),
              cuda::CUresult::kSuccess);
  }
  void fail() { fail_ = true; }

 private:
  cuda::CUstream stream_;
  std::atomic<bool> fail_{false};
  std::optional<cuda::Module> module_;
};

// A context on a device that is not the primary one. The destructor destroys it, if destroy() was not called.
class OwnContext {
 public:
  explicit OwnContext(int device) : context_(fake().create_context(device)) {}
  ~OwnContext() { destroy(); }
  OwnContext(const OwnContext&) = delete;
  OwnContext& operator=(const OwnContext&) = delete;
  void destroy() { fake().destroy_context(context_); }
  cuda::CUcontext handle() const { return context_; }

 private:
  cuda::CUcontext context_;
};

CollectiveCall sum(const cuda::DeviceMemory& memory, std::size_t count = 1000) {
  return {.kind = Kind::kAllReduce,
          .input = pointer(memory),
          .output = pointer(memory),
          .count = count,
          .type = DataType::kInt32};
}

// Waits until async_status() reports an error and returns that error, or returns success after a timeout.
Status later_status(Communicator& rank) {
  const auto start = Clock::now();
  while (Clock::now() - start < kSoon) {
    if (Status status = rank.async_status(); !status.ok()) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

void expect_this_rank_lost(const Status& status, LossCause cause) {
  ASSERT_FALSE(status.ok());
  EXPECT_GE(status.error().scope, ErrorScope::kCommunicator);
  EXPECT_THAT(
      status.error().message,
      AllOf(HasSubstr("GPU 0"), HasSubstr("lost"),
            AnyOf(HasSubstr(cause == LossCause::kKernel ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_CONTEXT"))));
}

void expect_unusable(Communicator& rank) {
  std::vector<std::int32_t> host(4);
  const Status refused = rank.all_reduce(host.data(), host.data(), 4, DataType::kInt32, ReduceOp::kSum);
  EXPECT_FALSE(refused.ok());
}

// The context of rank 0 is lost while its stream is still busy with work before the call.
void lose_before_the_input(Communicator& rank, const Loss& loss) {
  OwnContext context(0);
  const Gpu gpu(0, context.handle());
  const cuda::DeviceMemory memory = gpu.allocate(4096);
  BadKernel kernel(gpu);
  kernel.launch();
  auto work = rank.start(sum(memory), on(gpu));
  ASSERT_TRUE(work.ok()) << to_string(work.error());
  const auto start = Clock::now();
  std::thread other;
  if (loss.cause == LossCause::kKernel) kernel.fail();
  if (loss.cause == LossCause::kDestroyed) {  // destroy() waits for the kernel, so it needs a thread of its own
    other = std::thread([&] { context.destroy(); });
    EXPECT_TRUE(eventually([] { return !cuda::Event::create(driver()).ok(); })) << "the context is not being destroyed";
    kernel.fail();
  }
  const Status status = work->wait();
  EXPECT_LT(Clock::now() - start, kSoon);
  expect_this_rank_lost(status, loss.cause);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().rank, 0);
  EXPECT_THAT(status.error().message, AllOf(HasSubstr("all_reduce"), HasSubstr("before a call's input was copied")));
  expect_this_rank_lost(rank.async_status(), loss.cause);
  EXPECT_TRUE(rank.async_status().ok()) << "the error was reported twice";
  expect_unusable(rank);
  if (other.joinable()) other.join();
}

TEST(LostContexts, BeforeTheInputWasCopiedAllRanksAreTold) {
  for (const Loss& loss : losses()) {
    SCOPED_TRACE(loss.name());
    Communicators ranks = make_configured_ranks(loss.configuration, 2);
    on_every_rank(ranks, [&](Communicator& rank) {
      if (rank.rank() == 0) return lose_before_the_input(rank, loss);
      const Gpu gpu(loss.devices - 1);
      const cuda::DeviceMemory memory = gpu.allocate(4096);
      const auto start = Clock::now();
      auto work = rank.start(sum(memory), on(gpu));
      ASSERT_TRUE(work.ok()) << to_string(work.error());
      const Status status = work->wait();
      EXPECT_LT(Clock::now() - start, kSoon);
      gpu.synchronize();  // the stream must continue
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().rank, 0) << to_string(status.error());
      EXPECT_EQ(status.error().scope, ErrorScope::kCommunicator) << to_string(status.error());
      EXPECT_FALSE(rank.async_status().ok());
      expect_unusable(rank);
    });
  }
}

// Both ranks use the context that is lost. Each must detect the loss by itself.
TEST(LostContexts, RanksThatShareOneAreBothTold) {
  for (const JobConfiguration& configuration : kConfigurations) {
    SCOPED_TRACE(configuration.name);
    Communicators ranks = make_configured_ranks(configuration, 2);
    OwnContext context(0);
    const Gpu gpu(0, context.handle());
    BadKernel kernel(gpu);
    std::atomic<int> started{0};
    on_every_rank(ranks, [&](Communicator& rank) {
      const Gpu own(0, context.handle());
      const cuda::DeviceMemory memory = own.allocate(4096);
      if (rank.rank() == 0) kernel.launch(own.stream());
      auto work = rank.start(sum(memory), on(own));
      ASSERT_TRUE(work.ok()) << to_string(work.error());
      if (++started == 2) kernel.fail();
      const auto start = Clock::now();
      const Status status = work->wait();
      EXPECT_LT(Clock::now() - start, kSoon);
      EXPECT_FALSE(status.ok());
      EXPECT_FALSE(later_status(rank).ok());
      expect_unusable(rank);
    });
  }
}

// The context of rank 0 is lost after its input was sent. The result arrives but cannot be copied back to the device.
void lose_before_the_output(Communicator& rank, const Loss& loss, std::atomic<bool>& lost,
                            const std::atomic<bool>& sent) {
  OwnContext context(0);
  const Gpu gpu(0, context.handle());
  const cuda::DeviceMemory memory = gpu.allocate(4096);
  auto second = *cuda::Stream::create(driver());
  BadKernel kernel(gpu);
  Group group;
  ASSERT_TRUE(group.send(rank, pointer(memory), 100, DataType::kUint8, 1, on(gpu)).ok());
  ASSERT_TRUE(group.receive(rank, pointer(memory), 100, DataType::kUint8, 1, on(gpu)).ok());
  auto work = group.start();
  ASSERT_TRUE(work.ok()) << to_string(work.error());
  while (!sent) std::this_thread::yield();
  EXPECT_FALSE(work->test());
  if (loss.cause == LossCause::kKernel) {
    kernel.launch(second.handle());
    kernel.fail();
    EXPECT_FALSE(second.synchronize().ok());
  } else {
    context.destroy();
  }
  lost = true;
  const auto start = Clock::now();
  const Status status = work->wait();
  EXPECT_LT(Clock::now() - start, kSoon);
  expect_this_rank_lost(status, loss.cause);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("before a call's output was copied back"));
  expect_this_rank_lost(rank.async_status(), loss.cause);
  expect_unusable(rank);
}

TEST(LostContexts, BeforeTheOutputWasCopiedTheWorkEnds) {
  for (const Loss& loss : losses()) {
    if (loss.devices == 2) continue;  // in this test rank 1 has no device
    SCOPED_TRACE(loss.name());
    Communicators ranks = make_configured_ranks(loss.configuration, 2);
    std::atomic<bool> lost{false};
    std::atomic<bool> sent{false};
    on_every_rank(ranks, [&](Communicator& rank) {
      if (rank.rank() == 0) return lose_before_the_output(rank, loss, lost, sent);
      Bytes host(100);
      EXPECT_TRUE(rank.receive(host.data(), 100, DataType::kUint8, 0).ok());
      sent = true;
      while (!lost) std::this_thread::yield();
      const Status status = rank.send(host.data(), 100, DataType::kUint8, 0);
      EXPECT_TRUE(status.ok()) << to_string(status.error());
    });
  }
}

// Rank 0 has no Work to wait for. Either async_status() reports the loss (`asks`), or the next call fails at once. In
// both cases the peer must report an error that names rank 0.
TEST(LostContexts, WithoutAWorkTheCommunicatorTells) {
  for (const bool asks : {false, true}) {
    Communicators ranks = make_ranks(2);
    on_every_rank(ranks, [&](Communicator& rank) {
      if (rank.rank() == 1) {
        std::vector<std::int32_t> host(1000);
        const auto start = Clock::now();
        const Status status = rank.all_reduce(host.data(), host.data(), 1000, DataType::kInt32, ReduceOp::kSum);
        EXPECT_LT(Clock::now() - start, kSoon);
        ASSERT_FALSE(status.ok());
        EXPECT_EQ(status.error().rank, 0) << to_string(status.error());
        return;
      }
      OwnContext context(0);
      const Gpu gpu(0, context.handle());
      const cuda::DeviceMemory memory = gpu.allocate(4096);
      BadKernel kernel(gpu);
      kernel.launch();
      if (asks) {
        ASSERT_TRUE(rank.run(sum(memory), on(gpu)).ok());
      }
      kernel.fail();
      auto* stream = gpu.stream();
      EXPECT_EQ(driver().api().stream_synchronize(stream), cuda::CUresult::kIllegalAddress);
      const Status status = asks ? later_status(rank) : rank.run(sum(memory), on(gpu));
      ASSERT_FALSE(status.ok());
      EXPECT_THAT(status.error().message, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
      expect_unusable(rank);
    });
  }
}

// The communicator is destroyed while calls are outstanding and their loss was not yet reported. This must not wait,
// and must free all pinned memory.
TEST(LostContexts, TheEndOfTheCommunicatorWaitsForNothingAndGivesAllBack) {
  static_cast<void>(fake().leaks());  // clears the leaks that other tests' contexts left
  for (const LossCause cause : {LossCause::kKernel, LossCause::kDestroyed}) {
    Communicators ranks = make_ranks(2);
    OwnContext context(0);
    std::optional<Gpu> gpu(std::in_place, 0, context.handle());
    std::optional<cuda::DeviceMemory> memory(gpu->allocate(4096));
    std::optional<BadKernel> kernel(std::in_place, *gpu);
    kernel->launch();
    for (int call = 0; call < 3; ++call) ASSERT_TRUE(ranks[0]->run(sum(*memory), on(*gpu)).ok());
    kernel->fail();
    EXPECT_EQ(driver().api().stream_synchronize(gpu->stream()), cuda::CUresult::kIllegalAddress);
    if (cause == LossCause::kDestroyed) context.destroy();
    const auto start = Clock::now();
    ranks.clear();
    EXPECT_LT(Clock::now() - start, kSoon);
    EXPECT_EQ(fake().leaks().find("registered host memory"), std::string::npos) << fake().leaks();
  }
}

TEST(LostContexts, PeersThatGiveUpLetTheStreamGoOn) {
  for (const JobConfiguration& configuration : kConfigurations) {
    for (const bool held_up : {false, true}) {
      SCOPED_TRACE(std::string(configuration.name) + (held_up ? " before the input" : " after it"));
      Communicators ranks = make_configured_ranks(configuration, 2);
      const Gpu gpu(0);
      BlockedStream held(driver(), gpu.stream());
      if (!held_up) held.release();
      const cuda::DeviceMemory memory = gpu.allocate(4096);
      auto work = ranks[0]->start(sum(memory), on(gpu));
      ASSERT_TRUE(work.ok());
      ranks[1]->abort();
      held.release();
      const auto start = Clock::now();
      gpu.synchronize();
      const Status status = work->wait();
      EXPECT_LT(Clock::now() - start, kSoon);
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::kAborted) << to_string(status.error());
      EXPECT_EQ(status.error().rank, 1);
    }
  }
}

// While a call is outstanding, the library regularly asks the driver for its state. This must not invalidate a capture
// that the program has in progress.
TEST(LostContexts, LookingDisturbsNoCapture) {
  Communicators ranks = make_ranks(1);
  const Gpu gpu(0);
  BlockedStream held(driver(), gpu.stream());
  const cuda::DeviceMemory memory = gpu.allocate(4096);
  ASSERT_TRUE(ranks[0]->run(sum(memory), on(gpu)).ok());
  auto other = *cuda::Stream::create(driver());
  ASSERT_EQ(driver().api().stream_begin_capture(other.handle(), cuda::CaptureMode::kGlobal), cuda::CUresult::kSuccess);
  const unsigned before = fake().calls("cuEventQuery");
  const auto start = Clock::now();
  while (fake().calls("cuEventQuery") < before + 2 && Clock::now() - start < kSoon) std::this_thread::yield();
  EXPECT_GE(fake().calls("cuEventQuery"), before + 2) << "the library does not ask the driver";
  cuda::CUgraph graph = nullptr;
  EXPECT_EQ(driver().api().stream_end_capture(other.handle(), &graph), cuda::CUresult::kSuccess);
  EXPECT_EQ(driver().api().graph_destroy(graph), cuda::CUresult::kSuccess);
  held.release();
  gpu.synchronize();
  EXPECT_TRUE(ranks[0]->async_status().ok());
}

}  // namespace
}  // namespace tutti::test

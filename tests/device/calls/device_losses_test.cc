// Tests of a rank that loses its GPU, because a kernel failed or the driver refuses an operation. The calls of its
// peers must fail soon, long before their timeouts, and the error must name the rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <optional>
#include <ostream>
#include <string>
#include <thread>

#include "device/native/device_calls.h"
#include "kernels/device/call.h"
#include "tests/device/calls/calls_support.h"
#include "tests/support/patience.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using Devices = std::vector<std::int32_t>;

// An error that comes only at the timeout of the communicators, 60 s, has the code kTimeout.
const std::chrono::milliseconds kSoon = test::patience();

// A kernel that runs until fail() is called, and then fails with kIllegalAddress.
class BadKernel {
 public:
  BadKernel() {
    small_devices().register_kernel({"bad", {}, [this](const cuda::fake::FakeLaunch&) {
                                       while (!fails_) std::this_thread::sleep_for(std::chrono::microseconds(50));
                                       return cuda::CUresult::kIllegalAddress;
                                     }});
    module_.emplace(*cuda::Module::load(driver(), "fake image"));
  }
  void launch(cuda::CUstream stream) {
    EXPECT_EQ(driver().api().launch_kernel(*module_->function("bad"), 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr),
              cuda::CUresult::kSuccess);
  }
  void fail() { fails_ = true; }

 private:
  std::atomic<bool> fails_{false};
  std::optional<cuda::Module> module_;
};

CollectiveCall sum_of(const cuda::DeviceMemory& memory) {
  return {.input = pointer(memory), .output = pointer(memory), .count = memory.bytes() / 4, .type = DataType::kInt32};
}

Status start_and_wait(Communicator& rank, const Gpu& gpu, const cuda::DeviceMemory& memory) {
  auto work = rank.start(sum_of(memory), gpu.options());
  return work.ok() ? work->wait() : Status(work.error());
}

// Waits until the context of the GPU has an error. It only asks the stream and makes no call of the library.
void wait_until_lost(const Gpu& gpu) {
  const auto start = Clock::now();
  while (driver().api().stream_synchronize(gpu.stream()) == cuda::CUresult::kSuccess && Clock::now() - start < kSoon) {
    std::this_thread::yield();
  }
}

// Checks that the error was reported soon after `since` and is not a timeout. If `rank` is given, the error must name
// it.
void expect_reported(const Status& status, Clock::time_point since, std::optional<std::int32_t> rank) {
  ASSERT_FALSE(status.ok());
  EXPECT_LT(Clock::now() - since, kSoon);
  EXPECT_NE(status.error().code, ErrorCode::kTimeout);
  EXPECT_GE(status.error().scope, ErrorScope::kCommunicator);
  if (!rank) return;
  EXPECT_EQ(status.error().rank, *rank) << to_string(status.error());
  EXPECT_THAT(status.error().message, HasSubstr("rank " + std::to_string(*rank)));
}

// Checks that calls fail on host memory, too, because the whole communicator is broken.
void expect_unusable(Communicator& rank) {
  std::vector<std::int32_t> host(4);
  EXPECT_FALSE(rank.all_reduce(host.data(), host.data(), 4, DataType::kInt32, ReduceOp::kSum).ok());
}

// The time at which the context fails, relative to the call of rank 1: before it, during it, or after it.
enum class LossTime { kBefore, kIn, kAfter };

struct Loss {
  Devices devices;
  LossTime when;
};

std::string name_of(const Loss& loss) {
  constexpr const char* kNames[] = {"BeforeTheCall", "InTheCall", "BehindTheCall"};
  return std::string(kNames[static_cast<int>(loss.when)]) +
         (loss.devices.back() == loss.devices.front() ? "OnOneGpu" : "OnTwoGpus");
}

void PrintTo(const Loss& loss, std::ostream* out) { *out << name_of(loss); }

class ALostContext : public ::testing::TestWithParam<Loss> {};

// The context of rank 1 fails. If the two ranks share a GPU, both of them use this context.
TEST_P(ALostContext, IsToldToThePeers) {
  const auto& [devices, when] = GetParam();
  const bool shared = devices[0] == devices[1];
  Communicators ranks = ranks_on(devices);
  std::barrier<> step(2);
  on_every_rank(ranks, [&, devices = devices, when = when](Communicator& rank) {
    const Gpu gpu(devices[static_cast<std::size_t>(rank.rank())]);
    const cuda::DeviceMemory memory = gpu.allocate(4096);
    EXPECT_TRUE(start_and_wait(rank, gpu, memory).ok());
    step.arrive_and_wait();
    if (rank.rank() == 0) {
      const auto since = Clock::now();
      // on one GPU, the call of rank 0 waits for that of rank 1
      const bool arrives_early = when == LossTime::kAfter || (when == LossTime::kBefore && shared);
      if (arrives_early) step.arrive_and_wait();
      auto work = when == LossTime::kAfter && shared ? Result<Work>(Work()) : rank.start(sum_of(memory), gpu.options());
      if (!arrives_early) step.arrive_and_wait();
      const Status reported = when == LossTime::kAfter && shared ? rank.async_status()
                              : work.ok()                        ? work->wait()
                                                                 : Status(work.error());
      expect_reported(reported, since, shared ? std::nullopt : std::optional(1));
      expect_unusable(rank);
    } else {
      const auto own = shared ? std::nullopt : std::optional(1);
      BadKernel bad;
      bad.launch(gpu.stream());
      if (when == LossTime::kIn) {
        EXPECT_TRUE(rank.run(sum_of(memory), gpu.options()).ok());
      }
      if (when != LossTime::kAfter) step.arrive_and_wait();  // rank 0 has called
      bad.fail();
      wait_until_lost(gpu);
      const auto since = Clock::now();
      if (when == LossTime::kBefore) expect_reported(rank.run(sum_of(memory), gpu.options()), since, own);
      if (when == LossTime::kAfter) {
        expect_reported(rank.async_status(), since, own);
        step.arrive_and_wait();
      }
    }
    step.arrive_and_wait();
    if (rank.rank() == 1) expect_unusable(rank);
  });
}

INSTANTIATE_TEST_SUITE_P(Losses, ALostContext,
                         ::testing::Values(Loss{{2, 2}, LossTime::kBefore}, Loss{{2, 3}, LossTime::kBefore},
                                           Loss{{2, 2}, LossTime::kIn}, Loss{{2, 3}, LossTime::kIn},
                                           Loss{{2, 2}, LossTime::kAfter}, Loss{{2, 3}, LossTime::kAfter}),
                         [](const auto& tested) { return name_of(tested.param); });

// Rank 0 waits for rank 1, which shares its GPU, when their context fails. Although rank 1 does not call the library
// any more, both rank 0 and rank 2 on the other GPU must report an error.
TEST(ALostContext, OfRanksThatWaitIsToldElsewhere) {
  const Devices devices = {2, 2, 3};
  Communicators ranks = ranks_on(devices);
  std::barrier<> step(3);
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(devices[static_cast<std::size_t>(rank.rank())]);
    const cuda::DeviceMemory memory = gpu.allocate(4096);
    EXPECT_TRUE(start_and_wait(rank, gpu, memory).ok());
    step.arrive_and_wait();
    if (rank.rank() == 0) {
      EXPECT_FALSE(rank.run(sum_of(memory), gpu.options()).ok());
    } else if (rank.rank() == 1) {
      BadKernel bad;
      const auto other = *cuda::Stream::create(driver());
      bad.launch(other.handle());
      bad.fail();
      static_cast<void>(other.synchronize());
    } else {
      const auto since = Clock::now();
      expect_reported(start_and_wait(rank, gpu, memory), since, std::nullopt);
    }
    step.arrive_and_wait();
  });
}

// The evaluator kernel of rank 1 fails, so the launch of the call itself breaks the context: from then on every
// function of the driver returns the error.
TEST(ALostContext, InTheLaunchOfTheCallIsToldToThePeers) {
  cuda::fake::Control failing = small_devices();
  failing.register_kernel = [](cuda::fake::FakeKernel kernel) {
    kernel.run = [run = kernel.run](const cuda::fake::FakeLaunch& launch) {
      const bool has_calls = static_cast<const tutti::device::Launch*>(launch.arguments[0])->call_count > 0;
      return launch.device == 3 && has_calls ? cuda::CUresult::kIllegalAddress : run(launch);
    };
    small_devices().register_kernel(std::move(kernel));
  };
  driver();
  register_device_kernels(failing, FakeDeviceOptions::from_environment());
  Communicators ranks = ranks_on({2, 3});
  register_device_kernels(small_devices(), FakeDeviceOptions::from_environment());
  std::barrier<> step(2);
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(2 + rank.rank());
    const cuda::DeviceMemory memory = gpu.allocate(4096);
    if (rank.rank() == 1) {
      // The kernel may fail before the call has returned, and then the call may report it.
      const auto since = Clock::now();
      static_cast<void>(rank.run(sum_of(memory), gpu.options()));
      EXPECT_EQ(driver().api().stream_synchronize(gpu.stream()), cuda::CUresult::kIllegalAddress);
      const Status status = rank.async_status();
      expect_reported(status, since, 1);
      EXPECT_TRUE(status.ok() || status.error().code == ErrorCode::kDevice) << to_string(status.error());
      step.arrive_and_wait();
    } else {
      step.arrive_and_wait();
      const auto since = Clock::now();
      expect_reported(start_and_wait(rank, gpu, memory), since, 1);
      gpu.synchronize();
    }
    expect_unusable(rank);
  });
}

// A driver function that fails during the call of rank 1, after rank 0 has made its call.
struct Refusal {
  Devices devices;
  const char* function;
  bool first_call;  // whether it fails in the first call of the communicator, or in a later one
  cuda::CUresult result = cuda::CUresult::kOutOfMemory;
};

std::string name_of(const Refusal& refusal) {
  return std::string(refusal.function) + (refusal.result == cuda::CUresult::kOutOfMemory ? "" : "BreaksTheContext") +
         (refusal.first_call ? "AtTheFirstCall" : "Later") +
         (refusal.devices[0] == refusal.devices[1] ? "OnOneGpu" : "OnTwoGpus");
}

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << name_of(refusal); }

class ARefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(ARefusal, IsToldToThePeers) {
  const Refusal& refusal = GetParam();
  const cuda::fake::Control& fake = small_devices();
  Communicators ranks = ranks_on(refusal.devices);
  std::barrier<> step(2);
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(refusal.devices[static_cast<std::size_t>(rank.rank())]);
    const cuda::DeviceMemory memory = gpu.allocate(4096);
    if (!refusal.first_call) {
      EXPECT_TRUE(start_and_wait(rank, gpu, memory).ok());
    }
    const std::uint64_t before = detail::calls_on_device(*ranks[0]);
    step.arrive_and_wait();
    if (rank.rank() == 0) {
      const auto since = Clock::now();
      auto work = rank.start(sum_of(memory), gpu.options());
      expect_reported(work.ok() ? work->wait() : Status(work.error()), since, 1);
      expect_unusable(rank);
    } else {
      while (detail::calls_on_device(*ranks[0]) == before) std::this_thread::yield();
      fake.fail_here(refusal.function, refusal.result);
      const auto since = Clock::now();
      expect_reported(rank.run(sum_of(memory), gpu.options()), since, 1);
      fake.forget_faults();
      expect_unusable(rank);
    }
    gpu.synchronize();
    step.arrive_and_wait();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Refusals, ARefusal,
    ::testing::Values(Refusal{{0, 0}, "cuMemAlloc", true}, Refusal{{0, 1}, "cuMemAlloc", true},
                      Refusal{{0, 0}, "cuLaunchCooperativeKernel", false},
                      Refusal{{0, 0}, "cuLaunchCooperativeKernel", false, cuda::CUresult::kIllegalAddress},
                      Refusal{{0, 1}, "cuLaunchKernel", false},
                      Refusal{{0, 1}, "cuLaunchKernel", false, cuda::CUresult::kIllegalAddress},
                      Refusal{{0, 0}, "cuEventRecord", false}, Refusal{{0, 1}, "cuEventRecord", false}),
    [](const auto& tested) { return name_of(tested.param); });

}  // namespace
}  // namespace tutti::testing

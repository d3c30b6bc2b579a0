// A rank whose GPU is lost to it (a kernel failed, the driver refuses) is lost to its peers, too: they hear of it soon,
// by name, long before any deadline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <optional>
#include <ostream>
#include <string>
#include <thread>

#include "tests/device/unit/calls_support.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using Devices = std::vector<std::int32_t>;

constexpr std::chrono::seconds kSoon{10};  // on a busy machine; the communicators' timeouts are 60 s

// A kernel that runs until it is told to, and then fails.
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

Status started(Communicator& rank, const Gpu& gpu, const cuda::DeviceMemory& memory) {
  auto work = rank.start(sum_of(memory), gpu.options());
  return work.ok() ? work->wait() : Status(work.error());
}

// A thread that asks for nothing but the stream.
void wait_until_lost(const Gpu& gpu) {
  const auto start = Clock::now();
  while (driver().api().stream_synchronize(gpu.stream()) == cuda::CUresult::kSuccess && Clock::now() - start < kSoon) {
    std::this_thread::yield();
  }
}

// `rank` to blame, where that is one.
void expect_told(const Status& status, Clock::time_point since, std::optional<std::int32_t> rank) {
  ASSERT_FALSE(status.ok());
  EXPECT_LT(Clock::now() - since, kSoon);
  EXPECT_NE(status.error().code, ErrorCode::kTimeout);
  EXPECT_GE(status.error().scope, ErrorScope::kCommunicator);
  if (!rank) return;
  EXPECT_EQ(status.error().rank, *rank) << to_string(status.error());
  EXPECT_THAT(status.error().message, HasSubstr("rank " + std::to_string(*rank)));
}

// On host memory, too, the communicator has ended.
void expect_unusable(Communicator& rank) {
  std::vector<std::int32_t> host(4);
  EXPECT_FALSE(rank.all_reduce(host.data(), host.data(), 4, DataType::kInt32, ReduceOp::kSum).ok());
}

enum class When { kBefore, kIn, kBehind };

struct Loss {
  Devices devices;
  When when;
};

std::string name_of(const Loss& loss) {
  constexpr const char* kNames[] = {"BeforeTheCall", "InTheCall", "BehindTheCall"};
  return std::string(kNames[static_cast<int>(loss.when)]) +
         (loss.devices.back() == loss.devices.front() ? "OnOneGpu" : "OnTwoGpus");
}

void PrintTo(const Loss& loss, std::ostream* out) { *out << name_of(loss); }

class ALostContext : public ::testing::TestWithParam<Loss> {};

// Rank 1's; where the two share a GPU it is that of both, and rank 0 has called before.
TEST_P(ALostContext, IsToldToThePeers) {
  const auto& [devices, when] = GetParam();
  const bool shared = devices[0] == devices[1];
  Communicators ranks = ranks_on(devices);
  std::barrier<> step(2);
  on_every_rank(ranks, [&, devices = devices, when = when](Communicator& rank) {
    const Gpu gpu(devices[static_cast<std::size_t>(rank.rank())]);
    const cuda::DeviceMemory memory = gpu.allocate(4096);
    EXPECT_TRUE(started(rank, gpu, memory).ok());
    step.arrive_and_wait();
    if (rank.rank() == 0) {
      const auto since = Clock::now();
      if (when == When::kBehind) step.arrive_and_wait();
      auto work = when == When::kBehind && shared ? Result<Work>(Work()) : rank.start(sum_of(memory), gpu.options());
      if (when != When::kBehind) step.arrive_and_wait();
      const Status told = when == When::kBehind && shared ? rank.async_status()
                          : work.ok()                     ? work->wait()
                                                          : Status(work.error());
      expect_told(told, since, shared ? std::nullopt : std::optional(1));
      expect_unusable(rank);
    } else {
      const auto own = shared ? std::nullopt : std::optional(1);
      BadKernel bad;
      bad.launch(gpu.stream());
      if (when == When::kIn) {
        EXPECT_TRUE(rank.run(sum_of(memory), gpu.options()).ok());
      }
      if (when != When::kBehind) step.arrive_and_wait();  // rank 0 has called
      bad.fail();
      wait_until_lost(gpu);
      const auto since = Clock::now();
      if (when == When::kBefore) expect_told(rank.run(sum_of(memory), gpu.options()), since, own);
      if (when == When::kBehind) {
        expect_told(rank.async_status(), since, own);
        step.arrive_and_wait();
      }
    }
    step.arrive_and_wait();
    if (rank.rank() == 1) expect_unusable(rank);
  });
}

INSTANTIATE_TEST_SUITE_P(Losses, ALostContext,
                         ::testing::Values(Loss{{2, 2}, When::kBefore}, Loss{{2, 3}, When::kBefore},
                                           Loss{{2, 2}, When::kIn}, Loss{{2, 3}, When::kIn},
                                           Loss{{2, 2}, When::kBehind}, Loss{{2, 3}, When::kBehind}),
                         [](const auto& tested) { return name_of(tested.param); });

// A call that waits for a rank of its own GPU: nobody calls anything, and still a rank elsewhere hears.
TEST(ALostContext, OfRanksThatWaitIsToldElsewhere) {
  const Devices devices = {2, 2, 3};
  Communicators ranks = ranks_on(devices);
  std::barrier<> step(3);
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(devices[static_cast<std::size_t>(rank.rank())]);
    const cuda::DeviceMemory memory = gpu.allocate(4096);
    EXPECT_TRUE(started(rank, gpu, memory).ok());
    step.arrive_and_wait();
    if (rank.rank() == 0) {
      EXPECT_TRUE(rank.run(sum_of(memory), gpu.options()).ok());
      BadKernel bad;
      const auto other = *cuda::Stream::create(driver());
      bad.launch(other.handle());
      bad.fail();
      static_cast<void>(other.synchronize());
    } else if (rank.rank() == 2) {
      const auto since = Clock::now();
      expect_told(started(rank, gpu, memory), since, std::nullopt);
    }
    step.arrive_and_wait();
  });
}

// What the driver refuses at rank 1's call when rank 0 has made its own.
struct Refusal {
  Devices devices;
  const char* function;
  bool first_call;  // of the communicator
};

std::string name_of(const Refusal& refusal) {
  return std::string(refusal.function) + (refusal.first_call ? "AtTheFirstCall" : "Later") +
         (refusal.devices[0] == refusal.devices[1] ? "OnOneGpu" : "OnTwoGpus");
}

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << name_of(refusal); }

class ARefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(ARefusal, IsToldToThePeers) {
  const auto& [devices, function, first_call] = GetParam();
  const cuda::fake::Control& fake = small_devices();
  Communicators ranks = ranks_on(devices);
  std::barrier<> step(2);
  on_every_rank(ranks, [&, devices = devices, first_call = first_call, function = function](Communicator& rank) {
    const Gpu gpu(devices[static_cast<std::size_t>(rank.rank())]);
    const cuda::DeviceMemory memory = gpu.allocate(4096);
    if (!first_call) {
      EXPECT_TRUE(started(rank, gpu, memory).ok());
    }
    step.arrive_and_wait();
    if (rank.rank() == 0) {
      const auto since = Clock::now();
      auto work = rank.start(sum_of(memory), gpu.options());
      step.arrive_and_wait();
      ASSERT_TRUE(work.ok());
      expect_told(work->wait(), since, 1);
      expect_unusable(rank);
    } else {
      step.arrive_and_wait();
      fake.fail(function, 1, cuda::CUresult::kOutOfMemory);
      const auto since = Clock::now();
      expect_told(rank.run(sum_of(memory), gpu.options()), since, 1);
      fake.forget_faults();
      expect_unusable(rank);
    }
    gpu.synchronize();
    step.arrive_and_wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Refusals, ARefusal,
                         ::testing::Values(Refusal{{0, 0}, "cuMemAlloc", true}, Refusal{{0, 1}, "cuMemAlloc", true},
                                           Refusal{{0, 0}, "cuLaunchCooperativeKernel", false},
                                           Refusal{{0, 1}, "cuLaunchKernel", false},
                                           Refusal{{0, 0}, "cuEventRecord", false},
                                           Refusal{{0, 1}, "cuEventRecord", false}),
                         [](const auto& tested) { return name_of(tested.param); });

}  // namespace
}  // namespace tutti::testing

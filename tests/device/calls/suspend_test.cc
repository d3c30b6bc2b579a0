// Tests of suspend() and resume() of communicators whose calls the GPUs carry out, on the fake driver.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/device/calls/calls_support.h"
#include "tests/support/patience.h"

namespace tutti::testing {
namespace {

using Devices = std::vector<std::int32_t>;

std::string error_of(const Status& status) { return status.ok() ? "" : to_string(status.error()); }

// The sum of one int32 from each rank, on its GPU. Returns 0 after an error.
std::int32_t sum_on_gpu(Communicator& rank, const Gpu& gpu) {
  const cuda::DeviceMemory memory = gpu.allocate(sizeof(std::int32_t));
  const std::int32_t own = rank.rank() + 1;
  Bytes bytes(sizeof(own));
  std::memcpy(bytes.data(), &own, sizeof(own));
  gpu.put(memory, bytes);
  const Status status =
      rank.all_reduce(pointer(memory), pointer(memory), 1, DataType::kInt32, ReduceOp::kSum, gpu.options());
  EXPECT_EQ(error_of(status), "");
  const Bytes got = gpu.get(memory);
  std::int32_t sum = 0;
  std::memcpy(&sum, got.data(), sizeof(sum));
  return status.ok() ? sum : 0;
}

TEST(DeviceSuspend, FreesTheMemoryAndTheGpusCarryOutCallsAgainAfterwards) {
  const Devices devices = {0, 1};
  Communicators ranks = ranks_on(devices);
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(devices[static_cast<std::size_t>(rank.rank())]);
    EXPECT_EQ(sum_on_gpu(rank, gpu), 3);
    EXPECT_GT(rank.device_memory_use(), 0U);
    EXPECT_EQ(error_of(rank.suspend()), "");
    EXPECT_FALSE(rank.runs_on_devices());
    EXPECT_EQ(rank.device_memory_use(), 0U);
    EXPECT_EQ(error_of(rank.suspend()), "");
    EXPECT_EQ(error_of(rank.resume()), "");
    EXPECT_TRUE(rank.runs_on_devices());
    EXPECT_EQ(sum_on_gpu(rank, gpu), 3);
  });
}

// The host carries out a call directly after suspend(). The stream of a rank that has left suspend() early waits for
// the other ranks, which must not free memory on its GPU any more.
TEST(DeviceSuspend, ACallCanFollowAtOnce) {
  const Devices devices = {0, 1, 2, 3};
  Communicators ranks = ranks_on(devices);
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(devices[static_cast<std::size_t>(rank.rank())]);
    for (int round = 0; round < 10; ++round) {
      EXPECT_EQ(error_of(rank.suspend()), "");
      EXPECT_EQ(sum_on_gpu(rank, gpu), 10);
      EXPECT_EQ(error_of(rank.resume()), "");
    }
  });
}

// The driver refuses memory to one of the ranks in resume(). All ranks remain suspended, and can resume later.
TEST(DeviceSuspend, AResumeThatFailsCanBeRepeated) {
  const Devices devices = {0, 1};
  Communicators ranks = ranks_on(devices);
  on_every_rank(ranks, [&](Communicator& rank) {
    EXPECT_EQ(error_of(rank.suspend()), "");
    if (rank.rank() == 1) small_devices().fail_here("cuMemAlloc", cuda::CUresult::kOutOfMemory);
    const Status resumed = rank.resume();
    ASSERT_FALSE(resumed.ok());
    EXPECT_EQ(resumed.error().scope, ErrorScope::kCall) << to_string(resumed.error());
    EXPECT_FALSE(rank.runs_on_devices());
    EXPECT_EQ(error_of(rank.resume()), "");
    const Gpu gpu(devices[static_cast<std::size_t>(rank.rank())]);
    EXPECT_EQ(sum_on_gpu(rank, gpu), 3);
  });
}

// A call of rank 0 cannot end, because its stream is held up. Rank 0 leaves the communicator nevertheless, so that
// rank 1 does not wait for it in vain.
TEST(DeviceFinalize, ACallThatDoesNotEndDoesNotKeepTheRankFromLeaving) {
  CommunicatorOptions options;
  options.timeout = test::scaled(std::chrono::seconds(1));  // finalize() waits for one second longer
  Communicators ranks = ranks_on({0, 1}, options);
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(rank.rank());
    if (rank.rank() == 1) {
      CallOptions patient;
      patient.timeout = test::patience();
      const Status refused = rank.barrier(patient);
      ASSERT_FALSE(refused.ok());
      EXPECT_NE(refused.error().code, ErrorCode::kTimeout) << to_string(refused.error());
      EXPECT_EQ(refused.error().rank, 0) << to_string(refused.error());
      return;
    }
    const cuda::DeviceMemory memory = gpu.allocate(sizeof(std::int32_t));
    const auto pinned = *cuda::PinnedMemory::allocate(driver(), sizeof(std::int32_t));
    small_devices().hold_copy("cuMemcpyHtoDAsync", 1);
    EXPECT_EQ(
        driver().api().memcpy_htod_async(memory.address(), pinned.bytes().data(), sizeof(std::int32_t), gpu.stream()),
        cuda::CUresult::kSuccess);
    EXPECT_EQ(
        error_of(rank.all_reduce(pointer(memory), pointer(memory), 1, DataType::kInt32, ReduceOp::kSum, gpu.options())),
        "");
    EXPECT_FALSE(rank.finalize().ok());
    small_devices().release();
    gpu.synchronize();
  });
}

// suspend() and resume() replace the executor that the other functions use. A function that keeps using the old one
// after its end fails an assertion, or a thread sanitizer reports it.
TEST(DeviceSuspend, OtherThreadsMayAskForTheStateMeanwhile) {
  constexpr int kTimes = 30;
  Communicators ranks = ranks_on({0, 1});
  std::atomic<bool> over = false;
  std::vector<std::thread> askers;
  for (const auto& rank : ranks) {
    askers.emplace_back([&over, &rank = *rank] {
      while (!over.load()) {
        static_cast<void>(rank.runs_on_devices());
        static_cast<void>(rank.device_memory_use());
        EXPECT_EQ(error_of(rank.async_status()), "");
      }
    });
  }
  on_every_rank(ranks, [](Communicator& rank) {
    for (int time = 0; time < kTimes; ++time) {
      EXPECT_EQ(error_of(rank.suspend()), "");
      EXPECT_EQ(error_of(rank.resume()), "");
    }
  });
  over = true;
  for (std::thread& asker : askers) asker.join();
  for (const auto& rank : ranks) EXPECT_TRUE(rank->runs_on_devices());
}

// Whether or not the communicator has been resumed before the group is run.
void suspend_while_a_group_holds_a_call(bool resumed_before_run) {
  const Devices devices = {0, 1};
  Communicators ranks = ranks_on(devices);
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(devices[static_cast<std::size_t>(rank.rank())]);
    const cuda::DeviceMemory memory = gpu.allocate(sizeof(float));
    Group group;
    EXPECT_EQ(error_of(group.add(rank,
                                 {.kind = CollectiveKind::kAllReduce,
                                  .input = pointer(memory),
                                  .output = pointer(memory),
                                  .count = 1,
                                  .type = DataType::kFloat32},
                                 gpu.options())),
              "");
    std::thread other([&] {  // another thread, because the Group belongs to this one
      EXPECT_EQ(error_of(rank.suspend()), "");
      if (resumed_before_run) {
        EXPECT_EQ(error_of(rank.resume()), "");
      }
    });
    other.join();
    const Status status = group.run();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    if (!resumed_before_run) {
      EXPECT_EQ(error_of(rank.resume()), "");
    }
    EXPECT_EQ(sum_on_gpu(rank, gpu), 3);
  });
}

TEST(DeviceSuspend, ACallOfAGroupThatIsSuspendedMeanwhileIsRefused) { suspend_while_a_group_holds_a_call(false); }

TEST(DeviceSuspend, ACallOfAGroupIsRefusedAfterResumeToo) { suspend_while_a_group_holds_a_call(true); }

}  // namespace
}  // namespace tutti::testing

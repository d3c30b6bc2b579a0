// Tests of the plans that calls on GPUs use: how they are copied to GPU memory, and where their counters lie.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/device/calls/calls_support.h"
#include "tests/support/patience.h"

namespace tutti::testing {
namespace {

using Kind = CollectiveKind;
using Devices = std::vector<std::int32_t>;

// A plan needs zeroed memory for its counters. The arena has some. Plans that find no more room there zero memory of
// their own. With 64 blocks the arena has room for 16 plans, with 4 blocks for all plans of this test.
TEST(DevicePlans, PlansWithAndWithoutRoomInTheArenaAreRight) {
  const Devices devices = {0, 1};
  Communicators host = ranks_on(Devices(2, CommunicatorOptions::kNoDevice));
  Communicators gpus = ranks_on(devices);
  const unsigned before = small_devices().calls("cuMemsetD8Async");
  unsigned plans = 0;
  for (const Kind kind : {Kind::kAllReduce, Kind::kBroadcast, Kind::kReduce, Kind::kAllGather, Kind::kReduceScatter,
                          Kind::kAllToAll, Kind::kGather, Kind::kScatter}) {
    std::vector<Algorithm> algorithms = {Algorithm::kAuto};
    if (kind == Kind::kAllReduce) algorithms = {Algorithm::kRing, Algorithm::kOneShot, Algorithm::kTwoShot};
    for (const Algorithm algorithm : algorithms) {
      for (const std::size_t count : {std::size_t{5}, std::size_t{9'000}}) {
        const CallShape shape{.kind = kind, .count = count, .algorithm = algorithm};
        EXPECT_EQ(outcome(gpus, shape, devices), outcome(host, shape, {})) << to_string(kind) << " " << count;
        ++plans;
      }
    }
  }
  const bool many_blocks = std::string(std::getenv("TUTTI_DEVICE_BLOCKS")) == "64";
  const unsigned without_room = many_blocks ? plans - 16 : 0;
  EXPECT_EQ(small_devices().calls("cuMemsetD8Async") - before, 2 * without_room);
}

// The first call of a kind copies its plan to the GPU. If a stream that waits for the host holds up the queues of the
// GPU, the call must still return, because the host may not get to the store for which that stream waits otherwise.
TEST(DevicePlans, AFirstCallReturnsWhileAStreamOfTheGpuWaits) {
  Communicators ranks = ranks_on({0, 1});
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(rank.rank());
    const Gpu waiting(rank.rank());
    const cuda::DeviceMemory memory = gpu.allocate(3'000);
    gpu.put(memory, Bytes(3'000, std::byte{1}));
    test::BlockedStream held(driver(), waiting.stream());
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kOneShot}) {
      CallOptions options = gpu.options();
      options.algorithm = algorithm;
      const auto work = rank.start(
          {.input = pointer(memory), .output = pointer(memory), .count = 3'000, .type = DataType::kUint8}, options);
      EXPECT_TRUE(work.ok()) << to_string(work.error());
    }
    EXPECT_EQ(driver().api().stream_query(waiting.stream()), cuda::CUresult::kNotReady);
    held.release();
    EXPECT_EQ(gpu.get(memory), Bytes(3'000, std::byte{4}));
    const Status status = rank.async_status();
    EXPECT_TRUE(status.ok()) << to_string(status.error());
  });
}

// The copy of the plan is in the stream, although the kernel is not. The memory must not be freed before the copy.
TEST(DevicePlans, AFirstLaunchThatFailsLeavesItsMemory) {
  Communicators ranks = ranks_on({0});
  const Gpu gpu(0);
  const cuda::DeviceMemory memory = gpu.allocate(3'000);
  test::BlockedStream held(driver(), gpu.stream());
  small_devices().fail("cuLaunchKernel", 1, cuda::CUresult::kLaunchOutOfResources);
  const Status status =
      ranks[0]->all_reduce(pointer(memory), pointer(memory), 3'000, DataType::kUint8, ReduceOp::kSum, gpu.options());
  ASSERT_FALSE(status.ok());
  std::atomic<bool> ended = false;
  std::thread late([&] {
    EXPECT_TRUE(test::eventually([&] { return ended.load(); })) << "ending a communicator waits for a stream";
    held.release();
  });
  ranks.clear();
  ended = true;
  late.join();
  gpu.synchronize();
}

// A call of a Group is prepared when it is added. The capture of its stream may begin after that. The graph is never
// launched, so it must not be the graph that copies the plan.
TEST(DevicePlans, ACaptureMayBeginBetweenAddAndRun) {
  Communicators ranks = ranks_on({0, 0});
  const Gpu gpu(0);
  std::vector<cuda::DeviceMemory> memories;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    memories.push_back(gpu.allocate(3'000));
    gpu.put(memories.back(), Bytes(3'000, std::byte{7}));
  }
  Group group;
  const auto add = [&] {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const CollectiveCall call{
          .input = pointer(memories[r]), .output = pointer(memories[r]), .count = 3'000, .type = DataType::kUint8};
      ASSERT_TRUE(group.add(*ranks[r], call, gpu.options()).ok());
    }
  };
  add();
  const cuda::DriverApi& api = driver().api();
  ASSERT_EQ(api.stream_begin_capture(gpu.stream(), cuda::CaptureMode::kThreadLocal), cuda::CUresult::kSuccess);
  const Status captured = group.run();
  EXPECT_TRUE(captured.ok()) << to_string(captured.error());
  cuda::CUgraph graph = nullptr;
  ASSERT_EQ(api.stream_end_capture(gpu.stream(), &graph), cuda::CUresult::kSuccess);
  EXPECT_EQ(api.graph_destroy(graph), cuda::CUresult::kSuccess);
  add();
  const Status plain = group.run();
  EXPECT_TRUE(plain.ok()) << to_string(plain.error());
  for (const cuda::DeviceMemory& memory : memories) EXPECT_EQ(gpu.get(memory), Bytes(3'000, std::byte{14}));
}

// The first call of a plan copies the plan and waits for the copy. While a thread captures in the global mode, the
// driver forbids such a wait, in all threads, and then the capture is lost. Here, two threads capture at the same time.
TEST(DevicePlans, TheFirstCallOfAPlanLeavesCapturesInTheGlobalModeAlone) {
  Communicators ranks = ranks_on({0, 1});
  std::barrier together(2);
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(rank.rank());
    const cuda::DeviceMemory memory = gpu.allocate(1'000);
    gpu.put(memory, Bytes(1'000, std::byte{1}));
    together.arrive_and_wait();
    const test::CapturedGraph graph(
        driver(), gpu.stream(),
        [&] {
          const Status status =
              rank.all_reduce(pointer(memory), pointer(memory), 1'000, DataType::kUint8, ReduceOp::kSum, gpu.options());
          EXPECT_TRUE(status.ok()) << to_string(status.error());
        },
        cuda::CaptureMode::kGlobal);
    together.arrive_and_wait();
    graph.launch();
    EXPECT_EQ(gpu.get(memory), Bytes(1'000, std::byte{2}));
  });
}

// Number of calls of each driver function so far, without those of which the number depends on the processor time that
// threads get: a thread of the library polls events and then puts them into a pool, and a call makes an event (with
// cuCtxGetCurrent and cuEventCreate) only if the pool is empty.
std::map<std::string, unsigned> driver_calls() {
  std::map<std::string, unsigned> counts;
  const auto count = [&](const char* name, int, const auto&) { counts[name] = small_devices().calls(name); };
  cuda::for_each_function(driver().api(), count);
  for (const char* const name : {"cuEventQuery", "cuEventCreate", "cuCtxGetCurrent"}) counts.erase(name);
  return counts;
}

// Each call of the driver costs time on the host, and a short collective takes only a few microseconds. Today's calls
// are: one look at the memory, two at the stream, two records of events, one wait for the call before, and the launch.
// There is an eighth, a question for the current context, which driver_calls() does not count.
TEST(DevicePlans, ACallNeedsFewCallsOfTheDriver) {
  constexpr unsigned kCalls = 20;
  constexpr unsigned kMost = 7;
  constexpr std::size_t kBytes = 100'000;
  Communicators ranks = ranks_on({0, 1});
  std::map<std::string, unsigned> before;
  std::barrier together(2);
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(rank.rank());
    const cuda::DeviceMemory memory = gpu.allocate(kBytes);
    const auto make_calls = [&](std::size_t bytes) {
      for (unsigned i = 0; i < kCalls; ++i) {
        const Status status =
            rank.all_reduce(pointer(memory), pointer(memory), bytes, DataType::kUint8, ReduceOp::kSum, gpu.options());
        EXPECT_TRUE(status.ok()) << to_string(status.error());
      }
    };
    for (const std::size_t bytes : {std::size_t{1'000}, kBytes}) {  // the protocols LL and simple
      make_calls(bytes);                                            // copies the plan
      gpu.synchronize();
      together.arrive_and_wait();
      if (rank.rank() == 0) before = driver_calls();
      together.arrive_and_wait();
      make_calls(bytes);
      together.arrive_and_wait();
      unsigned all = 0;
      std::string listed;
      for (const auto& [name, count] : driver_calls()) {
        const unsigned made = count - before.at(name);
        all += made;
        if (made > 0) listed += name + " " + std::to_string(made) + ", ";
      }
      EXPECT_EQ(driver_calls().at("cuLaunchKernel") - before.at("cuLaunchKernel"), 2 * kCalls);
      // If the two threads that poll events start only now, each of them changes its capture mode.
      EXPECT_LE(all, 2 * kCalls * kMost + 4) << "by " << 2 * kCalls << " calls of " << bytes << " bytes: " << listed;
      together.arrive_and_wait();
      gpu.synchronize();
    }
  });
}

}  // namespace
}  // namespace tutti::testing

// Tests of calls on device memory that are captured into graphs, with the fake driver. Each replay is a call of its
// own. Calls and replays run in the order in which the streams reach them, even if peers, errors or the end of the
// communicator interfere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "tests/device/calls/staged.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;
using Kind = CollectiveKind;
using Clock = std::chrono::steady_clock;

// Calls must end sooner than the timeouts of the communicators, which are patience().
const std::chrono::milliseconds kSoon = patience() * 2 / 3;

std::byte byte(std::size_t value) { return static_cast<std::byte>(value); }

void sum(Communicator& rank, const Gpu& gpu, const cuda::DeviceMemory& from, const cuda::DeviceMemory& to) {
  const Status status =
      rank.all_reduce(pointer(from), pointer(to), from.bytes(), DataType::kUint8, ReduceOp::kSum, on(gpu));
  EXPECT_TRUE(status.ok()) << to_string(status.error());
}

TEST(CapturedCalls, EachReplayTakesItsOwnInput) {
  for (const JobConfiguration& configuration : {kConfigurations[0], kConfigurations[1], kAttachedConfigurations[0]}) {
    SCOPED_TRACE(configuration.name);
    Communicators ranks = make_configured_ranks(configuration, 2);
    on_every_rank(ranks, [](Communicator& rank) {
      const auto me = static_cast<std::size_t>(rank.rank());
      const Gpu gpu(rank.rank());
      const cuda::DeviceMemory input = gpu.allocate(100'000);
      const cuda::DeviceMemory output = gpu.allocate(100'000);
      const cuda::DeviceMemory all = gpu.allocate(200'000);
      const cuda::DeviceMemory got = gpu.allocate(100'000);
      const CapturedGraph graph(driver(), gpu.stream(), [&] {
        sum(rank, gpu, input, output);
        // Work that the stream does between two calls must also run between them in the graph.
        EXPECT_EQ(driver().api().memset_d8_async(output.address(), 77, 1, gpu.stream()), cuda::CUresult::kSuccess);
        EXPECT_TRUE(rank.all_gather(pointer(output), pointer(all), 100'000, DataType::kUint8, on(gpu)).ok());
        Group group;
        const auto peer = static_cast<std::int32_t>(1 - me);
        EXPECT_TRUE(group.send(rank, pointer(input), 100'000, DataType::kUint8, peer, on(gpu)).ok());
        EXPECT_TRUE(group.receive(rank, pointer(got), 100'000, DataType::kUint8, peer, on(gpu)).ok());
        EXPECT_TRUE(group.run().ok());
      });
      for (std::size_t replay = 0; replay < 4; ++replay) {
        gpu.put(input, Bytes(100'000, byte(10 * replay + me)));
        graph.launch();
        Bytes expected(100'000, byte(20 * replay + 1));
        expected[0] = byte(77);
        EXPECT_EQ(gpu.get(output), expected) << replay;
        expected.insert(expected.end(), expected.begin(), expected.end());
        EXPECT_EQ(gpu.get(all), expected) << replay;
        EXPECT_EQ(gpu.get(got), Bytes(100'000, byte(10 * replay + 1 - me))) << replay;
      }
      const Status status = rank.async_status();
      EXPECT_TRUE(status.ok()) << to_string(status.error());
    });
  }
}

// Several replays are submitted without waiting for them.
TEST(CapturedCalls, ReplaysFollowEachOtherInTheStream) {
  Communicators ranks = make_ranks(3);
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(rank.rank() % 2);
    const cuda::DeviceMemory memory = gpu.allocate(64);
    gpu.put(memory, Bytes(64, byte(1)));
    const CapturedGraph graph(driver(), gpu.stream(), [&] { sum(rank, gpu, memory, memory); });
    for (int replay = 0; replay < 5; ++replay) graph.launch();
    EXPECT_EQ(gpu.get(memory), Bytes(64, byte(243)));
  });
}

TEST(CapturedCalls, RanksWithoutADeviceMeetThem) {
  Communicators ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    if (rank.rank() == 1) {
      for (std::size_t replay = 0; replay < 3; ++replay) {
        Bytes host(64, byte(replay));
        ASSERT_TRUE(rank.all_reduce(host.data(), host.data(), 64, DataType::kUint8, ReduceOp::kSum).ok());
        EXPECT_EQ(host, Bytes(64, byte(5 + replay)));
      }
      return;
    }
    const Gpu gpu(0);
    const cuda::DeviceMemory input = gpu.allocate(64);
    const cuda::DeviceMemory output = gpu.allocate(64);
    gpu.put(input, Bytes(64, byte(5)));
    const CapturedGraph graph(driver(), gpu.stream(), [&] { sum(rank, gpu, input, output); });
    for (std::size_t replay = 0; replay < 3; ++replay) {
      graph.launch();
      EXPECT_EQ(gpu.get(output), Bytes(64, byte(5 + replay)));
    }
  });
}

// The stream of rank 0 runs everything later than that of rank 1. Calls that were made after the launch of a graph must
// nevertheless run after the replay.
TEST(CapturedCalls, OtherCallsKeepTheirPlaceBetweenReplays) {
  Communicators ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(0);
    const cuda::DeviceMemory one = gpu.allocate(64);
    const cuda::DeviceMemory all = gpu.allocate(128);
    gpu.put(one, Bytes(64, byte(1)));
    const CapturedGraph graph(driver(), gpu.stream(), [&] { sum(rank, gpu, one, one); });
    std::optional<BlockedStream> hold;
    if (rank.rank() == 0) hold.emplace(driver(), gpu.stream());
    std::vector<Work> works;
    for (int round = 0; round < 3; ++round) {
      graph.launch();
      auto work = rank.start({.kind = Kind::kAllGather,
                              .input = pointer(one),
                              .output = pointer(all),
                              .count = 64,
                              .type = DataType::kInt8},
                             on(gpu));
      ASSERT_TRUE(work.ok()) << to_string(work.error());
      works.push_back(*std::move(work));
    }
    if (hold) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time in which a call could wrongly end
      EXPECT_FALSE(works.back().test());
      hold->release();
    }
    for (Work& work : works) EXPECT_TRUE(work.wait().ok());
    EXPECT_EQ(gpu.get(all), Bytes(128, byte(8)));
    EXPECT_TRUE(rank.async_status().ok());
  });
}

TEST(CapturedCalls, AWorkOfTheCaptureIsDoneAtOnce) {
  Communicators ranks = make_ranks(2);
  const Gpu gpu(0);
  const cuda::DeviceMemory memory = gpu.allocate(64);
  std::optional<Work> work;
  const CapturedGraph graph(
      driver(), gpu.stream(),
      [&] {
        auto started = ranks[0]->start({.kind = Kind::kAllReduce,
                                        .input = pointer(memory),
                                        .output = pointer(memory),
                                        .count = 64,
                                        .type = DataType::kInt8},
                                       on(gpu));
        ASSERT_TRUE(started.ok()) << to_string(started.error());
        work.emplace(*std::move(started));
      },
      cuda::CaptureMode::kGlobal);
  EXPECT_TRUE(work->test());
  EXPECT_TRUE(work->wait().ok());
}

TEST(CapturedCalls, WhatAReplayMeetsIsToldAndTheStreamGoesOn) {
  Communicators ranks = make_ranks(2);
  const Gpu gpu(0);
  const cuda::DeviceMemory memory = gpu.allocate(64);
  const CapturedGraph graph(driver(), gpu.stream(), [&] { sum(*ranks[0], gpu, memory, memory); });
  const auto start = Clock::now();
  graph.launch();
  ranks[1]->abort();
  gpu.synchronize();
  const Status status = ranks[0]->async_status();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kAborted);
  EXPECT_EQ(status.error().rank, 1);
  graph.launch();  // the communicator is broken, so this replay does nothing
  gpu.synchronize();
  EXPECT_FALSE(ranks[0]->async_status().ok());
  EXPECT_LT(Clock::now() - start, kSoon);
}

// The rank itself calls abort(). A replay in progress and a later replay must end.
TEST(CapturedCalls, AnAbortEndsReplays) {
  Communicators ranks = make_ranks(2);
  const Gpu gpu(0);
  const cuda::DeviceMemory memory = gpu.allocate(64);
  const CapturedGraph graph(driver(), gpu.stream(), [&] { sum(*ranks[0], gpu, memory, memory); });
  const auto start = Clock::now();
  graph.launch();
  graph.launch();
  ranks[0]->abort();
  gpu.synchronize();
  graph.launch();
  gpu.synchronize();
  EXPECT_LT(Clock::now() - start, kSoon);
  EXPECT_EQ(ranks[0]->async_status().error().code, ErrorCode::kAborted);
}

// The queue of rank 0 is full when its stream reaches the call, so the call is refused. The caller has long returned,
// and the call has no number on this rank, so the communicator cannot be used any more, and the other rank is told.
TEST(CapturedCalls, ARefusedReplayIsToldToThePeers) {
  Bytes host(64);
  const CollectiveCall call{.input = host.data(), .output = host.data(), .count = 64, .type = DataType::kUint8};
  Communicators ranks = make_ranks(2);
  const Gpu gpu(0);
  const cuda::DeviceMemory memory = gpu.allocate(64);
  const CapturedGraph graph(driver(), gpu.stream(), [&] { sum(*ranks[0], gpu, memory, memory); });
  std::vector<Work> works;
  auto work = ranks[0]->start(call);
  for (; work.ok(); work = ranks[0]->start(call)) works.push_back(*std::move(work));
  ASSERT_THAT(work.error().message, HasSubstr("operations are under way already"));
  graph.launch();
  gpu.synchronize();
  const Status status = ranks[0]->async_status();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("operations are under way already"));
  ASSERT_EQ(status.error().scope, ErrorScope::kCommunicator) << to_string(status.error());
  for (Work& refused : works) EXPECT_FALSE(refused.wait().ok());
  static_cast<void>(
      ranks[1]->run(call));  // may succeed, because rank 0 has already written its value for the first call
  const Status theirs = ranks[1]->run(call);
  ASSERT_FALSE(theirs.ok());
  EXPECT_EQ(theirs.error().rank, 0) << to_string(theirs.error());
}

// After a captured call, the streams submit the calls. The context of rank 0 is lost before its stream reaches such a
// call, so the call is never submitted. Rank 0 does not call async_status(), but the other rank must be told.
TEST(CapturedCalls, ACallThatItsStreamNeverReachesIsToldToThePeers) {
  std::atomic<bool> fails = false;
  fake().register_kernel({"bad", {}, [&fails](const cuda::fake::FakeLaunch&) {
                            while (!fails) std::this_thread::yield();
                            return cuda::CUresult::kIllegalAddress;
                          }});
  Communicators ranks = make_ranks(2);
  on_every_rank(ranks, [&fails](Communicator& rank) {
    if (rank.rank() == 1) {
      std::vector<std::int32_t> host(16);
      const Status status = rank.all_reduce(host.data(), host.data(), 16, DataType::kInt32, ReduceOp::kSum);
      ASSERT_FALSE(status.ok());
      EXPECT_NE(status.error().code, ErrorCode::kTimeout) << to_string(status.error());
      EXPECT_EQ(status.error().rank, 0) << to_string(status.error());
      return;
    }
    const Gpu first(0);
    const cuda::DeviceMemory captured = first.allocate(64);
    const CapturedGraph graph(driver(), first.stream(), [&] { sum(rank, first, captured, captured); });
    cuda::CUcontext own = fake().create_context(0);
    {
      const Gpu gpu(0, own);
      const cuda::DeviceMemory memory = gpu.allocate(64);
      const auto module = *cuda::Module::load(driver(), "fake image");
      EXPECT_EQ(
          driver().api().launch_kernel(*module.function("bad"), 1, 1, 1, 32, 1, 1, 0, gpu.stream(), nullptr, nullptr),
          cuda::CUresult::kSuccess);
      auto work = rank.start(
          {.input = pointer(memory), .output = pointer(memory), .count = 16, .type = DataType::kInt32}, on(gpu));
      fails = true;
      ASSERT_TRUE(work.ok()) << to_string(work.error());
      const Status status = work->wait();
      ASSERT_FALSE(status.ok());
      EXPECT_GE(status.error().scope, ErrorScope::kCommunicator);
      EXPECT_THAT(status.error().message, HasSubstr("before a call's input was copied"));
      fake().destroy_context(own);
    }
  });
}

TEST(CapturedCalls, AGraphMayOutliveItsCommunicator) {
  for (const bool running : {false, true}) {
    Communicators ranks = make_ranks(2);
    const Gpu gpu(0);
    const cuda::DeviceMemory memory = gpu.allocate(64);
    const cuda::DeviceMemory after = gpu.allocate(64);
    gpu.put(memory, Bytes(64, byte(1)));
    std::optional<CapturedGraph> graph;
    graph.emplace(driver(), gpu.stream(), [&] {
      sum(*ranks[0], gpu, memory, memory);
      EXPECT_EQ(driver().api().memset_d8_async(after.address(), 3, 64, gpu.stream()), cuda::CUresult::kSuccess);
    });
    const auto start = Clock::now();
    if (running) graph->launch();  // this replay waits for rank 1, which makes no call
    ranks.clear();
    EXPECT_LT(Clock::now() - start, kSoon);
    for (int replay = 0; replay < 2; ++replay) {
      gpu.put(after, Bytes(64, byte(0)));
      graph->launch();
      EXPECT_EQ(gpu.get(after), Bytes(64, byte(3))) << "the stream did not continue";
    }
    EXPECT_LT(Clock::now() - start, kSoon);
  }
}

TEST(CapturedCalls, AContextThatIsLostInAReplayIsTold) {
  Communicators ranks = make_ranks(2);
  fake().register_kernel({"bad", {}, [](const cuda::fake::FakeLaunch&) { return cuda::CUresult::kIllegalAddress; }});
  on_every_rank(ranks, [&](Communicator& rank) {
    std::vector<std::int32_t> host(16);
    if (rank.rank() == 1) {
      const auto start = Clock::now();
      const Status status = rank.all_reduce(host.data(), host.data(), 16, DataType::kInt32, ReduceOp::kSum);
      EXPECT_LT(Clock::now() - start, kSoon);
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().rank, 0);
      return;
    }
    cuda::CUcontext own = fake().create_context(0);
    {
      const Gpu gpu(0, own);
      const cuda::DeviceMemory memory = gpu.allocate(64);
      const auto module = *cuda::Module::load(driver(), "fake image");
      cuda::CUfunction bad = *module.function("bad");
      const CapturedGraph graph(driver(), gpu.stream(), [&] {
        EXPECT_EQ(driver().api().launch_kernel(bad, 1, 1, 1, 32, 1, 1, 0, gpu.stream(), nullptr, nullptr),
                  cuda::CUresult::kSuccess);
        sum(rank, gpu, memory, memory);
      });
      EXPECT_TRUE(rank.async_status().ok());
      graph.launch();
      const auto start = Clock::now();
      Status status;
      while ((status = rank.async_status()).ok() && Clock::now() - start < kSoon) std::this_thread::yield();
      ASSERT_FALSE(status.ok());
      EXPECT_THAT(status.error().message, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
      EXPECT_TRUE(rank.async_status().ok()) << "the error was reported twice";
      fake().destroy_context(own);
    }
  });
}

}  // namespace
}  // namespace tutti::test

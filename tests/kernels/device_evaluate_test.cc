// Tests of the device evaluator. For the same plan, it must give the same bits as the host executor, with every
// protocol, in every order of threads, and with strongly and weakly ordered memory. Also tests calls that stop, resume
// and fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "algorithms/algorithms.h"
#include "device_group.h"
#include "device_subject.h"
#include "plan/collective.h"

namespace tutti::testing {
namespace {

using device::Protocol;
using emu::Emulator;
using emu::Policy;

std::vector<CollectiveKind> kinds() {
  const auto all = all_collectives();
  return {all.begin(), all.end()};
}

class Evaluate : public ::testing::TestWithParam<std::tuple<CollectiveKind, Protocol>> {};

// TUTTI_ROUNDS is larger in the long test. Each round has different schedules, types and operations, in place or not.
TEST_P(Evaluate, EveryAlgorithmLeavesTheBitsOfTheHost) {
  const auto [kind, protocol] = GetParam();
  std::uint64_t seed = 1;
  for (int round = 0; round < TUTTI_ROUNDS; ++round, ++seed) {
    for (const Algorithm algorithm : algorithms_of(kind)) {
      for (const std::uint32_t ranks : {2u, 3u, 4u, 8u}) {
        const std::uint32_t root = has_root(kind) ? static_cast<std::uint32_t>(seed % ranks) : 0;
        const bool windows = protocol == Protocol::kSimple && seed / 2 % 2 == 0;
        const Subject subject(kind, algorithm, ranks,
                              {.protocol = protocol,
                               .slot_bytes = small_slot(protocol),
                               .slices = 1 + static_cast<std::uint32_t>(seed / 2 % 3),
                               .few_blocks = seed / 6 % 2 == 1,
                               .windows = windows},
                              root);
        DeviceGroup device(subject.generator, subject.group);
        for (int call = 0; call < 2; ++call, ++seed) {  // the second call continues with the counters of the first
          const auto policy = static_cast<Policy>(seed % 3);
          subject.run(device, subject.call(call == 0 ? 3.3 : 0.4, seed), schedule(seed, policy, seed / 3 % 2 == 0));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Protocols, Evaluate,
                         ::testing::Combine(::testing::ValuesIn(kinds()),
                                            ::testing::Values(Protocol::kSimple, Protocol::kLl, Protocol::kLl128)),
                         [](const auto& test) {
                           return std::string(to_string(std::get<0>(test.param))) + name_of(std::get<1>(test.param));
                         });

class Protocols : public ::testing::TestWithParam<Protocol> {};
INSTANTIATE_TEST_SUITE_P(All, Protocols, ::testing::Values(Protocol::kSimple, Protocol::kLl, Protocol::kLl128),
                         [](const auto& test) { return name_of(test.param); });

// The blocks of the ranks differ in length, and one is empty.
TEST_P(Protocols, BlocksOfDifferentLengthsLeaveTheBitsOfTheHost) {
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    for (const Algorithm algorithm : algorithms_of(kind)) {
      const Subject subject(
          kind, algorithm, 4,
          {.protocol = GetParam(), .slot_bytes = small_slot(GetParam()), .windows = GetParam() == Protocol::kSimple});
      DeviceGroup device(subject.generator, subject.group);
      CallOptions call;
      call.lengths.counts = {100, 0, 1, 333};
      call.in_place = algorithm == Algorithm::kRing;
      subject.run(device, call, schedule(7, Policy::kRandom, true));
      if (HasFatalFailure()) return;
    }
  }
}

// The plan has several channels that wait for each other, in the same tile and for the previous tile.
TEST_P(Protocols, ChannelsOfACompositionWaitForEachOther) {
  for (const Algorithm algorithm : {Algorithm::kHierarchical, Algorithm::kHierarchicalTree}) {
    Subject subject(CollectiveKind::kAllReduce, Algorithm::kRing, 5,
                    {.protocol = GetParam(), .slot_bytes = small_slot(GetParam()), .slices = 2});
    subject.generator = find_generator({.ranks = 5, .nodes = {0, 0, 0, 1, 1}}, algorithm).value();
    subject.name = "hierarchical";
    DeviceGroup device(subject.generator, subject.group);
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      subject.run(device, subject.call(3.2, seed), schedule(seed, static_cast<Policy>(seed % 3), seed % 2 == 0));
      if (HasFatalFailure()) return;
    }
  }
}

// A block with four warps or more handles each kind of entry of a step (receives, sends, ...) in other warps. In a
// smaller block, kinds share warps. So the order in which the entries are handled depends on the number of warps, and a
// thread that is ahead must not change what another thread still needs for the step before. The plans are those whose
// channels hand values to each other in scratch memory, and whose calls have several lengths.
TEST_P(Protocols, EveryNumberOfWarpsLeavesTheBitsOfTheHost) {
  const std::vector<std::pair<Collective, Algorithm>> plans = {
      {{.kind = CollectiveKind::kAllToAll, .ranks = 4}, Algorithm::kBruck},
      {{.ranks = 5, .nodes = {0, 0, 0, 1, 1}}, Algorithm::kHierarchical},
      {{.ranks = 5, .nodes = {0, 0, 0, 1, 1}}, Algorithm::kHierarchicalTree},
      {{.kind = CollectiveKind::kAllGather, .ranks = 4, .nodes = {0, 0, 1, 1}}, Algorithm::kHierarchical}};
  for (const unsigned threads : {64u, 96u, 160u}) {
    const GroupOptions group{.protocol = GetParam(),
                             .slot_bytes = small_slot(GetParam()),
                             .slices = 2,
                             .windows = GetParam() == Protocol::kSimple,
                             .threads = threads};
    for (const auto& [collective, algorithm] : plans) {
      Subject subject(CollectiveKind::kAllReduce, Algorithm::kRing, collective.ranks, group);
      subject.generator = find_generator(collective, algorithm).value();
      subject.name = std::string(to_string(algorithm)) + ", " + std::to_string(threads) + " threads";
      DeviceGroup device(subject.generator, subject.group);
      std::uint64_t seed = 1;
      for (const double tiles : {2.3, 0.4}) {
        subject.run(device, subject.call(tiles, seed), schedule(seed, static_cast<Policy>(seed % 3), seed % 2 == 0));
        if (HasFatalFailure()) return;
        ++seed;
      }
    }
  }
}

// A block that must not wait stops when a message or credit is missing, and a later launch continues at that step.
TEST_P(Protocols, StopsAtAnyStepAndGoesOnToTheSameBits) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDoubleTree, Algorithm::kTwoShot}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      const Subject subject(CollectiveKind::kAllReduce, algorithm, 4,
                            {.protocol = GetParam(),
                             .slot_bytes = small_slot(GetParam()),
                             .slices = 1 + static_cast<std::uint32_t>(seed % 3),
                             .windows = seed % 2 == 0,
                             .threads = seed % 2 == 0 ? 128u : 32u});
      const CallOptions call = subject.call(2.3, seed);
      const std::vector<RankBuffers> host = run_on_host(subject.generator, call, subject.max_chunk_bytes());
      std::vector<RankBuffers> gpu = make_buffers(subject.generator.shape, call);
      DeviceGroup device(subject.generator, subject.group);
      device.set_call(call, gpu);
      for (std::uint32_t rank = 0; rank < 4; ++rank) device.call(rank).stop_after_ns = seed <= 2 ? 0 : 3000;
      Emulator emulator(schedule(seed, Policy::kRandom, seed % 2 == 0));
      std::uint64_t launches = 0;
      std::vector<bool> begun(4);
      for (bool open = true; open && launches < 10'000; ++launches) {
        const auto rank = static_cast<std::uint32_t>((launches * 7 + launches / 5 * seed) % 4);
        const auto start = begun[rank] ? DeviceGroup::Start::kResume : DeviceGroup::Start::kBegin;
        begun[rank] = true;
        const std::uint64_t number = device.launch(emulator, rank, kernel_of(GetParam()), start);
        // Each launch runs alone or, with seed 4, while earlier launches are still running.
        ASSERT_NE(emulator.run_until([&] { return seed == 4 && emulator.done(number); }), Emulator::RunResult::kStuck)
            << emulator.report();
        open = false;
        for (std::uint32_t r = 0; r < 4; ++r) open |= !begun[r] || !device.finished(r);
      }
      EXPECT_GT(launches, 8u) << "no block has stopped";
      for (std::uint32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(device.status(rank).failure, 0u);
      expect_same_memory(host, gpu, subject.name + ", stopped");
    }
  }
}

// A short call of three ranks in a ring, which fails if a test changes it.
struct RingOfThree {
  RingOfThree(CollectiveKind kind, Protocol protocol)
      : subject(kind, Algorithm::kRing, 3, {.protocol = protocol, .slot_bytes = small_slot(protocol)}) {
    device.set_call(call, buffers);
    for (std::uint32_t rank = 0; rank < 3; ++rank) device.call(rank).timeout_ns = 100'000;
  }

  const Subject subject;
  DeviceGroup device{subject.generator, subject.group};
  const CallOptions call = subject.call(1, 2);
  std::vector<RankBuffers> buffers = make_buffers(subject.generator.shape, call);
  Emulator emulator{schedule(3, Policy::kRandom, false)};
};

TEST_P(Protocols, AMessageOfAnotherCallIsNamed) {
  RingOfThree ring(CollectiveKind::kAllReduce, GetParam());
  DeviceGroup& device = ring.device;
  Emulator& emulator = ring.emulator;
  device.call(1).digest ^= 1;
  device.launch_all(emulator, kernel_of(GetParam()));
  ASSERT_EQ(emulator.run(), Emulator::RunResult::kIdle) << emulator.report();
  EXPECT_EQ(device.failure(1).cause, device::Failure::kMismatch);
  EXPECT_EQ(device.failure(2).cause, device::Failure::kMismatch);
  EXPECT_EQ(device.failure(2).peer, 1u);
}

// Only a call that asks for it looks at the abort flag at its begin. Any other call sends what it can send without a
// wait.
TEST_P(Protocols, ACallThatChecksTheAbortFlagSendsNothingAfterAnAbort) {
  for (const bool checks : {false, true}) {
    RingOfThree ring(CollectiveKind::kAllGather, GetParam());
    DeviceGroup& device = ring.device;
    Emulator& emulator = ring.emulator;
    device.status(0).abort = 1;
    device.call(0).checks_abort = checks ? 1 : 0;
    device.launch_all(emulator, kernel_of(GetParam()));
    ASSERT_EQ(emulator.run(), Emulator::RunResult::kIdle) << emulator.report();
    std::uint64_t sent = 0;
    for (const auto& connection : device.connections()) sent += connection->from == 0 ? connection->send->number : 0;
    EXPECT_EQ(sent > 0, !checks);
    if (!checks) continue;
    EXPECT_FALSE(device.finished(0));
    EXPECT_EQ(device.failure(0).cause, device::Failure::kAborted);
    EXPECT_EQ(device.failure(1).cause, device::Failure::kTimedOut);
    EXPECT_EQ(device.failure(1).peer, 0u);
  }
}

TEST_P(Protocols, WaitsEndByTheDeadlineAndByTheAbortFlag) {
  for (const bool aborts : {false, true}) {
    RingOfThree ring(CollectiveKind::kAllReduce, GetParam());
    DeviceGroup& device = ring.device;
    Emulator& emulator = ring.emulator;
    for (const std::uint32_t rank : {0u, 1u}) {  // rank 2 is not launched
      if (aborts) device.call(rank).timeout_ns = device::kForever;
      device.launch(emulator, rank, kernel_of(GetParam()), DeviceGroup::Start::kBegin);
    }
    if (aborts) {
      ASSERT_EQ(emulator.run_until([&] { return emulator.turns() > 2000; }), Emulator::RunResult::kReached)
          << emulator.report();
      for (const std::uint32_t rank : {0u, 1u}) std::atomic_ref(device.status(rank).abort).store(1);
    }
    ASSERT_EQ(emulator.run(), Emulator::RunResult::kIdle) << emulator.report();
    EXPECT_EQ(device.failure(0).cause, aborts ? device::Failure::kAborted : device::Failure::kTimedOut);
    EXPECT_EQ(device.failure(0).peer, 2u);
    EXPECT_FALSE(device.finished(0));
  }
}

TEST(EvaluateMisuse, ACallBegunBeforeTheLastHasEndedIsRefused) {
  const Subject subject(CollectiveKind::kAllReduce, Algorithm::kRing, 2, {.slot_bytes = 128});
  DeviceGroup device(subject.generator, subject.group);
  const CallOptions call = subject.call(1, 2);
  std::vector<RankBuffers> gpu = make_buffers(subject.generator.shape, call);
  device.set_call(call, gpu);
  device.call(0).stop_after_ns = 0;
  Emulator emulator({});
  for (int i = 0; i < 2; ++i) {
    device.launch(emulator, 0, kernel_of(Protocol::kSimple), DeviceGroup::Start::kBegin);
    ASSERT_EQ(emulator.run(), Emulator::RunResult::kIdle) << emulator.report();
    EXPECT_EQ(device.failure(0).cause, i == 0 ? device::Failure::kNone : device::Failure::kMisused);
  }
}

TEST(EvaluateMisuse, TooFewSlotsForThePlanAreRefused) {
  const Subject subject(CollectiveKind::kAllReduce, Algorithm::kRing, 3, {.slots = 1, .slot_bytes = 128});
  ASSERT_EQ(subject.generator.shape.slots, 2);
  DeviceGroup device(subject.generator, subject.group);
  const CallOptions call = subject.call(1, 2);
  std::vector<RankBuffers> gpu = make_buffers(subject.generator.shape, call);
  device.set_call(call, gpu);
  Emulator emulator({});
  device.launch_all(emulator, kernel_of(Protocol::kSimple));
  ASSERT_EQ(emulator.run(), Emulator::RunResult::kIdle) << emulator.report();
  for (std::uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(device.failure(rank).cause, device::Failure::kMisused);
}

// With windows, data goes directly between the buffers of the ranks; without windows it goes through slots.
TEST(EvaluateWindows, ValuesTravelPastTheSlots) {
  for (const bool windows : {false, true}) {
    const Subject subject(CollectiveKind::kAllReduce, Algorithm::kTwoShot, 4,
                          {.slots = 4, .slot_bytes = 512, .windows = windows});
    DeviceGroup device(subject.generator, subject.group);
    CallOptions call = subject.call(1, 4);
    call.type = DataType::kFloat32;
    subject.run(device, call, schedule(5, Policy::kRoundRobin, false));
    std::size_t published = 0;
    std::size_t delivered = 0;
    for (const auto& connection : device.connections()) {
      for (const device::Envelope& envelope : connection->envelopes) {
        published += envelope.carrier == Carrier::kPublished ? 1 : 0;
        delivered += envelope.carrier == Carrier::kDelivered ? 1 : 0;
      }
    }
    EXPECT_EQ(published > 0, windows);
    EXPECT_EQ(delivered > 0, windows);
  }
}

}  // namespace
}  // namespace tutti::testing

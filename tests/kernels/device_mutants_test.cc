// Tests with deliberate synchronisation bugs (mutants) in the evaluator. At least two of a few random orders of threads
// must detect each bug, and the evaluator without the bug must pass the same runs. This shows that the tests with the
// emulator can detect such bugs. Connections have two slots of a few lines, so that every step has to wait.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "algorithms/algorithms.h"
#include "device_group.h"
#include "kernels/device/evaluate.h"

namespace tutti::testing {
namespace {

using device::Protocol;
using emu::Emulator;
using emu::Policy;

struct MissingBarrier : device::NoFaults {
  static constexpr bool kBarrierBeforePost = false;
};
struct RelaxedForRelease : device::NoFaults {
  static constexpr bool kReleasesTail = false;
};
struct OneCreditTooMany : device::NoFaults {
  static constexpr std::uint64_t kExtraCredits = 1;
};
struct OneFlagUnchecked : device::NoFaults {
  static constexpr bool kChecksBothFlags = false;
};
struct LinesNeverRenewed : device::NoFaults {
  static constexpr bool kRenewsLines = false;
};
struct OffersWithoutMessages : device::NoFaults {
  static constexpr bool kOffersToUse = false;
};
struct RelaxedCredit : device::NoFaults {
  static constexpr bool kReleasesCredit = false;
};
struct RelaxedTail : device::NoFaults {
  static constexpr bool kAcquiresTail = false;
};
struct NoDrain : device::NoFaults {
  static constexpr bool kDrains = false;
};
struct OneLineUnchecked : device::NoFaults {
  static constexpr bool kChecksEveryLine = false;
};

constexpr std::uint32_t kRanks = 4;
constexpr std::uint64_t kMessagesOfATile = 2 * (kRanks - 1);  // messages on each connection of the ring

struct Setting {
  Policy policy = Policy::kRandom;
  bool weak = false;
  std::uint64_t first_number = 0;
  bool stale_lines = false;
  std::uint64_t seeds = 10;
  CollectiveKind kind = CollectiveKind::kAllReduce;
};

// Fills the slots with lines as messages of 2^32 messages ago would have left them. Their 32-bit flags are equal to
// those of messages of the second call from now.
void leave_stale_lines(DeviceGroup& group, const GroupOptions& options) {
  for (const auto& connection : group.connections()) {
    for (std::uint32_t slot = 0; slot < options.slots; ++slot) {
      std::byte* lines = connection->slots[0].bytes + slot * options.slot_bytes + device::kHeaderBytes;
      const auto flag = static_cast<std::uint32_t>(options.first_number + kMessagesOfATile + slot + 1);
      for (std::uint64_t at = 0; at + 16 <= options.slot_bytes - device::kHeaderBytes; at += 16) {
        const std::uint32_t words[4] = {0xBAD, flag, 0xBAD, flag};
        std::memcpy(lines + at, words, sizeof(words));
      }
    }
  }
}

// Returns the number of seeds with which a run detects the bug: it ends with wrong bits or a failure, it is stuck, or a
// store overtakes a load (see weak_memory.h).
template <Protocol kProtocol, class Faults>
int found_by(const Setting& setting) {
  const Generator generator = find_generator({.kind = setting.kind, .ranks = kRanks}, Algorithm::kRing).value();
  // Long messages and 128 threads, because LL128 only gives work to every warp if a message has many lines.
  const GroupOptions options{.protocol = kProtocol,
                             .slots = 2,
                             .slot_bytes = 128 + 16 * 128,
                             .threads = 128,
                             .first_number = setting.first_number};
  CallOptions call;
  call.lengths.count = device::payload_bytes(kProtocol, options.slot_bytes) / 4 * kRanks * 2 - 77;
  const std::uint64_t max_chunk_bytes = device::payload_bytes(kProtocol, options.slot_bytes);
  const std::vector<RankBuffers> host = run_on_host(generator, call, max_chunk_bytes);
  int found = 0;
  for (std::uint64_t seed = 1; seed <= setting.seeds; ++seed) {
    DeviceGroup group(generator, options);
    Emulator emulator({.seed = seed, .policy = setting.policy, .yield_log2 = 5, .weak = setting.weak});
    const auto kernel = [](const device::Launch& launch) { device::evaluate<kProtocol, Faults>(launch); };
    bool wrong = false;
    if (setting.stale_lines) {
      leave_stale_lines(group, options);
      CallOptions brief;  // a short call: its messages leave most of the lines as they are
      brief.lengths.count = 8;
      std::vector<RankBuffers> buffers = make_buffers(generator.shape, brief);
      group.set_call(brief, buffers);
      group.launch_all(emulator, kernel);
      wrong = emulator.run() != Emulator::RunResult::kIdle;
    }
    std::vector<RankBuffers> gpu = make_buffers(generator.shape, call);
    group.set_call(call, gpu);
    group.launch_all(emulator, kernel);
    wrong = wrong || emulator.run() != Emulator::RunResult::kIdle || emulator.overtaking() > 0;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      wrong = wrong || group.status(rank).failure != 0 || host[rank].memory != gpu[rank].memory;
    }
    found += wrong ? 1 : 0;
  }
  return found;
}

template <Protocol kProtocol, class Faults>
void expect_found(const Setting& setting) {
  EXPECT_EQ((found_by<kProtocol, device::NoFaults>(setting)), 0) << "the evaluator without the bug fails";
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer would report the deliberate bug";
#endif
  EXPECT_GE((found_by<kProtocol, Faults>(setting)), 2) << "of " << setting.seeds << " seeds";
}

TEST(Mutants, AMissingBarrierIsFoundInSimple) { expect_found<Protocol::kSimple, MissingBarrier>({}); }
TEST(Mutants, AMissingBarrierIsFoundInLl) { expect_found<Protocol::kLl, MissingBarrier>({}); }
// This bug shows less often. A sender reads new credits only after it has used all that it knows of, so it seldom
// writes into a slot early.
TEST(Mutants, AMissingBarrierIsFoundInLl128) {
  expect_found<Protocol::kLl128, MissingBarrier>({.policy = Policy::kPriority, .seeds = 40});
}

// Only weakly ordered memory shows this bug.
TEST(Mutants, ARelaxedStoreInPlaceOfAReleaseIsFound) {
  expect_found<Protocol::kSimple, RelaxedForRelease>({.weak = true});
}

TEST(Mutants, ACreditThatIsNotReleasedIsFound) { expect_found<Protocol::kSimple, RelaxedCredit>({.weak = true}); }
// This bug only shows in a block that only receives. A block that also sends acquires its credits, and thereby sees
// everything that happened before.
TEST(Mutants, AMissingAcquireIsFound) {
  expect_found<Protocol::kSimple, RelaxedTail>({.weak = true, .kind = CollectiveKind::kBroadcast});
}

TEST(Mutants, OneCreditTooManyIsFoundInSimple) { expect_found<Protocol::kSimple, OneCreditTooMany>({}); }
TEST(Mutants, OneCreditTooManyIsFoundInLl) { expect_found<Protocol::kLl, OneCreditTooMany>({}); }
TEST(Mutants, OneCreditTooManyIsFoundInLl128) {
  expect_found<Protocol::kLl128, OneCreditTooMany>({.policy = Policy::kPriority});
}

TEST(Mutants, AnUncheckedFlagIsFoundInLl128) {
  expect_found<Protocol::kLl128, OneLineUnchecked>({.policy = Policy::kPriority, .seeds = 40});
}
TEST(Mutants, AnUncheckedFlagIsFound) { expect_found<Protocol::kLl, OneFlagUnchecked>({}); }

// The message numbers are just before the point at which the 32-bit flags wrap around and the slots must be rewritten
// completely.
TEST(Mutants, LinesThatAreNeverRenewedAreFound) {
  expect_found<Protocol::kLl, LinesNeverRenewed>(
      {.first_number = (std::uint64_t{1} << 32) - (std::uint64_t{1} << 21), .stale_lines = true});
}

// A rank's buffers are overwritten as soon as its own part of the call has finished, as its caller may do. Returns the
// number of seeds that detect the bug.
constexpr std::uint64_t kCallsToEnd = 40;
template <class Faults>
int found_behind_the_call() {
  const Generator generator =
      find_generator({.kind = CollectiveKind::kBroadcast, .ranks = kRanks}, Algorithm::kRing).value();
  const GroupOptions options{.slots = 4, .slot_bytes = 512, .windows = true};
  const auto kernel = [](const device::Launch& launch) { device::evaluate<Protocol::kSimple, Faults>(launch); };
  CallOptions call;
  call.lengths.count = 2 * options.slot_bytes / 4 * generator.shape.chunks;
  const std::vector<RankBuffers> host = run_on_host(generator, call, options.slot_bytes);
  int found = 0;
  for (std::uint64_t seed = 1; seed <= kCallsToEnd; ++seed) {
    DeviceGroup group(generator, options);
    Emulator emulator({.seed = seed, .policy = Policy::kPriority, .yield_log2 = 5});
    std::vector<RankBuffers> gpu = make_buffers(generator.shape, call);
    group.set_call(call, gpu);
    std::vector<std::uint64_t> launches;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      group.call(rank).least_published_bytes = 0;
      launches.push_back(group.launch(emulator, rank, kernel, DeviceGroup::Start::kBegin));
    }
    bool wrong = false;
    for (std::uint32_t ended = 0; ended < kRanks; ++ended) {
      const auto is_done = [&](std::uint64_t launch) { return launch != 0 && emulator.done(launch); };
      wrong = wrong ||
              emulator.run_until([&] { return std::ranges::any_of(launches, is_done); }) == Emulator::RunResult::kStuck;
      const auto first = std::ranges::find_if(launches, is_done);
      if (first == launches.end()) break;
      const auto rank = static_cast<std::size_t>(first - launches.begin());
      wrong = wrong || host[rank].memory != gpu[rank].memory;
      std::ranges::fill(gpu[rank].memory, std::byte{0xEE});
      *first = 0;
    }
    found += wrong ? 1 : 0;
  }
  return found;
}

TEST(Mutants, ACallThatDoesNotDrainIsFound) {
  EXPECT_EQ(found_behind_the_call<device::NoFaults>(), 0) << "the evaluator without the bug fails";
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer would report the deliberate bug";
#endif
  EXPECT_GE(found_behind_the_call<NoDrain>(), 2) << "of " << kCallsToEnd << " seeds";
}

// The first call has no tiles for one slice. The second call stores directly into the peers' buffers in that slice, and
// these are other buffers than in the first call. Returns the number of seeds that detect the bug.
template <class Faults>
int found_in_idle_slices() {
  const Generator generator =
      find_generator({.kind = CollectiveKind::kBroadcast, .ranks = kRanks}, Algorithm::kRing).value();
  const GroupOptions options{.slots = 4, .slot_bytes = 128, .slices = 2, .windows = true};
  const auto kernel = [](const device::Launch& launch) { device::evaluate<Protocol::kSimple, Faults>(launch); };
  int found = 0;
  for (std::uint64_t seed = 1; seed <= Setting{}.seeds; ++seed) {
    DeviceGroup group(generator, options);
    Emulator emulator({.seed = seed, .policy = Policy::kRandom, .yield_log2 = 5});
    bool wrong = false;
    std::vector<std::vector<RankBuffers>> buffers;  // kept for both calls, because the bug writes to those of the first
    for (const std::uint64_t tiles : {1, 2}) {
      CallOptions call;
      call.lengths.count = tiles * options.slot_bytes / 4 * generator.shape.chunks;
      call.seed = seed + 100 * tiles;
      const std::vector<RankBuffers> host = run_on_host(generator, call, options.slot_bytes);
      std::vector<RankBuffers>& gpu = buffers.emplace_back(make_buffers(generator.shape, call));
      // Make the buffers larger: the bug writes data of the second call, which is longer, to those of the first.
      for (RankBuffers& of_rank : gpu) of_rank.memory.resize(of_rank.memory.size() + 4096);
      group.set_call(call, gpu);
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) group.call(rank).least_published_bytes = device::kForever;
      // The root sends its first messages before its peers are launched.
      group.launch(emulator, 0, kernel, DeviceGroup::Start::kBegin);
      const std::uint64_t until = emulator.turns() + 5000;
      wrong = wrong || emulator.run_until([&] { return emulator.turns() >= until; }) == Emulator::RunResult::kStuck;
      for (std::uint32_t rank = 1; rank < kRanks; ++rank)
        group.launch(emulator, rank, kernel, DeviceGroup::Start::kBegin);
      wrong = wrong || emulator.run() != Emulator::RunResult::kIdle;
      for (std::uint32_t rank = 0; rank < kRanks; ++rank)
        wrong = wrong ||
                !std::ranges::equal(host[rank].memory, std::span(gpu[rank].memory).first(host[rank].memory.size()));
    }
    found += wrong ? 1 : 0;
  }
  return found;
}

TEST(Mutants, AnOfferInACallWithoutMessagesIsFound) {
  EXPECT_EQ(found_in_idle_slices<device::NoFaults>(), 0) << "the evaluator without the bug fails";
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer would report the deliberate bug";
#endif
  EXPECT_GE(found_in_idle_slices<OffersWithoutMessages>(), 2) << "of " << Setting{}.seeds << " seeds";
}

}  // namespace
}  // namespace tutti::testing

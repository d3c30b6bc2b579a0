// Planted bugs of synchronisation: each must be found by some order of threads out of a few, and the evaluator without
// it must pass the same runs. Connections have two slots of a few lines, so that every step waits for something.
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
using emu::Policy;
using emu::World;

struct MissingBarrier : device::Sound {
  static constexpr bool kBarrierBeforePost = false;
};
struct RelaxedForRelease : device::Sound {
  static constexpr bool kReleasesTail = false;
};
struct OneCreditTooMany : device::Sound {
  static constexpr std::uint64_t kExtraCredits = 1;
};
struct OneFlagUnchecked : device::Sound {
  static constexpr bool kChecksBothFlags = false;
};
struct LinesNeverRenewed : device::Sound {
  static constexpr bool kRenewsLines = false;
};
struct OffersWithoutMessages : device::Sound {
  static constexpr bool kOffersToUse = false;
};
struct RelaxedCredit : device::Sound {
  static constexpr bool kReleasesCredit = false;
};
struct RelaxedTail : device::Sound {
  static constexpr bool kAcquiresTail = false;
};
struct NoDrain : device::Sound {
  static constexpr bool kDrains = false;
};
struct OneLineUnchecked : device::Sound {
  static constexpr bool kChecksEveryLine = false;
};

constexpr std::uint32_t kRanks = 4;
constexpr std::uint64_t kMessagesOfATile = 2 * (kRanks - 1);  // on each connection of the ring

struct Setting {
  Policy policy = Policy::kRandom;
  bool weak = false;
  std::uint64_t first_number = 0;
  bool stale_lines = false;
  std::uint64_t seeds = 10;
  CollectiveKind kind = CollectiveKind::kAllReduce;
};

// Lines left by messages of 2^32 ago, with the flags of the messages of the call after the next.
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

// How many seeds end with wrong bits, a failure, a standstill, or a store that overtakes a load.
template <Protocol kProtocol, class Faults>
int found_by(const Setting& setting) {
  const Generator generator = find_generator({.kind = setting.kind, .ranks = kRanks}, Algorithm::kRing).value();
  // 128 threads: LL128 gives work to every warp only where a message has many lines.
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
    World world({.seed = seed, .policy = setting.policy, .yield_log2 = 5, .weak = setting.weak});
    const auto kernel = [](const device::Launch& launch) { device::evaluate<kProtocol, Faults>(launch); };
    bool wrong = false;
    if (setting.stale_lines) {
      leave_stale_lines(group, options);
      CallOptions brief;  // its messages leave most lines as they are
      brief.lengths.count = 8;
      std::vector<RankBuffers> buffers = make_buffers(generator.shape, brief);
      group.set_call(brief, buffers);
      group.launch_all(world, kernel);
      wrong = world.run() != World::End::kIdle;
    }
    std::vector<RankBuffers> gpu = make_buffers(generator.shape, call);
    group.set_call(call, gpu);
    group.launch_all(world, kernel);
    wrong = wrong || world.run() != World::End::kIdle || world.overtaking() > 0;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      wrong = wrong || group.status(rank).failure != 0 || host[rank].memory != gpu[rank].memory;
    }
    found += wrong ? 1 : 0;
  }
  return found;
}

template <Protocol kProtocol, class Faults>
void expect_found(const Setting& setting) {
  EXPECT_EQ((found_by<kProtocol, device::Sound>(setting)), 0) << "the control";
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer reports what is planted";
#endif
  EXPECT_GE((found_by<kProtocol, Faults>(setting)), 2) << "of " << setting.seeds << " seeds";
}

TEST(Mutants, AMissingBarrierIsFoundInSimple) { expect_found<Protocol::kSimple, MissingBarrier>({}); }
TEST(Mutants, AMissingBarrierIsFoundInLl) { expect_found<Protocol::kLl, MissingBarrier>({}); }
// Rarer: a sender looks for credits only when those that it has seen are used up, so it seldom comes early.
TEST(Mutants, AMissingBarrierIsFoundInLl128) {
  expect_found<Protocol::kLl128, MissingBarrier>({.policy = Policy::kPriority, .seeds = 40});
}

// Only memory that is ordered weakly shows it.
TEST(Mutants, ARelaxedStoreInPlaceOfAReleaseIsFound) {
  expect_found<Protocol::kSimple, RelaxedForRelease>({.weak = true});
}

TEST(Mutants, ACreditThatIsNotReleasedIsFound) { expect_found<Protocol::kSimple, RelaxedCredit>({.weak = true}); }
// In a block that only receives: senders acquire their credits, and so all that comes before.
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

// Numbers at which the flags of 32 bits begin anew, on a slot that is due to be written whole.
TEST(Mutants, LinesThatAreNeverRenewedAreFound) {
  expect_found<Protocol::kLl, LinesNeverRenewed>(
      {.first_number = (std::uint64_t{1} << 32) - (std::uint64_t{1} << 21), .stale_lines = true});
}

// Ranks whose buffers are overwritten as soon as their own part of the call has ended, as their callers may.
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
    World world({.seed = seed, .policy = Policy::kPriority, .yield_log2 = 5});
    std::vector<RankBuffers> gpu = make_buffers(generator.shape, call);
    group.set_call(call, gpu);
    std::vector<std::uint64_t> launches;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      group.call(rank).least_published_bytes = 0;
      launches.push_back(group.launch(world, rank, kernel, DeviceGroup::Start::kBegin));
    }
    bool wrong = false;
    for (std::uint32_t ended = 0; ended < kRanks; ++ended) {
      const auto is_done = [&](std::uint64_t launch) { return launch != 0 && world.done(launch); };
      wrong = wrong || world.run_until([&] { return std::ranges::any_of(launches, is_done); }) == World::End::kStuck;
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
  EXPECT_EQ(found_behind_the_call<device::Sound>(), 0) << "the control";
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer reports what is planted";
#endif
  EXPECT_GE(found_behind_the_call<NoDrain>(), 2) << "of " << kCallsToEnd << " seeds";
}

// A call that leaves a slice without tiles, and then one that pushes in that slice, to other buffers.
template <class Faults>
int found_in_idle_slices() {
  const Generator generator =
      find_generator({.kind = CollectiveKind::kBroadcast, .ranks = kRanks}, Algorithm::kRing).value();
  const GroupOptions options{.slots = 4, .slot_bytes = 128, .slices = 2, .windows = true};
  const auto kernel = [](const device::Launch& launch) { device::evaluate<Protocol::kSimple, Faults>(launch); };
  int found = 0;
  for (std::uint64_t seed = 1; seed <= Setting{}.seeds; ++seed) {
    DeviceGroup group(generator, options);
    World world({.seed = seed, .policy = Policy::kRandom, .yield_log2 = 5});
    bool wrong = false;
    std::vector<std::vector<RankBuffers>> buffers;  // of both calls, to the end: the fault writes to the first one's
    for (const std::uint64_t tiles : {1, 2}) {
      CallOptions call;
      call.lengths.count = tiles * options.slot_bytes / 4 * generator.shape.chunks;
      call.seed = seed + 100 * tiles;
      const std::vector<RankBuffers> host = run_on_host(generator, call, options.slot_bytes);
      std::vector<RankBuffers>& gpu = buffers.emplace_back(make_buffers(generator.shape, call));
      // Room for what is wrongly written to the first call's, as if they were the second's.
      for (RankBuffers& of_rank : gpu) of_rank.memory.resize(of_rank.memory.size() + 4096);
      group.set_call(call, gpu);
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) group.call(rank).least_published_bytes = device::kForever;
      // The root is done with its first messages before its peers come.
      group.launch(world, 0, kernel, DeviceGroup::Start::kBegin);
      const std::uint64_t until = world.switches() + 5000;
      wrong = wrong || world.run_until([&] { return world.switches() >= until; }) == World::End::kStuck;
      for (std::uint32_t rank = 1; rank < kRanks; ++rank) group.launch(world, rank, kernel, DeviceGroup::Start::kBegin);
      wrong = wrong || world.run() != World::End::kIdle;
      for (std::uint32_t rank = 0; rank < kRanks; ++rank)
        wrong = wrong ||
                !std::ranges::equal(host[rank].memory, std::span(gpu[rank].memory).first(host[rank].memory.size()));
    }
    found += wrong ? 1 : 0;
  }
  return found;
}

TEST(Mutants, AnOfferInACallWithoutMessagesIsFound) {
  EXPECT_EQ(found_in_idle_slices<device::Sound>(), 0) << "the control";
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer reports what is planted";
#endif
  EXPECT_GE(found_in_idle_slices<OffersWithoutMessages>(), 2) << "of " << Setting{}.seeds << " seeds";
}

}  // namespace
}  // namespace tutti::testing

// Tests of slices, and of connections that several plans use. Every block must have a call, slice and channel of its
// own. The counters of a communicator's connections must continue from call to call, with any plan and any number of
// slices.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "device_group.h"
#include "device_subject.h"

namespace tutti::testing {
namespace {

using device::Protocol;
using emu::Policy;

TEST(BlockAssignment, EverySliceAndChannelOfEveryCallIsRunOnce) {
  for (const std::uint32_t slices : {1u, 2u, 5u}) {
    for (const std::uint32_t at_once : {0u, 1u, 2u, 5u}) {
      if (at_once > slices) continue;
      device::Launch launch;
      launch.call_count = 3;
      launch.slices = slices;
      launch.channels = 4;
      launch.at_once = at_once;
      std::map<std::array<std::uint32_t, 3>, int> runs;
      for (std::uint32_t block = 0; block < device::blocks_of(launch); ++block) {
        const device::BlockAssignment assignment = device::assignment_of(launch, block);
        EXPECT_LT(assignment.call, launch.call_count);
        EXPECT_LT(assignment.channel, launch.channels);
        for (std::uint32_t slice = assignment.slice; slice < slices; slice += device::slices_at_once(launch))
          ++runs[{assignment.call, slice, assignment.channel}];
      }
      EXPECT_EQ(runs.size(), 3u * slices * 4u) << at_once << " at once";
      EXPECT_TRUE(std::ranges::all_of(runs, [](const auto& run) { return run.second == 1; })) << at_once << " at once";
    }
  }
}

TEST(Slices, DealTheTilesInTurn) {
  for (std::uint32_t slices = 1; slices <= 5; ++slices) {
    for (std::uint64_t tiles = 0; tiles <= 12; ++tiles) {
      std::vector<int> run(tiles);
      for (std::uint32_t slice = 0; slice < slices; ++slice) {
        const std::uint64_t own = device::tiles_of_slice(tiles, slice, slices);
        for (std::uint64_t i = 0; i < own; ++i) ++run.at(slice + i * slices);
      }
      EXPECT_EQ(std::ranges::count(run, 1), std::ssize(run)) << tiles << " tiles, " << slices << " slices";
    }
  }
}

TEST(Slices, AConnectionsEndsStandApart) {
  std::set<std::uint64_t> seen;
  for (std::uint32_t slice = 0; slice < 3; ++slice) {
    for (std::uint32_t lane = 0; lane < 2; ++lane) {
      for (std::uint32_t peer = 0; peer < 5; ++peer) {
        for (const bool sends : {false, true})
          seen.insert(device::link_index(device::connection_number(slice, 2, lane), 5, peer, sends));
      }
    }
  }
  EXPECT_EQ(seen.size(), 60u);
  EXPECT_EQ(*seen.rbegin(), 59u) << "some indices are not used";
}

// protocol, slices, whether the ranks have blocks for some of the slices only
class Slices : public ::testing::TestWithParam<std::tuple<Protocol, std::uint32_t, bool>> {};

// Runs all plans of a communicator, forwards and then backwards. Some calls have fewer tiles than there are slices, and
// the counters of the other slices must not change then. Each call has buffers of its own, so an offer (of a buffer)
// that an earlier call left is never right.
TEST_P(Slices, PlansFollowEachOtherOverTheSameConnections) {
  const auto [protocol, slices, few_blocks] = GetParam();
  constexpr std::uint32_t kRanks = 4;
  const std::vector<std::pair<CollectiveKind, Algorithm>> plans = {
      {CollectiveKind::kAllReduce, Algorithm::kRing},       {CollectiveKind::kAllReduce, Algorithm::kTwoShot},
      {CollectiveKind::kAllReduce, Algorithm::kDoubleTree}, {CollectiveKind::kAllToAll, Algorithm::kDirect},
      {CollectiveKind::kBroadcast, Algorithm::kRing},       {CollectiveKind::kAllGather, Algorithm::kRing}};
  const GroupOptions options{.protocol = protocol,
                             .slot_bytes = small_slot(protocol),
                             .slices = slices,
                             .few_blocks = few_blocks,
                             .windows = protocol == Protocol::kSimple};
  std::vector<Subject> subjects;
  std::vector<Generator> generators;
  std::set<std::uint16_t> lanes;
  for (const auto& [kind, algorithm] : plans) {
    generators.push_back(subjects.emplace_back(kind, algorithm, kRanks, options).generator);
    lanes.insert(generators.back().shape.lanes);
  }
  EXPECT_GT(lanes.size(), 1u) << "all plans have the same number of lanes, so their slices use the same connections";
  DeviceGroup device(generators, options);
  std::uint64_t seed = slices;
  for (const bool backwards : {false, true}) {
    for (std::size_t i = 0; i < plans.size(); ++i, ++seed) {
      const std::size_t plan = backwards ? plans.size() - 1 - i : i;
      const Subject& subject = subjects[plan];
      for (const double tiles : {3.3, 1.0}) {
        subject.run(device, subject.call(tiles, seed), schedule(seed, static_cast<Policy>(seed % 3), seed % 2 == 0),
                    plan);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Protocols, Slices,
                         ::testing::Combine(::testing::Values(Protocol::kSimple, Protocol::kLl, Protocol::kLl128),
                                            ::testing::Values(1u, 2u, 3u), ::testing::Bool()),
                         [](const auto& test) {
                           return name_of(std::get<0>(test.param)) + std::to_string(std::get<1>(test.param)) +
                                  (std::get<2>(test.param) ? "FewBlocks" : "");
                         });

}  // namespace
}  // namespace tutti::testing

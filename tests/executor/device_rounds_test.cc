// Tests device_rounds(), which counts the launches of a plan without running them. tests/kernels runs the launches.
#include "executor/device_rounds.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "algorithms/algorithms.h"
#include "plan/collective.h"

namespace tutti {
namespace {

using Draining = DeviceRounds::Draining;

void for_each_plan(const std::function<void(const Generator&, std::uint32_t slots, const std::string& what)>& visit) {
  for (const CollectiveKind kind : all_collectives()) {
    for (const Algorithm algorithm : algorithms_of(kind)) {
      for (const std::uint32_t ranks : {2u, 3u, 4u, 8u}) {
        const Generator generator = find_generator({.kind = kind, .ranks = ranks}, algorithm).value();
        for (const std::uint32_t slots : {2u, 4u}) {
          if (slots < generator.shape.slots) continue;
          visit(generator, slots,
                std::string(to_string(kind)) + " " + std::string(to_string(algorithm)) + " of " +
                    std::to_string(ranks) + ", slots " + std::to_string(slots));
        }
      }
    }
  }
}

// DeviceRounds simulates only the first tiles of a call and extrapolates the rest. The extrapolated number must
// never be below the exact one, because the call would then end early.
TEST(DeviceRounds, GoOnPastTheSimulatedTilesWithoutBeingTooFew) {
  int plans = 0;
  for_each_plan([&](const Generator& generator, std::uint32_t slots, const std::string& what) {
    ++plans;
    const DeviceRounds exact(generator, slots, 200);
    ASSERT_EQ(exact.simulated_tiles(), 200u);
    for (const std::uint32_t simulated : {1u, 2u, 7u, DeviceRounds::kMaxTiles}) {
      const DeviceRounds rounds(generator, slots, simulated);
      for (const Draining draining : {Draining::kNothing, Draining::kPublished}) {
        for (std::uint64_t tiles = 0; tiles <= 200; ++tiles) {
          ASSERT_GE(rounds.of(tiles, draining), exact.of(tiles, draining)) << what << ", tiles " << tiles;
          if (tiles > simulated) continue;
          ASSERT_EQ(rounds.of(tiles, draining), exact.of(tiles, draining)) << what << ", tiles " << tiles;
        }
      }
    }
    // It must not be far above the exact number either. The estimate adds the cost of filling the pipeline again
    // for every 64 tiles, so a quarter more is accepted.
    EXPECT_LE(device_rounds(generator, 200, slots, Draining::kPublished),
              exact.of(200, Draining::kPublished) + exact.of(200, Draining::kPublished) / 4)
        << what;
  });
  EXPECT_GT(plans, 100);
}

// The expected numbers are counted by hand. In each round, all messages that fit into the slots move on by one
// rank.
TEST(DeviceRounds, OfABroadcastByChain) {
  const Generator generator =
      find_generator({.kind = CollectiveKind::kBroadcast, .ranks = 4}, Algorithm::kChain).value();
  ASSERT_EQ(generator.shape.chunks, 1u);
  EXPECT_EQ(device_rounds(generator, 0, 2, Draining::kNothing), 1u);
  EXPECT_EQ(device_rounds(generator, 1, 2, Draining::kNothing), 4u);
  EXPECT_EQ(device_rounds(generator, 2, 2, Draining::kNothing), 4u);
  EXPECT_EQ(device_rounds(generator, 4, 4, Draining::kNothing), 4u);
  // The root cannot send its next messages before its neighbour returns the credits, which happens in the second
  // round.
  EXPECT_EQ(device_rounds(generator, 3, 2, Draining::kNothing), 6u);
  EXPECT_EQ(device_rounds(generator, 4, 2, Draining::kNothing), 6u);
  EXPECT_EQ(device_rounds(generator, 5, 2, Draining::kNothing), 8u);
}

// The peer reads the root's published value in the second round. The root learns of this in the third round, so a
// call that must wait for readers of published memory takes one round more.
TEST(DeviceRounds, WhoPublishesWaitsForItsReaders) {
  const Generator generator =
      find_generator({.kind = CollectiveKind::kBroadcast, .ranks = 2}, Algorithm::kChain).value();
  EXPECT_EQ(device_rounds(generator, 1, 2, Draining::kNothing), 2u);
  EXPECT_EQ(device_rounds(generator, 1, 2, Draining::kPublished), 3u);
}

TEST(DeviceRounds, MoreTilesOrFewerSlotsNeverTakeFewer) {
  for_each_plan([&](const Generator& generator, std::uint32_t slots, const std::string& what) {
    const DeviceRounds rounds(generator, slots);
    const DeviceRounds wider(generator, 2 * slots);
    for (std::uint64_t tiles = 0; tiles < 150; ++tiles) {
      ASSERT_LE(rounds.of(tiles, Draining::kNothing), rounds.of(tiles + 1, Draining::kNothing)) << what;
      ASSERT_LE(rounds.of(tiles, Draining::kNothing), rounds.of(tiles, Draining::kPublished)) << what;
      if (tiles > DeviceRounds::kMaxTiles) continue;
      ASSERT_LE(wider.of(tiles, Draining::kNothing), rounds.of(tiles, Draining::kNothing)) << what;
    }
  });
}

}  // namespace
}  // namespace tutti

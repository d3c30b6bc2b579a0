// Tests calls with plans in which a message carries a run of several chunks (Step::run): short calls by the built-in
// algorithms that have such plans, and calls with a caller's plan.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "algorithms/algorithms.h"
#include "conformance/suite.h"
#include "tutti/plan.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

class Runs : public testing::TestWithParam<JobConfiguration> {
 protected:
  void SetUp() override { skip_unless_possible(GetParam()); }
  static Communicators world(std::int32_t size) { return make_configured_ranks(GetParam(), size); }
};

// With 13 ranks, some runs go around the end of a buffer, and no number of ranks is a power of two. With these counts,
// some chunks are empty, some are shorter than others, or all are equally long.
TEST_P(Runs, GiveTheResultsOfShortCallsOf13Ranks) {
  Communicators ranks = world(13);
  std::vector<Case> cases;
  for (const CollectiveKind kind : all_collectives()) {
    for (const Algorithm algorithm : algorithms_of(kind)) {
      if (!has_runs(kind, algorithm)) continue;
      for (const std::size_t count : {1u, 37u, 208u, 1000u, 2999u}) {
        for (const bool in_place : {false, true}) {
          cases.push_back({.kind = kind,
                           .count = count,
                           .op = !row_of(kind).reduces ? ReduceOp::kSum
                                 : in_place            ? ReduceOp::kAvg
                                                       : ReduceOp::kPreMulSum,
                           .root = row_of(kind).root != RootHas::kNothing ? 5 : 0,
                           .in_place = in_place,
                           .registered = in_place,
                           .algorithm = algorithm});
        }
      }
    }
  }
  ASSERT_GE(cases.size(), 60u);
  on_every_rank(ranks, [&](Communicator& rank) {
    for (const Case& each : cases) {
      run_case(rank, each);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

// Adds numbers, and counts how often it is called.
void add_and_count(const void* left, const void* right, void* result, std::size_t count, void* context) {
  for (std::size_t i = 0; i < count; ++i) {
    static_cast<std::int64_t*>(result)[i] =
        static_cast<const std::int64_t*>(left)[i] + static_cast<const std::int64_t*>(right)[i];
  }
  ++*static_cast<std::atomic<int>*>(context);
}

// In the three rounds of the halving of 8 ranks, a rank adds 4, 2 and 1 chunks. In a short call each round is one
// message, and its chunks follow each other in memory, so one call of the user's reduction adds all of them.
TEST_P(Runs, AreUsedByShortCallsOnly) {
  Communicators ranks = world(8);
  std::atomic<int> calls = 0;
  const auto sum = [&](std::size_t count) {
    calls = 0;
    on_every_rank(ranks, [&](Communicator& rank) {
      std::vector<std::int64_t> in(count, rank.rank()), out(count);
      CallOptions options = with(Algorithm::kHalvingDoubling);
      options.reduction = {.combine = add_and_count, .context = &calls, .element_bytes = sizeof(std::int64_t)};
      const Status status = rank.all_reduce(in.data(), out.data(), count, DataType::kUint8, ReduceOp::kSum, options);
      ASSERT_TRUE(status.ok()) << to_string(status.error());
      EXPECT_EQ(out, std::vector<std::int64_t>(count, 28));
    });
    return calls.load();
  };
  EXPECT_EQ(sum(1024), 8 * 3) << "a message for each round";
  EXPECT_EQ(sum(100'000), 8 * 7) << "800,000 bytes do not fit into a slot, but their chunks do";
}

// An all_gather by way of rank 0: it receives all blocks, and sends them to each rank in one message. The run begins
// with block 2, so after the last block it goes on with block 0.
UserPlan star(std::uint32_t ranks) {
  PlanBuilder plan({.name = "star", .collective = CollectiveKind::kAllGather, .ranks = ranks});
  auto centre = plan.channel(0);
  centre.step().local(Space::kInput, 0).store(Space::kOutput, 0);
  for (std::uint32_t peer = 1; peer < ranks; ++peer) centre.step().receive(peer).store(Space::kOutput, peer);
  auto all = centre.step();
  all.run(ranks).local(Space::kOutput, 2);
  for (std::uint32_t peer = 1; peer < ranks; ++peer) all.send(peer);
  for (std::uint32_t peer = 1; peer < ranks; ++peer) {
    auto other = plan.channel(peer);
    other.step().local(Space::kInput, 0).send(0);
    other.step().run(ranks).receive(0).store(Space::kOutput, 2);
  }
  auto built = plan.build();
  EXPECT_TRUE(built.ok()) << to_string(built.error());
  return *built;
}

// The longest call has several tiles. So the chunks of a run, one of each block, do not follow each other in memory.
TEST_P(Runs, OfACallersPlanCarryCallsOfAnyLength) {
  Communicators ranks = world(5);
  const UserPlan plan = star(5);
  on_every_rank(ranks, [&](Communicator& rank) {
    const Status used = rank.use_plan(plan);
    ASSERT_TRUE(used.ok()) << to_string(used.error());
    for (const std::size_t count : {1u, 1000u, 300'001u}) {
      for (const bool in_place : {false, true}) {
        run_case(rank, {.kind = CollectiveKind::kAllGather,
                        .count = count,
                        .in_place = in_place,
                        .registered = in_place,
                        .algorithm = Algorithm::kUser});
      }
    }
  });
}

TEST_P(Runs, OfACallersPlanAreRefusedInVVariants) {
  Communicators ranks = world(3);
  const UserPlan plan = star(3);
  const std::vector<std::size_t> counts{3, 1, 2};
  on_every_rank(ranks, [&](Communicator& rank) {
    ASSERT_TRUE(rank.use_plan(plan).ok());
    std::vector<float> own(3), whole(6);
    const Status status =
        rank.all_gather_v(own.data(), whole.data(), {.counts = counts}, DataType::kFloat32, with(Algorithm::kUser));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(status.error().message, HasSubstr("such plans do not run calls with a length for each block"));
    EXPECT_THAT(status.error().message, HasSubstr("(all_gather_v)"));
    const Status other = rank.all_gather_v(own.data(), whole.data(), {.counts = counts}, DataType::kFloat32);
    EXPECT_TRUE(other.ok()) << "a built-in plan is used if the call does not ask for the caller's";
    EXPECT_TRUE(rank.barrier().ok());
  });
}

TEST_P(Runs, OfACallersPlanLeaveVVariantsToAnOlderPlan) {
  Communicators ranks = world(3);
  PlanBuilder builder({.name = "older", .collective = CollectiveKind::kAllGather, .ranks = 3});
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    auto channel = builder.channel(rank);
    auto own = channel.step();
    own.local(Space::kInput, 0).store(Space::kOutput, rank);
    for (std::uint32_t peer = 0; peer < 3; ++peer) {
      if (peer != rank) own.send(peer);
    }
    for (std::uint32_t peer = 0; peer < 3; ++peer) {
      if (peer != rank) channel.step().receive(peer).store(Space::kOutput, peer);
    }
  }
  const auto older = builder.build();
  ASSERT_TRUE(older.ok()) << to_string(older.error());
  const UserPlan newer = star(3);
  const std::vector<std::size_t> counts{3, 1, 2};
  on_every_rank(ranks, [&](Communicator& rank) {
    ASSERT_TRUE(rank.use_plan(*older).ok());
    ASSERT_TRUE(rank.use_plan(newer).ok());
    const auto number = static_cast<std::size_t>(rank.rank());
    const std::vector<float> own(counts[number], static_cast<float>(number + 1));
    std::vector<float> whole(6);
    const Status status =
        rank.all_gather_v(own.data(), whole.data(), {.counts = counts}, DataType::kFloat32, with(Algorithm::kUser));
    ASSERT_TRUE(status.ok()) << to_string(status.error());
    EXPECT_EQ(whole, (std::vector<float>{1, 1, 1, 2, 3, 3}));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Runs, testing::ValuesIn(configurations()),
                         [](const auto& world) { return std::string(world.param.name); });
INSTANTIATE_TEST_SUITE_P(ChecksumWorlds, Runs, testing::ValuesIn(kChecksumConfigurations),
                         [](const auto& world) { return std::string(world.param.name); });

// An element may be longer than a slot divided by the length of a run. The rule of TUTTI_TUNE limits messages to 4 KiB,
// the length of one element.
TEST(UserRuns, CarryLongElements) {
  struct Element {
    std::int64_t numbers[512];
  };
  ::setenv("TUTTI_TUNE", "all_reduce=halving_doubling/4K", 1);
  auto ranks = make_ranks(5);
  ::unsetenv("TUTTI_TUNE");
  const auto add = [](const void* left, const void* right, void* result, std::size_t count, void*) {
    for (std::size_t i = 0; i < 512 * count; ++i) {
      static_cast<std::int64_t*>(result)[i] =
          static_cast<const std::int64_t*>(left)[i] + static_cast<const std::int64_t*>(right)[i];
    }
  };
  on_every_rank(ranks, [&](Communicator& rank) {
    for (const std::size_t count : {1u, 2u, 3u, 40u}) {
      std::vector<Element> in(count), out(count);
      for (Element& element : in) std::fill_n(element.numbers, 512, rank.rank() + 1);
      CallOptions options;
      options.reduction = {.combine = add, .element_bytes = sizeof(Element)};
      const Status status = rank.all_reduce(in.data(), out.data(), count, DataType::kUint8, ReduceOp::kSum, options);
      ASSERT_TRUE(status.ok()) << to_string(status.error());
      for (const Element& element : out) {
        for (const std::int64_t number : element.numbers) ASSERT_EQ(number, 15);
      }
    }
  });
}

TEST(UserRuns, ThatDoNotFitIntoASlotAreRefused) {
  constexpr std::uint32_t kChunks = 100'000;
  PlanBuilder plan({.name = "long", .collective = CollectiveKind::kBroadcast, .ranks = 2, .chunks = kChunks});
  plan.channel(0).step().run(kChunks).local(Space::kInput, 0).store(Space::kOutput, 0).send(1);
  plan.channel(1).step().run(kChunks).receive(0).store(Space::kOutput, 0);
  const auto built = plan.build();
  ASSERT_TRUE(built.ok()) << to_string(built.error());
  auto ranks = make_ranks(2);
  const Status refused = ranks[0]->use_plan(*built);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message,
              HasSubstr("use_plan \"long\": the plan has messages of 100000 chunks of at least 64 bytes"));
  EXPECT_THAT(refused.error().message, HasSubstr("set TUTTI_SLOT_BYTES to 6402048 on all ranks, or use shorter"));
}

}  // namespace
}  // namespace tutti::test

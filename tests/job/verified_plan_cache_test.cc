// Tests that a proof that could not be completed is made again.
#include "job/verified_plan_cache.h"

#include <gtest/gtest.h>

#include <new>

#include "algorithms/algorithms.h"

namespace tutti {
namespace {

// The generator of a wrong plan: an all-reduce of two ranks in which no rank does anything. At its first use memory is
// exhausted.
TEST(VerifiedPlanCache, ProvesAgainIfAProofWasCutOff) {
  bool exhausted = true;
  Generator idle;
  idle.shape.collective = {.kind = CollectiveKind::kAllReduce, .ranks = 2};
  idle.shape.algorithm = Algorithm::kUser;
  idle.build = [&exhausted](const PlanShape&, std::uint32_t) {
    if (exhausted) throw std::bad_alloc();
    return RankPlan();
  };
  VerifiedPlanCache cache(true);
  EXPECT_THROW(static_cast<void>(cache.prove(idle)), std::bad_alloc);
  exhausted = false;
  const Status proved = cache.prove(idle);
  ASSERT_FALSE(proved.ok()) << "the wrong plan counts as proved";
  EXPECT_EQ(proved.error().code, ErrorCode::kInvalidPlan);
  EXPECT_FALSE(cache.prove(idle).ok()) << "the result of a proof is kept";
}

// The cache must not take the proof of one form of an algorithm's plan for that of the other form (Messages in
// algorithms/algorithms.h). Here the form with runs is broken.
TEST(VerifiedPlanCache, ProvesEachFormOfAnAlgorithm) {
  const Collective collective{.kind = CollectiveKind::kAllReduce, .ranks = 4};
  const Generator one_chunk = *find_generator(collective, Algorithm::kCirculant, Messages::kOneChunk);
  Generator runs = *find_generator(collective, Algorithm::kCirculant, Messages::kRuns);
  ASSERT_GT(runs.shape.longest_run, 1u);
  runs.build = [good = runs.build](const PlanShape& shape, std::uint32_t rank) {
    RankPlan plan = good(shape, rank);
    plan.channels[0].steps.pop_back();
    return plan;
  };
  VerifiedPlanCache cache(true);
  EXPECT_TRUE(cache.prove(one_chunk).ok());
  EXPECT_FALSE(cache.prove(runs).ok());
  EXPECT_TRUE(cache.prove(one_chunk).ok());
}

}  // namespace
}  // namespace tutti

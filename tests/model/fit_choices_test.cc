// Tests the choices between ways to carry out a call inside a machine: how they follow from measured times, and which
// of them a communicator takes.
#include "model/fit_choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti {
namespace {

using ::testing::HasSubstr;

// Measurements of one way: pairs of bytes and microseconds.
void add(std::vector<Measurement>& measured, std::uint32_t ranks, MeasuredWay way,
         const std::vector<std::pair<std::uint64_t, double>>& times) {
  for (const auto& [bytes, us] : times) measured.push_back({measurement_name(ranks, way), bytes, us, 2 * us});
}

MachineChoices fit(const std::vector<Measurement>& measured, std::uint32_t ranks) {
  const std::vector<RankChoices> choices = fit_choices(measured, std::vector{ranks}, 2);
  EXPECT_EQ(choices.size(), 1u);
  return choices.empty() ? MachineChoices{} : choices.front().choices;
}

TEST(FitChoices, OneShotEndsWhereBothMemoriesTogetherLoseLeast) {
  std::vector<Measurement> measured;
  add(measured, 2, MeasuredWay::kOneShot, {{1024, 1}, {4096, 2.6}, {8192, 4.9}});
  add(measured, 2, MeasuredWay::kTwoShot, {{1024, 2}, {4096, 3.1}, {8192, 2.6}});
  EXPECT_EQ(fit(measured, 2).one_shot_bytes, 4096u);
  add(measured, 2, MeasuredWay::kRegisteredOneShot, {{1024, 1}, {4096, 2.6}, {8192, 4.9}});
  add(measured, 2, MeasuredWay::kRegisteredTwoShot, {{1024, 2}, {4096, 0.9}, {8192, 1}});
  EXPECT_EQ(fit(measured, 2).one_shot_bytes, 1024u) << "4096 bytes would cost registered memory more";
}

TEST(FitChoices, OneDisturbedSizeDoesNotDecide) {
  std::vector<Measurement> measured;
  add(measured, 2, MeasuredWay::kOneShot, {{1024, 1}, {2048, 3}, {4096, 2}, {8192, 4}});
  add(measured, 2, MeasuredWay::kTwoShot, {{1024, 2}, {2048, 2}, {4096, 4}, {8192, 3}});
  EXPECT_EQ(fit(measured, 2).one_shot_bytes, 4096u);
}

TEST(FitChoices, AWayThatIsNeverFasterIsNeverTaken) {
  std::vector<Measurement> measured;
  add(measured, 4, MeasuredWay::kOneShot, {{1024, 3}, {2048, 3}});
  add(measured, 4, MeasuredWay::kTwoShot, {{1024, 2}, {2048, 2}});
  add(measured, 4, MeasuredWay::kAllReduceByMessages, {{1 << 20, 60}, {4 << 20, 300}});
  add(measured, 4, MeasuredWay::kAllReduceByCalls, {{1 << 20, 120}, {4 << 20, 700}});
  const MachineChoices choices = fit(measured, 4);
  EXPECT_EQ(choices.one_shot_bytes, 1024u) << "the shortest measured length, because shorter calls were not measured";
  EXPECT_EQ(choices.all_reduce_by_calls_bytes, 0u);
  EXPECT_EQ(choices.copy_by_calls_bytes, default_choices(4, 2).copy_by_calls_bytes) << "not measured";
}

TEST(FitChoices, CallsBeginAtTheShareOfARank) {
  std::vector<Measurement> measured;
  add(measured, 4, MeasuredWay::kAllReduceByMessages, {{1 << 20, 60}, {4 << 20, 300}, {16 << 20, 2000}});
  add(measured, 4, MeasuredWay::kAllReduceByCalls, {{1 << 20, 120}, {4 << 20, 200}, {16 << 20, 1000}});
  add(measured, 4, MeasuredWay::kBroadcastByMessages, {{1 << 17, 60}, {1 << 19, 300}});
  add(measured, 4, MeasuredWay::kBroadcastByCalls, {{1 << 17, 50}, {1 << 19, 100}});
  add(measured, 4, MeasuredWay::kAllGatherByMessages, {{1 << 17, 60}, {1 << 19, 300}});
  add(measured, 4, MeasuredWay::kAllGatherByCalls, {{1 << 17, 120}, {1 << 19, 200}});
  const MachineChoices choices = fit(measured, 4);
  EXPECT_EQ(choices.all_reduce_by_calls_bytes, 1u << 20);
  EXPECT_EQ(choices.copy_by_calls_bytes, 1u << 19) << "one limit for all collectives that copy";
}

TEST(FitChoices, NothingMeasuredIsNothing) {
  std::vector<Measurement> measured;
  EXPECT_TRUE(fit_choices(measured, std::vector{2u, 4u}, 2).empty());
  add(measured, 4, MeasuredWay::kOneShot, {{1024, 3}});
  EXPECT_TRUE(fit_choices(measured, std::vector{2u, 4u}, 2).empty()) << "nothing to compare it with";
  add(measured, 4, MeasuredWay::kTwoShot, {{2048, 3}, {1024, 0}});
  EXPECT_TRUE(fit_choices(measured, std::vector{2u, 4u}, 2).empty()) << "other sizes, and a time of 0";
}

// As on a system that forbids the system calls: both ways are the same, apart from noise.
TEST(FitChoices, NoiseDoesNotChangeADefault) {
  std::vector<Measurement> measured;
  add(measured, 2, MeasuredWay::kOneShot, {{1024, 1}, {8192, 5}, {16384, 9}});
  add(measured, 2, MeasuredWay::kTwoShot, {{1024, 1.02}, {8192, 4.9}, {16384, 9.2}});
  add(measured, 2, MeasuredWay::kAllReduceByMessages, {{256 << 10, 60}, {1 << 20, 300}});
  add(measured, 2, MeasuredWay::kAllReduceByCalls, {{256 << 10, 61}, {1 << 20, 303}});
  add(measured, 2, MeasuredWay::kBroadcastByMessages, {{32 << 10, 10}, {128 << 10, 30}, {512 << 10, 100}});
  add(measured, 2, MeasuredWay::kBroadcastByCalls, {{32 << 10, 9.8}, {128 << 10, 31}, {512 << 10, 101}});
  EXPECT_EQ(fit(measured, 2), default_choices(2, 2));
}

TEST(FitChoices, ALimitAboveAllMeasuredLengthsStays) {
  std::vector<Measurement> measured;
  add(measured, 2, MeasuredWay::kOneShot, {{1024, 1}, {2048, 2}});
  add(measured, 2, MeasuredWay::kTwoShot, {{1024, 2}, {2048, 3}});
  EXPECT_EQ(fit(measured, 2).one_shot_bytes, default_choices(2, 2).one_shot_bytes);
}

TEST(FitChoices, ShortestOfKeepsTheSmallestMedian) {
  const std::vector<Measurement> measured{
      {"a", 8, 3, 4}, {"b", 8, 1, 2}, {"a", 8, 2, 9}, {"a", 16, 1, 1}, {"a", 8, 5, 5}};
  EXPECT_EQ(shortest_of(measured), (std::vector<Measurement>{{"a", 8, 2, 9}, {"b", 8, 1, 2}, {"a", 16, 1, 1}}));
}

TEST(FitChoices, NoiseIsTheMiddlePassOverTheShortest) {
  EXPECT_EQ(noise_of_passes({}), 1);
  const std::vector<Measurement> measured{{"a", 8, 2, 0}, {"b", 8, 1, 0}, {"a", 16, 5, 0},   // pass 1
                                          {"a", 8, 3, 0}, {"b", 8, 9, 0}, {"a", 16, 5, 0},   // pass 2
                                          {"a", 8, 8, 0}, {"b", 8, 2, 0}, {"a", 16, 5, 0}};  // pass 3
  EXPECT_EQ(noise_of_passes(measured), 1.5);  // the median of 3/2, 2/1 and 5/5
}

TEST(MachineChoices, AreThoseOfTheNextSmallerNumberOfRanks) {
  const auto with = [](std::uint64_t bytes) { return MachineChoices{.one_shot_bytes = bytes}; };
  const std::vector<RankChoices> measured = {{4, 16, with(4)}, {2, 16, with(2)}, {16, 16, with(16)}};
  EXPECT_EQ(choices_for(measured, 2, 16), with(2));
  EXPECT_EQ(choices_for(measured, 3, 16), with(2));
  EXPECT_EQ(choices_for(measured, 4, 16), with(4));
  EXPECT_EQ(choices_for(measured, 15, 16), with(4));
  EXPECT_EQ(choices_for(measured, 1000, 0), with(16)) << "the number of cores is unknown";
  EXPECT_EQ(choices_for({{{16, 16, with(16)}, {8, 16, with(8)}}}, 2, 16), with(8)) << "the smallest one";
  EXPECT_EQ(choices_for({}, 3, 2), default_choices(3, 2));
}

TEST(MachineChoices, HasChoicesDistinguishesRanksThatShareCores) {
  const std::vector<RankChoices> measured = {{2, 4, {}}};
  EXPECT_TRUE(has_choices(measured, 3, 4));
  EXPECT_TRUE(has_choices(measured, 8, 0)) << "the number of cores is unknown";
  EXPECT_FALSE(has_choices(measured, 5, 4));
  EXPECT_FALSE(has_choices({}, 2, 4));
}

TEST(MachineChoices, OfRanksWithACoreEachAreNotThoseOfOthers) {
  const auto with = [](std::uint64_t bytes) { return MachineChoices{.one_shot_bytes = bytes}; };
  const std::vector<RankChoices> measured = {{2, 2, with(2)}, {3, 2, with(3)}, {4, 2, with(4)}};
  EXPECT_EQ(choices_for(measured, 2, 2), with(2));
  EXPECT_EQ(choices_for(measured, 2, 1), with(3)) << "bound to one core";
  EXPECT_EQ(choices_for(measured, 8, 2), with(4));
  EXPECT_EQ(choices_for(measured, 8, 64), with(2));
  const std::vector<RankChoices> large = {{2, 64, with(2)}, {16, 64, with(16)}};
  EXPECT_EQ(choices_for(large, 128, 64), default_choices(128, 64)) << "never measured with ranks that share cores";
  EXPECT_EQ(default_choices(3, 2).all_reduce_by_calls_bytes, 0u) << "more ranks than cores";
  EXPECT_THAT(to_string(default_choices(3, 2)), HasSubstr("a rank's share of an all_reduce never by system calls"));
}

}  // namespace
}  // namespace tutti

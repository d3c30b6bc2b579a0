// Tests of `tutti tune`: the regret of the selected algorithms, the files of measurements, and --explain.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "model/fit.h"
#include "model/network.h"
#include "tools/sim/run.h"
#include "tools/tune/explain.h"
#include "tools/tune/measure.h"
#include "tools/tune/regret.h"

namespace tutti::tool {
namespace {

RegretRow row(std::uint64_t bytes, const char* algorithm, bool chosen, double median_us, double least_us) {
  return {.collective = "all_reduce",
          .transport = "tcp",
          .ranks = 4,
          .bytes = bytes,
          .algorithm = algorithm,
          .chosen = chosen,
          .median_us = median_us,
          .least_us = least_us,
          .samples = 5};
}

// If a size has no selected algorithm, it has no regret and is left out.
TEST(Regret, IsTheChoicesTimeOverTheBestOnes) {
  const std::vector<RegretRow> rows{row(8, "ring", true, 30, 20), row(8, "tree", false, 20, 20),
                                    row(64, "ring", false, 30, 10), row(64, "tree", true, 10, 9),
                                    row(512, "ring", false, 30, 10)};
  const Regret regret = regret_of(rows);
  ASSERT_EQ(regret.points.size(), 2u) << "no row for 512 bytes has a selection";
  EXPECT_DOUBLE_EQ(regret.worst, 1.5);
  EXPECT_DOUBLE_EQ(regret.least_worst, 1);
  EXPECT_EQ(regret.points[0].best.algorithm, "tree");
  EXPECT_DOUBLE_EQ(regret.points[1].ratio(), 1);
  EXPECT_NE(to_text(regret).find("2 points"), std::string::npos);
  EXPECT_EQ(regret_of({}).points.size(), 0u);
}

TEST(Regret, ItsRowsAreReadBack) {
  const std::vector<RegretRow> rows{row(8, "ring", true, 30.5, 20), row(64, "tree", false, 10, 9)};
  const auto again = parse_regret(to_csv(rows));
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(*again, rows);
  EXPECT_NE(parse_regret("a,b,c").error().message.find("line 1"), std::string::npos);
  EXPECT_FALSE(parse_regret("all_reduce,tcp,4,8,ring,1,0,0,5").ok()) << "a time must not be 0";
}

TEST(Regret, ItsWordsAreExplainedBelowTheTable) {
  const std::string text = to_text(regret_of({row(8, "ring", true, 30, 20)}));
  EXPECT_NE(text.find("regret: the time of the chosen algorithm divided by that of the best one"), std::string::npos);
  EXPECT_NE(text.find("least: the same with the quickest sample"), std::string::npos);
}

// The noise is the median of the ratios p95_us / median_us, so one measurement with a slow sample does not matter.
TEST(TuneMeasurements, ShowHowNoisyTheMachineWas) {
  EXPECT_EQ(noise_of({}), 1);
  const std::vector<Measurement> quiet{{"copy", 8, 10, 11}, {"reduce", 8, 10, 12}, {"alone", 8, 10, 90}};
  EXPECT_DOUBLE_EQ(noise_of(quiet), 1.2);
  const std::vector<Measurement> busy{{"copy", 8, 10, 11}, {"reduce", 8, 10, 40}, {"alone", 8, 10, 90}};
  EXPECT_DOUBLE_EQ(noise_of(busy), 4);
  const std::vector<Measurement> crowded{{"copy", 8, 10, 11}, {"4 ranks: one_shot", 8, 10, 90}};
  EXPECT_DOUBLE_EQ(noise_of(crowded), 1.1) << "more ranks than cores vary anyway";
  EXPECT_LT(noise_of(quiet), kMuchNoise);
  EXPECT_GT(noise_of(busy), kMuchNoise);
}

TEST(TuneMeasurements, AreReadBack) {
  const std::vector<Measurement> measured{{"memory.one_way", 8, 0.25, 1.5}, {"mailboxes.crowd", 4, 12, 13}};
  const auto again = parse_measurements(measurements_csv(measured));
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(*again, measured);
  EXPECT_FALSE(parse_measurements("memory.one_way,8,0.25").ok());
  EXPECT_FALSE(parse_measurements("memory.one_way").ok());
}

TEST(Explain, ShowsEveryAlgorithmAndTheChoice) {
  const auto text = explain({.bytes = 1 << 20, .ranks = 4, .tcp = true});
  ASSERT_TRUE(text.ok()) << text.error().message;
  for (const char* word : {"ring", "double_tree", "one_shot", "two_shot", "* ", "latency us"}) {
    EXPECT_NE(text->find(word), std::string::npos) << word << " in\n" << *text;
  }
  EXPECT_NE(text->find("all_reduce of 1048576 bytes, 4 ranks"), std::string::npos) << *text;
  const auto blocks = explain({.kind = CollectiveKind::kAllGather, .bytes = 64, .ranks = 4, .tcp = true});
  ASSERT_TRUE(blocks.ok()) << blocks.error().message;
  EXPECT_NE(blocks->find("of 64 bytes a block (one rank's part of the longer buffer)"), std::string::npos) << *blocks;
  const auto shape = explain({.bytes = 1 << 20, .machines = 2, .shape = "dgx-h100"});
  ASSERT_TRUE(shape.ok()) << shape.error().message;
  EXPECT_NE(shape->find("2 x dgx-h100, 16 ranks"), std::string::npos) << *shape;
  EXPECT_EQ(explain({.bytes = 8, .shape = "no-such"}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(explain({.bytes = 8, .ranks = 3, .machines = 2}).ok());
}

// The rows must be the same to the last digit. Only wall-clock times may differ.
TEST(Explain, OfAShapeSaysWhatTuttiSimSays) {
  const auto task = resolve({.collective = "all_gather", .shape = "dgx-a100", .machines = 2, .bytes = "16M"});
  ASSERT_TRUE(task.ok()) << task.error().message;
  const auto network = Network::create(task->cluster);
  ASSERT_TRUE(network.ok());
  const auto report = run_sim_task(*task, *network);
  ASSERT_TRUE(report.ok()) << report.error().message;
  const auto text = explain({.kind = CollectiveKind::kAllGather, .bytes = 1 << 20, .machines = 2, .shape = "dgx-a100"});
  ASSERT_TRUE(text.ok()) << text.error().message;
  for (const SimRow& row : report->rows) {
    const std::string line = fmt::format("{:<20} {:<8} {:>14.3f}", name_of(row), "simple", row.result.time_us);
    EXPECT_NE(text->find(line), std::string::npos) << line << " in\n" << *text;
  }
  EXPECT_NE(text->find("calls that GPUs carry out are not predicted"), std::string::npos) << *text;
  const auto many = explain({.bytes = 1 << 20, .ranks = 128, .machines = 64, .shape = "cpu-2socket"});
  ASSERT_TRUE(many.ok()) << many.error().message;
  EXPECT_NE(many->find("more than 64 ranks are not predicted"), std::string::npos) << *many;
}

}  // namespace
}  // namespace tutti::tool

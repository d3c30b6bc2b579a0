// The words of `tutti sim`, and what it tells.
#include "tools/sim_options.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/sim_report.h"
#include "tools/sim_svg.h"

namespace tutti::tool {
namespace {

SimTask resolved(const SimArguments& arguments) {
  Result<SimTask> task = resolve(arguments);
  EXPECT_TRUE(task.ok()) << to_string(task.error());
  return *std::move(task);
}

TEST(SimOptions, ARankCountsItsMachinesAndBytes) {
  SimTask task = resolved({.machines = 4, .bytes = "1M", .stragglers = {"3:2.5"}});
  EXPECT_EQ(task.collective.ranks, 32u);
  EXPECT_EQ(task.collective.nodes[31], 3u);
  EXPECT_EQ(task.block_bytes, 1u << 20);
  ASSERT_EQ(task.options.stragglers.size(), 1u);
  EXPECT_EQ(task.options.stragglers[0].rank, 3u);
  EXPECT_EQ(task.options.stragglers[0].factor, 2.5);
  EXPECT_EQ(resolved({.collective = "all_gather", .machines = 4, .bytes = "1M"}).block_bytes, 1u << 15);
  EXPECT_EQ(resolved({.collective = "gather", .machines = 1, .bytes = "1M"}).block_bytes, 1u << 17);
  EXPECT_EQ(resolved({.collective = "broadcast", .bytes = "1M", .root = 3}).collective.root, 3u);
}

TEST(SimOptions, TypingErrorsAreAnsweredWithWhatThereIs) {
  const auto answer = [](const SimArguments& arguments) {
    const Result<SimTask> task = resolve(arguments);
    EXPECT_FALSE(task.ok());
    return task.ok() ? "" : task.error().message;
  };
  EXPECT_NE(answer({.collective = "allreduce"}).find("all_reduce"), std::string::npos);
  EXPECT_NE(answer({.shape = "dgx"}).find("dgx-h100"), std::string::npos);
  EXPECT_NE(answer({.bytes = "1T"}).find("1024G"), std::string::npos);
  EXPECT_NE(answer({.algorithm = "binomial"}).find("double_tree"), std::string::npos);
  EXPECT_NE(answer({.protocol = "LL"}).find("ll128"), std::string::npos);
  EXPECT_NE(answer({.root = 8}).find("0 to 7"), std::string::npos);
  EXPECT_NE(answer({.model = "flow"}).find("flows"), std::string::npos);
  for (const char* const wrong : {"3", "3:", ":2", "3:2x", "-1:2", "x:2"}) {
    EXPECT_NE(answer({.stragglers = {wrong}}).find("RANK:FACTOR"), std::string::npos) << wrong;
  }
}

TEST(SimReport, JsonHasTheBestRowAtTheTop) {
  const SimTask task = resolved({.bytes = "8M"});
  SimReport report;
  report.rows.push_back({.algorithm = Algorithm::kTwoShot, .result = {.time_us = 100, .messages = 5}});
  report.rows.push_back({.algorithm = Algorithm::kRing, .result = {.time_us = 200}});
  report.left_out = {"one_shot: too many"};
  const auto json = nlohmann::json::parse(to_json(task, report));
  EXPECT_EQ(json["schema"], "tutti-sim");
  EXPECT_EQ(json["algorithm"], "two_shot");
  EXPECT_EQ(json["time_us"], 100);
  EXPECT_DOUBLE_EQ(json["algbw_GBps"], (8 << 20) / 100.0 / 1000);
  EXPECT_DOUBLE_EQ(json["busbw_GBps"], (8 << 20) / 100.0 / 1000 * 2 * 7 / 8);
  EXPECT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][1]["algorithm"], "ring");
  EXPECT_EQ(json["left_out"][0], "one_shot: too many");
  EXPECT_NE(to_text(task, report).find("two_shot"), std::string::npos);
}

TEST(SimSvg, DrawsEveryStepAndEscapesNames) {
  SimulateResult result{.time_us = 10};
  result.trace = {{.rank = 0, .end_us = 4}, {.rank = 1, .ready_us = 1, .begin_us = 2, .end_us = 10}};
  result.busiest = {{.name = "a -> b", .bytes = 1, .utilisation = 0.5}};
  const std::string svg = to_svg(result, "title <1>");
  EXPECT_NE(svg.find("a -&gt; b"), std::string::npos);
  EXPECT_NE(svg.find("title &lt;1&gt;"), std::string::npos);
  EXPECT_NE(svg.find("2.000 to 10.000 us"), std::string::npos);
  EXPECT_EQ(svg.find("title <1>"), std::string::npos);
}

}  // namespace
}  // namespace tutti::tool

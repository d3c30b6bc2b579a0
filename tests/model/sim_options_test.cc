// Tests the command-line options and the report of `tutti sim`.
#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/common/file.h"
#include "tools/sim/options.h"
#include "tools/sim/report.h"
#include "tools/sim/run.h"
#include "tools/sim/svg.h"
#include "topology/xml/xml.h"

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

TEST(SimOptions, NearWordsAreSuggestedAndNothingIsNotSent) {
  const auto answer = [](const SimArguments& arguments) {
    const Result<SimTask> task = resolve(arguments);
    EXPECT_FALSE(task.ok());
    return task.ok() ? "" : task.error().message;
  };
  EXPECT_NE(answer({.algorithm = "rign"}).find("did you mean ring?"), std::string::npos);
  EXPECT_NE(answer({.bytes = "1GB"}).find("1GiB"), std::string::npos);
  EXPECT_NE(answer({.bytes = "0"}).find("at least 1"), std::string::npos);
  EXPECT_NE(answer({.collective = "all_gather", .bytes = "7"}).find("at least 8"), std::string::npos);
  EXPECT_EQ(resolved({.collective = "barrier", .bytes = "0"}).bytes, 0u);
}

// ---- machines from a file ----

class MachineOfOnesOwn : public testing::Test {
 protected:
  void SetUp() override {
    const Result<Cluster> shape = make_shape({.name = "dgx-a100"});
    ASSERT_TRUE(shape.ok());
    const Result<std::string> xml = to_xml(shape->machine);
    ASSERT_TRUE(xml.ok());
    ASSERT_TRUE(write_file(path_, *xml).ok());
  }
  void TearDown() override { std::remove(path_.c_str()); }
  const std::string path_ = testing::TempDir() + "tutti_sim_machine.xml";
};

TEST_F(MachineOfOnesOwn, IsSimulatedAsTheShapeThatItIs) {
  const SimTask shape = resolved({.shape = "dgx-a100", .machines = 3, .fabric = "fat-tree", .machines_per_leaf = 2});
  const SimTask file = resolved({.xml_path = path_, .machines = 3, .machines_per_leaf = 2});
  EXPECT_EQ(file.parameters, shape.parameters);
  EXPECT_EQ(file.collective.ranks, 24u);
  EXPECT_NE(file.machine.find(path_), std::string::npos);
  EXPECT_NE(file.machine.find("8 NICs of 200 Gbit/s"), std::string::npos) << file.machine;
  std::vector<double> times;
  for (const SimTask* task : {&shape, &file}) {
    const Result<Network> network = Network::create(task->cluster);
    ASSERT_TRUE(network.ok()) << to_string(network.error());
    const Result<SimReport> report = run_sim_task(*task, *network);
    ASSERT_TRUE(report.ok()) << to_string(report.error());
    times.push_back(report->rows.front().result.time_us);
  }
  EXPECT_DOUBLE_EQ(times[0], times[1]);
}

TEST_F(MachineOfOnesOwn, IsRefusedBesideAShapeAndWhereItIsWrong) {
  const Result<SimTask> both = resolve({.shape = "dgx-h100", .xml_path = path_});
  ASSERT_FALSE(both.ok());
  EXPECT_NE(both.error().message.find("--shape dgx-h100 and --xml " + path_), std::string::npos);
  EXPECT_FALSE(resolve({.xml_path = path_, .nics = 2}).ok()) << "the file already contains the NICs";
  EXPECT_FALSE(resolve({.xml_path = path_ + ".not"}).ok());
  ASSERT_TRUE(write_file(path_, "<system version=\"1\"><cpu numaid=\"x\"/></system>").ok());
  const Result<SimTask> wrong = resolve({.xml_path = path_});
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find(path_ + ":1:"), std::string::npos) << wrong.error().message;
}

TEST(SimReport, SaysWhatWasAssumedAndInjected) {
  const SimTask task = resolved({.shape = "dgx-a100",
                                 .machines = 2,
                                 .bytes = "1M",
                                 .slot_bytes = "64K",
                                 .channels = 4,
                                 .stragglers = {"3:2.5"},
                                 .dead_links = {"machine 0: gpu0 -> nvswitch"},
                                 .jitter = 0.25,
                                 .seed = 9,
                                 .oversubscription = 2});
  const Result<Network> network = Network::create(task.cluster);
  ASSERT_TRUE(network.ok());
  const Result<SimReport> report = run_sim_task(task, *network);
  ASSERT_TRUE(report.ok()) << to_string(report.error());
  const std::string text = to_text(task, *report);
  for (const char* const word :
       {"shape dgx-a100", "rail-optimised, 20 machines to a leaf switch", "oversubscription 2", "gpu sm_80, defaults",
        "4 channels, 8 slots of 64 KiB", "straggler 3:2.5", "dead link \"machine 0: gpu0 -> nvswitch\"",
        "jitter 0.25, seed 9", "more that carry as much or less"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << " in\n" << text;
  }
  const auto json = nlohmann::json::parse(to_json(task, *report));
  EXPECT_EQ(json["assumed"]["fabric"]["oversubscription"], 2);
  EXPECT_EQ(json["assumed"]["slot_bytes"], 65536);
  EXPECT_EQ(json["injected"]["stragglers"][0]["rank"], 3);
  EXPECT_EQ(json["injected"]["jitter"], 0.25);
}

// With 64 ranks, one_shot has too many messages for the flow model, but the other algorithms do not. All compared
// rows must use the same model.
TEST(SimRun, RowsThatAreComparedAreToldByOneModel) {
  const SimTask task = resolved({.machines = 8, .bytes = "512M"});
  const Result<Network> network = Network::create(task.cluster);
  ASSERT_TRUE(network.ok());
  SimTask one = task;
  one.algorithm = Algorithm::kRecursiveDoubling;
  const Result<SimReport> alone = run_sim_task(one, *network);
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->rows[0].result.model, SimulationModel::kFlows);
  const Result<SimReport> report = run_sim_task(task, *network);
  ASSERT_TRUE(report.ok());
  ASSERT_GT(report->rows.size(), 3u);
  for (const SimRow& row : report->rows) EXPECT_EQ(row.result.model, report->rows[0].result.model) << name_of(row);
  EXPECT_NE(report->rows[0].result.model, SimulationModel::kFlows);
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

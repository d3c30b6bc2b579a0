// Tests of NCCL's tuner plugins, and of plugins that cannot be used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "nccl/plugin_jobs.h"

namespace tutti::nccl_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Calls each of NCCL's five tuned collectives and all_to_all, on `count` floats.
std::string call_all(ncclComm_t comm, int rank, int ranks, std::size_t count) {
  std::vector<float> in(count * static_cast<std::size_t>(ranks), static_cast<float>(rank + 1));
  std::vector<float> out(in.size());
  const int sum_of_ranks = ranks * (ranks + 1) / 2;
  const auto sum = static_cast<float>(sum_of_ranks);
  TUTTI_NCCL_TRY(ncclAllReduce(in.data(), out.data(), count, ncclFloat, ncclSum, comm, nullptr));
  TUTTI_NCCL_WANT(out[0] == sum && out[count - 1] == sum);
  TUTTI_NCCL_TRY(ncclAllGather(in.data(), out.data(), count, ncclFloat, comm, nullptr));
  TUTTI_NCCL_WANT(out[0] == 1 && out.back() == static_cast<float>(ranks));
  TUTTI_NCCL_TRY(ncclReduceScatter(in.data(), out.data(), count, ncclFloat, ncclSum, comm, nullptr));
  TUTTI_NCCL_WANT(out[0] == sum && out[count - 1] == sum);
  TUTTI_NCCL_TRY(ncclBroadcast(in.data(), out.data(), count, ncclFloat, 1, comm, nullptr));
  TUTTI_NCCL_WANT(out[0] == 2 && out[count - 1] == 2);
  TUTTI_NCCL_TRY(ncclReduce(in.data(), out.data(), count, ncclFloat, ncclSum, 1, comm, nullptr));
  TUTTI_NCCL_WANT(rank != 1 || out[0] == sum);
  TUTTI_NCCL_TRY(ncclAlltoAll(in.data(), out.data(), count, ncclFloat, comm, nullptr));
  TUTTI_NCCL_WANT(out[0] == 1 && out.back() == static_cast<float>(ranks));
  return {};
}

class TunerOfEachVersion : public NcclPluginVersions {};
INSTANTIATE_TEST_SUITE_P(NcclPlugins, TunerOfEachVersion, testing::Values(4, 5, 6));

TEST_P(TunerOfEachVersion, ReceivesTheCallsAndTheirCosts) {
  set("NCCL_TUNER_PLUGIN", tuner(GetParam()));
  const std::string log =
      run(3, [](ncclComm_t comm, int rank, int ranks) { return call_all(comm, rank, ranks, 1000); });
  const std::string start = "init v" + std::to_string(GetParam()) + " ranks 3 nodes 1";
  EXPECT_THAT(lines("init"), ElementsAre(StartsWith(start), StartsWith(start), StartsWith(start)));
  if (GetParam() > 4) {
    EXPECT_THAT(lines("init"), Each(HasSubstr(" domains 1 3 3")));
    EXPECT_EQ(lines("id ").size(), 3u);
    EXPECT_THAT(lines("id "), Each(lines("id ").front())) << "the id is the same on all ranks";
    EXPECT_THAT(lines("id "), Each(Not("id 0000000000000000")));
  }
  const std::string rest = " registered 0 channels 0";
  // One letter for each algorithm and protocol: '-' not available, '+' a positive cost.
  const std::map<int, std::string> costs = {{0, "---+++---------------"},
                                            {1, "---+++---------------"},
                                            {2, "---+++------------+++"},
                                            {3, "---+++------------+++"},
                                            {4, "++++++---------------"}};
  for (const auto& [function, table] : costs) {
    const std::string call = "call known function " + std::to_string(function) + " bytes " +
                             std::to_string(function == 2 || function == 3 ? 12000 : 4000) + " operations 1 table 7x3 ";
    EXPECT_THAT(lines("function " + std::to_string(function)),
                ElementsAre(call + table + rest, call + table + rest, call + table + rest));
  }
  EXPECT_EQ(lines("call").size(), 15u) << "all_to_all is not tuned";
  EXPECT_THAT(lines("end"), ElementsAre("end known", "end known", "end known"));
  EXPECT_TRUE(lines("chunk").empty());
  EXPECT_NE(log.find("tutti: warn: plugin: a warning of the test tuner, 17\n"), std::string::npos) << log;
  EXPECT_EQ(log.find("information of the test tuner"), std::string::npos) << log;
}

// Returns the algorithms in the lines of the profiler for this collective, without repetitions.
std::set<std::string> algorithms_of(const std::vector<std::string>& lines, const std::string& function) {
  std::set<std::string> found;
  for (const std::string& line : lines) {
    std::istringstream words(line.substr(std::min(line.size(), line.find(" " + function + " #"))));
    std::vector<std::string> all;
    for (std::string word; words >> word;) all.push_back(word);
    if (all.size() > 11) found.insert(all[11]);
  }
  return found;
}

TEST_P(TunerOfEachVersion, ChoosesTheAlgorithm) {
  set("NCCL_TUNER_PLUGIN", tuner(GetParam()));
  set("NCCL_PROFILER_PLUGIN", profiler(6));
  set("TUTTI_TEST_MASK", kCollectives);
  const Body body = [](ncclComm_t comm, int rank, int ranks) { return call_all(comm, rank, ranks, 1000); };
  const auto algorithm = [&](const char* wish, const char* function) {
    set("TUTTI_TEST_TUNER", wish);
    run(3, body);
    const auto found = algorithms_of(lines(), function);
    EXPECT_EQ(found.size(), 1u);
    return found.empty() ? "none" : *found.begin();
  };
  EXPECT_EQ(algorithm("set 0 0 0", "AllReduce"), "double_tree");
  EXPECT_EQ(algorithm("set 1 2 0", "AllReduce"), "ring");
  EXPECT_EQ(algorithm("set 6 1 0", "AllGather"), "circulant");
  EXPECT_EQ(algorithm("set 6 1 0", "ReduceScatter"), "circulant");
  EXPECT_EQ(algorithm("set 1 1 0", "ReduceScatter"), "ring");
}

TEST_F(NcclPlugins, ATunerThatChangesNothingOrTheImpossibleLeavesTheChoiceToTutti) {
  set("NCCL_PROFILER_PLUGIN", profiler(6));
  set("TUTTI_TEST_MASK", kCollectives);
  run(3, reduce_once);
  const auto usual = algorithms_of(lines(), "AllReduce");
  ASSERT_EQ(usual.size(), 1u);
  EXPECT_FALSE(usual.contains("ring") || usual.contains("double_tree")) << *usual.begin();
  set("NCCL_TUNER_PLUGIN", tuner(6));
  EXPECT_EQ(run(3, reduce_once).find("NCCL_TUNER_PLUGIN"), std::string::npos);
  EXPECT_EQ(algorithms_of(lines(), "AllReduce"), usual);
  for (const std::string wish : {"all -1", "all nan", "all inf", "all -7", "fail"}) {
    set("TUTTI_TEST_TUNER", wish);
    const std::string log = run(3, [](ncclComm_t comm, int rank, int ranks) {
      TUTTI_NCCL_WANT(reduce_once(comm, rank, ranks).empty());
      return reduce_once(comm, rank, ranks);
    });
    EXPECT_EQ(algorithms_of(lines(), "AllReduce"), usual) << wish;
    const std::string warning = "warn: NCCL_TUNER_PLUGIN: " + tuner(6) + " " +
                                (wish == "fail" ? "returned 3 for a call of 4000 bytes" : "excludes every algorithm");
    std::size_t count = 0;
    for (std::size_t at = log.find(warning); at != std::string::npos; at = log.find(warning, at + 1)) ++count;
    EXPECT_EQ(count, 3u) << wish << ": one warning for each rank\n" << log;
  }
  // NVLS, which was offered as not available.
  set("TUTTI_TEST_TUNER", "set 4 2 0");
  run(3, reduce_once);
  const auto found = algorithms_of(lines(), "AllReduce");
  EXPECT_TRUE(found == std::set<std::string>{"ring"} || found == std::set<std::string>{"double_tree"});
}

TEST_F(NcclPlugins, ATunerCannotChooseWhatTheVariablesExclude) {
  set("NCCL_TUNER_PLUGIN", tuner(6));
  set("NCCL_PROFILER_PLUGIN", profiler(6));
  set("TUTTI_TEST_MASK", kCollectives);
  set("TUTTI_TEST_TUNER", "set 0 0 0");
  set("NCCL_ALGO", "allreduce:ring");
  run(2, reduce_once);
  EXPECT_THAT(lines("call"), Each(HasSubstr(" ---+++---------------")));
  EXPECT_EQ(algorithms_of(lines(), "AllReduce"), std::set<std::string>{"ring"});
  unsetenv("NCCL_ALGO");
  set("NCCL_PROTO", "Simple");
  run(2, reduce_once);
  EXPECT_THAT(lines("call"), Each(HasSubstr(" --+--+---------------")));
}

TEST_F(NcclPlugins, DifferentAnswersOfATunerAreAnErrorThatNamesARankAndTheAlgorithms) {
  set("NCCL_TUNER_PLUGIN", tuner(5));
  run(3, [](ncclComm_t comm, int rank, int) -> std::string {
    setenv("TUTTI_TEST_TUNER", rank == 1 ? "set 0 2 0" : "set 1 2 0", 1);
    std::vector<float> values(1000, 1.0F);
    const ncclResult_t result =
        ncclAllReduce(values.data(), values.data(), values.size(), ncclFloat, ncclSum, comm, nullptr);
    const std::string message = ncclGetLastError(nullptr);
    if (result != ncclInvalidUsage) return "the result is " + std::to_string(result) + ": " + message;
    const bool names = message.find("rank ") != std::string::npos && message.find("ring") != std::string::npos &&
                       message.find("double_tree") != std::string::npos;
    return names ? "" : "the message is " + message;
  });
}

TEST_F(NcclPlugins, AnUnusablePluginIsReportedOnceAndLeftOut) {
  const std::map<std::string, std::string> reasons = {
      {tuner(3), "is not used: it has only version 3 of ncclTunerPlugin_v, and Tutti supports 6, 5, 4"},
      {TUTTI_PLUGIN_DIR "/libnccl-tuner-incomplete.so", "is not used: one of the functions in its table is null"},
      {profiler(6), "is not used: it has no table ncclTunerPlugin_vN"},
      {TUTTI_PLUGIN_DIR "/missing.so", "the plugin is not used, because it cannot be opened: "},
      {__FILE__, "the plugin is not used, because it cannot be opened: "}};
  for (const auto& [file, reason] : reasons) {
    set("NCCL_TUNER_PLUGIN", file);
    const std::string log = run(2, [](ncclComm_t comm, int rank, int ranks) -> std::string {
      ncclComm_t child = nullptr;
      TUTTI_NCCL_TRY(ncclCommSplit(comm, 0, 0, &child, nullptr));
      TUTTI_NCCL_TRY(ncclCommDestroy(child));
      return reduce_once(comm, rank, ranks);
    });
    std::size_t count = 0;
    for (std::size_t at = log.find("NCCL_TUNER_PLUGIN"); at != std::string::npos;
         at = log.find("NCCL_TUNER_PLUGIN", at + 1)) {
      ++count;
    }
    EXPECT_EQ(count, 2u) << "once in each process: " << log;
    EXPECT_NE(log.find(file), std::string::npos) << log;
    EXPECT_NE(log.find(reason), std::string::npos) << log;
  }
}

TEST_F(NcclPlugins, AFailingInitLeavesThePluginOutForTheCommunicator) {
  set("NCCL_TUNER_PLUGIN", tuner(4));
  set("NCCL_PROFILER_PLUGIN", profiler(5));
  set("TUTTI_TEST_TUNER", "fail_init");
  set("TUTTI_TEST_PROFILER", "fail_init");
  set("TUTTI_TEST_MASK", kCollectives);
  const std::string log = run(2, reduce_once);
  EXPECT_NE(log.find("NCCL_TUNER_PLUGIN: " + tuner(4) + " is not used for a communicator, because its init returned 3"),
            std::string::npos)
      << log;
  EXPECT_NE(
      log.find("NCCL_PROFILER_PLUGIN: " + profiler(5) + " is not used for a communicator, because its init returned 2"),
      std::string::npos)
      << log;
  EXPECT_TRUE(lines("call").empty() && lines("start").empty() && lines("end").empty() && lines("finalize").empty());
}

// The program of these tests is linked with the folder of the plugins as DT_RPATH, so that names without a folder are
// found, as with LD_LIBRARY_PATH.
TEST_F(NcclPlugins, AreFoundByNameAndByTheDefaultName) {
  set("NCCL_TUNER_PLUGIN", "v4");
  set("NCCL_PROFILER_PLUGIN", "libnccl-profiler-v5.so");
  run(1, [](ncclComm_t, int, int) { return std::string(); });
  EXPECT_EQ(lines("init").size(), 2u);
  EXPECT_EQ(lines("init v4").size() + lines("init v5").size(), 2u);
  unsetenv("NCCL_TUNER_PLUGIN");
  unsetenv("NCCL_PROFILER_PLUGIN");
  run(1, [](ncclComm_t, int, int) { return std::string(); });
  EXPECT_EQ(lines("init v6").size(), 1u) << "libnccl-tuner.so; there is no libnccl-profiler.so";
  set("NCCL_TUNER_PLUGIN", "None");
  EXPECT_EQ(run(1, [](ncclComm_t, int, int) { return std::string(); }), "");
  EXPECT_TRUE(lines().empty());
}

}  // namespace
}  // namespace tutti::nccl_test

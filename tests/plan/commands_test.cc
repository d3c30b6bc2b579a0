// Tests the commands `tutti plan` and `tutti verify` within this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "tools/common/exit_status.h"
#include "tools/plan/command.h"
#include "tools/plan/verify_command.h"

namespace tutti::tool {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
  std::string usage;  // the message of CLI11 for an invalid command line
};

Outcome run(const std::string& command_line) {
  CLI::App app("", "tutti");
  Outcome outcome;
  add_plan_command(app, outcome.exit_code);
  add_verify_command(app, outcome.exit_code);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  try {
    app.parse(command_line);
  } catch (const CLI::ParseError& error) {
    outcome.usage = error.what();
  }
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(PlanCommand, PrintsTheStepsAndThenTheProof) {
  const Outcome outcome = run("plan all_reduce --algorithm ring --ranks 3");
  EXPECT_EQ(outcome.exit_code, kExitSuccess);
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("rank 2 channel 0: 4: out[1] = recv(1)\nproved: result, no deadlock, no race"),
                    HasSubstr("rank 0 channel 0: 0: in[0] ; send 1\n")));
}

TEST(PlanCommand, PrintsOneRankOnRequest) {
  const Outcome outcome = run("plan all_reduce --algorithm two_shot --ranks 5 --rank 3");
  EXPECT_EQ(outcome.exit_code, kExitSuccess);
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("rank 3 channel 0: 0"), testing::Not(HasSubstr("rank 2 channel")), HasSubstr("proved:")));
}

TEST(PlanCommand, SaysThatAPlanOfVeryManyRanksWasNotProved) {
  const Outcome outcome = run("plan all_reduce --algorithm double_tree --ranks 100000 --rank 99999");
  EXPECT_EQ(outcome.exit_code, kExitSuccess);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("rank 99999 channel 0: 0"), HasSubstr("\nnot proved: ")));
}

TEST(PlanCommand, WritesCallsForOtherSimulators) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "tutti_plan_export";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const Outcome outcome = run("plan all_reduce --algorithm ring --ranks 3 --bytes 3K --goal " +
                              (folder / "ring.goal").string() + " --chakra " + folder.string());
  EXPECT_EQ(outcome.exit_code, kExitSuccess) << outcome.err;
  std::stringstream goal;
  goal << std::ifstream(folder / "ring.goal").rdbuf();
  EXPECT_THAT(goal.str(), AllOf(HasSubstr("num_ranks 3\n\nrank 0 {\n"), HasSubstr("send 1024b to 1 tag 0\n")));
  for (const char* name : {"plan.0.et", "plan.1.et", "plan.2.et"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / name)) << name;
  }
  std::filesystem::remove_all(folder);
  const Outcome unsized = run("plan all_reduce --algorithm ring --ranks 3 --goal x.goal");
  EXPECT_EQ(unsized.exit_code, kExitUsage);
  EXPECT_THAT(unsized.err, HasSubstr("give it with --bytes"));
  EXPECT_EQ(run("plan all_reduce --algorithm ring --ranks 3 --bytes 1M").exit_code, kExitUsage);
  EXPECT_EQ(run("plan all_reduce --algorithm ring --ranks 3 --bytes 1M --goal x --slot-bytes 100").exit_code,
            kExitUsage);
}

TEST(PlanCommand, PutsRanksOnMachines) {
  const Outcome outcome = run("plan all_reduce --algorithm hierarchical --ranks 5 --nodes 2 --rank 3");
  EXPECT_EQ(outcome.exit_code, kExitSuccess);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("recv(4)"), HasSubstr("; after 0:"), HasSubstr(" of the tile before\n"),
                                 HasSubstr("proved: result")));
  EXPECT_EQ(nodes_of_equal_size(5, 2), (std::vector<std::uint32_t>{0, 0, 0, 1, 1}));
  EXPECT_EQ(nodes_of_equal_size(4, 4), (std::vector<std::uint32_t>{0, 1, 2, 3}));
}

// In place, one_shot overwrites data that peers may still read, so it must not use windows in place.
TEST(PlanCommand, SaysWhichWaysOfMemoryWereProved) {
  const std::string path = testing::TempDir() + "tutti_plan_command_ways.json";
  for (const auto& [algorithm, ways] :
       {std::pair("ring", "no race, staged and through windows, in place and out of place, over 2 tiles"),
        std::pair("one_shot", "no race, staged in place and out of place, through windows out of place (calls")}) {
    const std::string written = std::string("plan all_reduce --ranks 3 --algorithm ") + algorithm + " --json " + path;
    EXPECT_THAT(run(written).out, HasSubstr(ways));
    EXPECT_THAT(run("verify --plan " + path).out, HasSubstr(ways));
  }
  std::filesystem::remove(path);
}

// The ring of 600 ranks takes about 80 MB of text, which is more than the parser accepts.
TEST(PlanCommand, WritesNoFileThatCouldNotBeReadBack) {
  const std::string path = testing::TempDir() + "tutti_plan_command_large.json";
  std::filesystem::remove(path);
  const Outcome text = run("plan all_reduce --algorithm ring --ranks 600 --json " + path);
  EXPECT_EQ(text.exit_code, kExitUsage);
  EXPECT_THAT(text.err, AllOf(HasSubstr("could not be read back"), HasSubstr("at most 67108864")));
  EXPECT_THAT(run("plan all_reduce --algorithm two_shot --ranks 1024 --json " + path).err,
              HasSubstr("MiB of vector clocks"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(PlanCommand, ProvesOtherCollectives) {
  const Outcome outcome = run("plan all_gather --algorithm circulant --ranks 3");
  EXPECT_EQ(outcome.exit_code, kExitSuccess);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("all_gather circulant, 3 ranks"), HasSubstr("proved: result")));
}

TEST(PlanCommand, DrawsIntoAFile) {
  const std::string path = testing::TempDir() + "tutti_plan_command_test.svg";
  EXPECT_EQ(run("plan all_reduce --algorithm ring --ranks 4 --svg " + path).exit_code, kExitSuccess);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_THAT(text.str(), EndsWith("</svg>\n"));
  std::filesystem::remove(path);
}

TEST(PlanCommand, TellsWhyAFileCannotBeWritten) {
  const Outcome missing = run("plan all_reduce --algorithm ring --ranks 4 --svg /no/such/folder/plan.svg");
  EXPECT_EQ(missing.exit_code, kExitFailure);
  EXPECT_THAT(missing.err, HasSubstr("No such file or directory"));
  const Outcome full = run("plan all_reduce --algorithm ring --ranks 4 --svg /dev/full");
  EXPECT_EQ(full.exit_code, kExitFailure);
  EXPECT_THAT(full.err, HasSubstr("No space left on device"));
}

TEST(PlanCommand, RefusesNonsenseWithWhatWouldBeRight) {
  EXPECT_THAT(run("plan all_reduce --algorithm rign --ranks 4").usage,
              AllOf(HasSubstr("\"rign\" is not one of ring, double_tree, "), HasSubstr("did you mean ring?")));
  EXPECT_THAT(run("plan all_reduce --algorithm auto --ranks 4").usage, HasSubstr("is not one of"));
  EXPECT_THAT(run("plan all_reuce --algorithm ring --ranks 4").usage, HasSubstr("all_reduce"));
  EXPECT_THAT(run("plan all_reduce --algorithm ring --ranks 0").usage, HasSubstr("--ranks"));
  EXPECT_THAT(run("plan all_reduce --algorithm ring --ranks -1").usage, HasSubstr("--ranks"));
  EXPECT_THAT(run("plan all_reduce --algorithm ring").usage, HasSubstr("--ranks is required"));

  const Outcome rootless = run("plan all_reduce --algorithm ring --ranks 4 --root 1");
  EXPECT_EQ(rootless.exit_code, kExitUsage);
  EXPECT_THAT(rootless.err, HasSubstr("all_reduce has no root"));
  for (const char* nodes : {"0", "5"}) {
    const Outcome machines = run(std::string("plan all_reduce --algorithm hierarchical --ranks 4 --nodes ") + nodes);
    EXPECT_EQ(machines.exit_code, kExitUsage);
    EXPECT_THAT(machines.err, HasSubstr("is not a number from 1 to 4"));
  }
  const Outcome other = run("plan all_gather --algorithm two_shot --ranks 4");
  EXPECT_EQ(other.exit_code, kExitUsage);
  EXPECT_THAT(other.err, HasSubstr("not one that has a plan for all_gather; choose"));

  const Outcome outside = run("plan all_reduce --algorithm ring --ranks 4 --rank 4");
  EXPECT_EQ(outside.exit_code, kExitUsage);
  EXPECT_THAT(outside.err, HasSubstr("--rank: \"4\" is not a number from 0 to 3"));
  const Outcome many = run("plan all_reduce --algorithm one_shot --ranks 1025");
  EXPECT_EQ(many.exit_code, kExitUsage);
  EXPECT_THAT(many.err, HasSubstr("at most 1024 ranks"));
  EXPECT_EQ(run("plan all_reduce --algorithm ring --ranks 1025").exit_code, kExitUsage);
}

TEST(PlanCommand, PrintsTheFormWithRuns) {
  const Outcome runs = run("plan all_gather --algorithm circulant --ranks 8 --runs --rank 5");
  EXPECT_EQ(runs.exit_code, kExitSuccess) << runs.err;
  EXPECT_THAT(runs.out, AllOf(HasSubstr(", up to 4 chunks in a message"),
                              HasSubstr("rank 5 channel 0: 4: out[5 + 4] ; send 1\n"), HasSubstr("proved: ")));
  const Outcome none = run("plan all_reduce --algorithm ring --ranks 4 --runs");
  EXPECT_EQ(none.exit_code, kExitUsage);
  EXPECT_THAT(none.err, HasSubstr("all_reduce ring has no form with runs (--runs)"));
}

TEST(VerifyCommand, ProvesARangeAndCountsMutations) {
  const Outcome outcome = run("verify --ranks 2..9 --collective reduce_scatter --algorithm circulant");
  EXPECT_EQ(outcome.exit_code, kExitSuccess);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("proved 14 plans (1 collective, 1 algorithm, ranks 2..9): "),
                                 HasSubstr("mutations: tried "), EndsWith(", missed 0\n")));
  EXPECT_EQ(outcome.err, "") << "no progress bar if stderr is not a terminal";
}

TEST(VerifyCommand, ProvesEveryAlgorithmOfEveryCollective) {
  const Outcome outcome = run("verify --ranks 3");
  EXPECT_EQ(outcome.exit_code, kExitSuccess) << outcome.out;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr(std::to_string(planned_collectives().size()) + " collectives, "),
                                 EndsWith(", missed 0\n")));
}

TEST(VerifyCommand, TakesOneAlgorithmAndOneRankCount) {
  EXPECT_THAT(run("verify --ranks 12 --collective all_reduce --algorithm double_tree").out,
              HasSubstr("proved 1 plans (1 collective, 1 algorithm, ranks 12..12): "));
}

TEST(VerifyCommand, ProvesPlansThatDependOnMachinesForThreeShapesOfThem) {
  EXPECT_THAT(run("verify --ranks 6 --algorithm hierarchical").out, HasSubstr("proved 7 plans "));
  EXPECT_THAT(run("verify --ranks 2 --algorithm hierarchical").out, HasSubstr("proved 4 plans "));
}

TEST(VerifyCommand, RefusesPairsThatHaveNoPlan) {
  const Outcome outcome = run("verify --collective reduce_scatter --algorithm hierarchical_tree");
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("no plan of reduce_scatter is called hierarchical_tree"));
}

TEST(VerifyCommand, SaysWhatItSkipsAndDoesNotCallNothingProved) {
  const Outcome outcome = run("verify --ranks 1025 --collective all_reduce --algorithm two_shot");
  EXPECT_EQ(outcome.exit_code, kExitFailure);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("skipped: two_shot"), HasSubstr("FAILED; proved 0 plans")));
}

// Runs in a child process that may allocate only 300 MiB more address space.
TEST(VerifyCommand, LeavesOutPlansThatMemoryDoesNotHold) {
  const auto left_out = [] {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t most = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{300} << 20);
    const rlimit limit{.rlim_cur = most, .rlim_max = most};
    if (setrlimit(RLIMIT_AS, &limit) != 0) return false;
    const std::string out = run("verify --ranks 4096 --collective all_reduce --algorithm ring").out;
    return out.find("steps, which need 2.5 GiB of memory, and ") != std::string::npos &&
           out.find(" MiB are available (limit of ulimit -v)") != std::string::npos;
  };
  const pid_t child = fork();
  if (child == 0) std::_Exit(left_out() ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(VerifyCommand, RefusesRangesThatAreNone) {
  for (const char* range : {"9..2", "0..4", "0", "a", "2..", "..4", "2...4", "2-4", "2..4x", "-2..4", "5000"}) {
    EXPECT_THAT(run(std::string("verify --ranks=") + range).usage, HasSubstr("--ranks")) << range;
  }
  EXPECT_EQ(parse_rank_range("2..64"), (RankRange{.first = 2, .last = 64}));
  EXPECT_EQ(parse_rank_range("7"), (RankRange{.first = 7, .last = 7}));
}

TEST(VerifyCommand, ProvesWhatThePlanCommandWrote) {
  const std::string path = testing::TempDir() + "tutti_plan_command_test.json";
  EXPECT_EQ(run("plan all_reduce --algorithm ring --ranks 4 --json " + path).exit_code, kExitSuccess);
  const Outcome good = run("verify --plan " + path);
  EXPECT_EQ(good.exit_code, kExitSuccess) << good.err;
  EXPECT_THAT(good.out, HasSubstr("proved ring, all_reduce of 4 ranks: result, no deadlock"));

  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::string broken = text.str();
  broken.replace(broken.find("\"completes\": true"), 17, "\"completes\": false");
  std::ofstream(path) << broken;
  const Outcome wrong = run("verify --plan " + path);
  EXPECT_EQ(wrong.exit_code, kExitFailure);
  EXPECT_THAT(wrong.err, AllOf(HasSubstr(path), HasSubstr("channel 0 step 3: completes")));
  std::filesystem::remove(path);

  EXPECT_THAT(run("verify --plan " + path).err, HasSubstr("No such file or directory"));
  EXPECT_THAT(run("verify --ranks 4 --plan " + path).usage, HasSubstr("--ranks"));
  EXPECT_THAT(run("plan all_reduce --algorithm ring --ranks 4 --json /no/such/folder/plan.json").err,
              HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace tutti::tool

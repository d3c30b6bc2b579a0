// --json's file against docs/perf-json.md: a reader that knows only that page can read what a real run writes.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace {

namespace fs = std::filesystem;

class PerfJson : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "perf-json-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Exit status of `tutti perf all_reduce ARGUMENTS --json FILE`, output discarded.
  int run(const std::string& arguments) {
    const std::string command =
        "'" TUTTI_TOOL "' perf all_reduce " + arguments + " --json '" + file() + "' >/dev/null 2>&1";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string file() const { return (folder_ / "result.json").string(); }
  nlohmann::json read() const {
    std::ifstream stream(file());
    return nlohmann::json::parse(stream);
  }
  fs::path folder_;
};

TEST_F(PerfJson, HasEveryFieldOfTheSchema) {
  ASSERT_EQ(run("--threads --ranks 3 -b 1000 -e 2000 -n 4 -w 1 -d int32 -o max --memory plain --algorithm ring"), 0);
  const nlohmann::json document = read();
  EXPECT_EQ(document.at("schema"), "tutti-perf");
  EXPECT_EQ(document.at("version"), 1);
  EXPECT_TRUE(document.at("tutti_version").is_string());
  EXPECT_EQ(document.at("date").get<std::string>().size(), std::string("2026-01-31T12:00:00Z").size());
  EXPECT_GE(document.at("host").at("cores"), 1);
  EXPECT_TRUE(document.at("host").at("simd").is_string());
  EXPECT_EQ(document.at("ranks"), 3);
  EXPECT_EQ(document.at("ranks_are"), "threads");
  EXPECT_EQ(document.at("warmup_iterations"), 1);
  EXPECT_EQ(document.at("checked"), true);
  EXPECT_EQ(document.at("wrong"), 0);
  EXPECT_GE(document.at("avg_busbw_GBps"), 0);
  ASSERT_EQ(document.at("rows").size(), 4u);  // two sizes, out of place and in place
  for (const nlohmann::json& row : document.at("rows")) {
    EXPECT_EQ(row.at("collective"), "all_reduce");
    EXPECT_EQ(row.at("algorithm"), "ring");
    EXPECT_EQ(row.at("transport"), "shm");
    EXPECT_EQ(row.at("memory"), "plain");
    EXPECT_TRUE(row.at("in_place").is_boolean());
    EXPECT_EQ(row.at("type"), "int32");
    EXPECT_EQ(row.at("op"), "max");
    EXPECT_EQ(row.at("ranks"), 3);
    EXPECT_EQ(row.at("bytes").get<int>(), row.at("count").get<int>() * 4);
    EXPECT_EQ(row.at("iterations"), 4);
    const double time_us = row.at("time_us");
    EXPECT_GT(time_us, 0);
    EXPECT_NEAR(row.at("algbw_GBps").get<double>(), row.at("bytes").get<double>() / time_us / 1e3, 1e-9);
    EXPECT_NEAR(row.at("busbw_GBps").get<double>(), row.at("algbw_GBps").get<double>() * 4 / 3, 1e-9);
    EXPECT_EQ(row.at("wrong"), 0);
    EXPECT_GT(row.at("bound_us").get<double>(), 0);
  }
  EXPECT_EQ(document.at("rows").at(0).at("in_place"), false);
  EXPECT_EQ(document.at("rows").at(1).at("in_place"), true);
}

TEST_F(PerfJson, ProcessesSayNullWhereNothingWasChecked) {
  ASSERT_EQ(run("--ranks 2 -b 8 -e 8 -n 2 -c 0"), 0);
  const nlohmann::json document = read();
  EXPECT_EQ(document.at("ranks_are"), "processes");
  EXPECT_TRUE(document.at("wrong").is_null());
  EXPECT_TRUE(document.at("rows").at(0).at("wrong").is_null());
}

TEST_F(PerfJson, ReplacesTheFileAndLeavesNoOther) {
  std::ofstream(file()) << "old";
  ASSERT_EQ(run("--threads --ranks 1 -b 8 -e 8 -n 1"), 0);
  EXPECT_EQ(read().at("schema"), "tutti-perf");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

}  // namespace

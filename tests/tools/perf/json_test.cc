// Tests of the files of --json and --csv. They read the files of real runs with only the knowledge of
// docs/perf-json.md.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

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

  // Runs `tutti perf COLLECTIVE ARGUMENTS --json FILE`, discards its output, and returns its exit status.
  int run(const std::string& arguments, const std::string& collective = "all_reduce") {
    const std::string command =
        "'" TUTTI_TOOL "' perf " + collective + " " + arguments + " --json '" + file() + "' >/dev/null 2>&1";
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
  EXPECT_EQ(document.at("version"), 2);
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
  ASSERT_EQ(document.at("rows").size(), 4u);  // two sizes, each out of place and in place
  for (const nlohmann::json& row : document.at("rows")) {
    EXPECT_EQ(row.at("collective"), "all_reduce");
    EXPECT_EQ(row.at("algorithm"), "ring");
    EXPECT_EQ(row.at("transport"), "shm");
    EXPECT_EQ(row.at("memory"), "plain");
    EXPECT_TRUE(row.at("in_place").is_boolean());
    EXPECT_EQ(row.at("type"), "int32");
    EXPECT_EQ(row.at("op"), "max");
    EXPECT_TRUE(row.at("root").is_null());
    EXPECT_EQ(row.at("ranks"), 3);
    EXPECT_EQ(row.at("nodes"), 1);
    EXPECT_EQ(row.at("bytes").get<int>(), row.at("count").get<int>() * 4);
    EXPECT_EQ(row.at("iterations"), 4);
    const double time_us = row.at("time_us");
    EXPECT_GT(time_us, 0);
    EXPECT_NEAR(row.at("algbw_GBps").get<double>(), row.at("bytes").get<double>() / time_us / 1e3, 1e-9);
    EXPECT_NEAR(row.at("busbw_GBps").get<double>(), row.at("algbw_GBps").get<double>() * 4 / 3, 1e-9);
    EXPECT_EQ(row.at("wrong"), 0);
    EXPECT_GT(row.at("reference_us").get<double>(), 0);
  }
  EXPECT_EQ(document.at("rows").at(0).at("in_place"), false);
  EXPECT_EQ(document.at("rows").at(1).at("in_place"), true);
}

TEST_F(PerfJson, SaysWhatTheRanksReallyUsed) {
  const std::string common = "--ranks 3 -b 600 -e 600 -n 2 -w 0 ";
  ASSERT_EQ(run(common + "--nodes 2 -r 1 --memory registered", "gather"), 0);
  const nlohmann::json document = read();
  for (const nlohmann::json& row : document.at("rows")) {
    EXPECT_EQ(row.at("collective"), "gather");
    EXPECT_EQ(row.at("transport"), "mixed");
    EXPECT_EQ(row.at("nodes"), 2);
    EXPECT_EQ(row.at("root"), 1);
    EXPECT_EQ(row.at("op"), "none");
    EXPECT_EQ(row.at("bytes"), 600);
    EXPECT_EQ(row.at("count"), 50);
    EXPECT_NEAR(row.at("busbw_GBps").get<double>(), row.at("algbw_GBps").get<double>() * 2 / 3, 1e-9);
    EXPECT_TRUE(row.at("reference_us").is_null());
  }
  ASSERT_EQ(run(common + "--transport tcp"), 0);
  EXPECT_EQ(read().at("rows").at(0).at("transport"), "tcp");
  EXPECT_EQ(read().at("rows").at(0).at("nodes"), 1);
  EXPECT_TRUE(read().at("rows").at(0).at("reference_us").is_null()) << "the reference exists only for shared memory";
  ASSERT_EQ(run(common + "--nodes 3 --threads", "barrier"), 0);
  EXPECT_EQ(read().at("rows").size(), 1u);
  EXPECT_EQ(read().at("rows").at(0).at("transport"), "tcp") << "each rank is alone on its machine";
  EXPECT_EQ(read().at("rows").at(0).at("type"), "none");
  EXPECT_EQ(read().at("checked"), false) << "the clocks of several machines cannot be compared";
}

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> cells(1);
  for (const char c : line) {
    if (c == ',')
      cells.emplace_back();
    else
      cells.back() += c;
  }
  return cells;
}

TEST_F(PerfJson, TableOfCommaSeparatedValuesHasTheSameRows) {
  const std::string table = (folder_ / "result.csv").string();
  ASSERT_EQ(run("--threads --ranks 2 -b 8 -e 16 -n 2 -w 0 --csv '" + table + "'", "reduce_scatter"), 0);
  std::ifstream stream(table);
  std::string line;
  ASSERT_TRUE(std::getline(stream, line));
  const std::vector<std::string> keys = split(line);
  const nlohmann::json document = read();
  ASSERT_EQ(document.at("rows").size(), 4u);
  for (const nlohmann::json& row : document.at("rows")) {
    ASSERT_TRUE(std::getline(stream, line));
    const std::vector<std::string> cells = split(line);
    ASSERT_EQ(cells.size(), keys.size());
    ASSERT_EQ(row.size(), keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const nlohmann::json& value = row.at(keys[i]);
      if (value.is_number_float()) {
        EXPECT_LE(cells[i].size(), 12u) << keys[i] << ": at most six digits, a point and an exponent";
        EXPECT_NEAR(std::stod(cells[i]), value.get<double>(), 1e-5 * value.get<double>()) << keys[i];
        continue;
      }
      EXPECT_EQ(cells[i], value.is_null()     ? ""
                          : value.is_string() ? value.get<std::string>()
                                              : value.dump())
          << keys[i];
    }
  }
  EXPECT_FALSE(std::getline(stream, line));
}

TEST_F(PerfJson, LinksStayAndOpenFilesAreWrittenToAtTheirEnd) {
  const fs::path target = folder_ / "target.json";
  std::ofstream(target) << "old";
  fs::create_symlink("target.json", file());
  ASSERT_EQ(run("--threads --ranks 1 -b 8 -e 8 -n 1 -w 0"), 0);
  EXPECT_TRUE(fs::is_symlink(file()));
  EXPECT_EQ(read().at("schema"), "tutti-perf");
  // Like /dev/stdout, the link leads to a file to which standard output is redirected.
  const std::string out = (folder_ / "out").string();
  const std::string link = (folder_ / "link").string();
  for (const char* const open_file : {"/proc/self/fd/1", "/dev/fd/1"}) {
    fs::remove(link);
    fs::create_symlink(open_file, link);
    const std::string command = "'" TUTTI_TOOL "' perf barrier --threads -n 1 -w 0 --csv '" + link + "' >'" + out + "'";
    ASSERT_EQ(std::system(command.c_str()), 0);
    EXPECT_EQ(fs::read_symlink(link), open_file);
    std::stringstream text;
    text << std::ifstream(out).rdbuf();
    EXPECT_TRUE(text.str().starts_with("# tutti ")) << text.str();
    EXPECT_NE(text.str().find("\ncollective,algorithm,"), std::string::npos) << text.str();
  }
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

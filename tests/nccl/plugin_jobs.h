// The fixture of the tests of NCCL's tuner and profiler plugins, with plugins of our own of each version
// (tests/nccl/plugins). Each job runs in processes of its own, because a process reads the variables and opens the
// plugins only once. The plugins write the arguments of their functions into a file, which the tests read afterwards.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "nccl/ranks.h"

namespace tutti::nccl_test {

inline constexpr const char* kVariables[] = {
    "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "TUTTI_TEST_TUNER", "TUTTI_TEST_PROFILER", "TUTTI_TEST_MASK",
    "NCCL_ALGO",         "NCCL_PROTO",           "NCCL_DEBUG"};
// Masks of profiler plugins.
inline constexpr const char* kCollectives = "2";
inline constexpr const char* kCollectivesAndTransfers = "6";

// Paths of the test's own tuner and profiler plugin for this version of NCCL's interface of such plugins.
std::string tuner(int version);
std::string profiler(int version);

class NcclPlugins : public testing::Test {
 protected:
  void SetUp() override {
    file_ = testing::TempDir() + "nccl_plugins_" + std::to_string(getpid()) + ".txt";
    set("TUTTI_TEST_PLUGIN_FILE", file_);
    set("NCCL_TUNER_PLUGIN", "none");  // otherwise libnccl-tuner.so would be found
  }
  void TearDown() override {
    unlink(file_.c_str());
    for (const char* name : kVariables) unsetenv(name);
  }

  static void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

  // Runs a job and returns what its processes wrote to stderr.
  std::string run(int ranks, const Body& body) {
    unlink(file_.c_str());
    testing::internal::CaptureStderr();
    as_processes(ranks, body);
    return testing::internal::GetCapturedStderr();
  }

  // Runs `body` in one process without a communicator.
  std::string run_alone(const std::function<std::string()>& body) {
    unlink(file_.c_str());
    testing::internal::CaptureStderr();
    const pid_t child = fork();
    if (child == 0) {
      alarm(100);
      const std::string wrong = body();
      if (!wrong.empty()) std::fprintf(stderr, "%s\n", wrong.c_str());
      _exit(wrong.empty() ? 0 : 1);
    }
    EXPECT_EQ(status_of(child), 0);
    return testing::internal::GetCapturedStderr();
  }

  // The lines that plugins have written and that contain `part`.
  std::vector<std::string> lines(const std::string& part = "") const {
    std::vector<std::string> found;
    std::ifstream file(file_);
    for (std::string line; std::getline(file, line);) {
      if (line.find(part) != std::string::npos) found.push_back(line);
    }
    return found;
  }

 private:
  std::string file_;
};

// Sums up 1000 floats once, and checks the result.
inline std::string reduce_once(ncclComm_t comm, int rank, int ranks) {
  std::vector<float> values(1000, static_cast<float>(rank + 1));
  TUTTI_NCCL_TRY(ncclAllReduce(values.data(), values.data(), values.size(), ncclFloat, ncclSum, comm, nullptr));
  const int sum = ranks * (ranks + 1) / 2;
  TUTTI_NCCL_WANT(values[0] == static_cast<float>(sum));
  return {};
}

class NcclPluginVersions : public NcclPlugins, public testing::WithParamInterface<int> {};

}  // namespace tutti::nccl_test

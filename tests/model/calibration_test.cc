// Tests calibration files, and the fit of cost parameters to measured times.
#include "model/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "model/fit.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Calibration : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("tutti_calibration_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  EnvironmentVariables cache() const { return {{"XDG_CACHE_HOME", folder_.string()}, {"HOME", "/nowhere"}}; }

  fs::path folder_;
};

TEST_F(Calibration, ThisMachineHasOneHash) {
  EXPECT_EQ(hardware_hash(), hardware_hash());
  EXPECT_EQ(hardware_hash().size(), 16u);
  EXPECT_EQ(hardware_hash().find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST_F(Calibration, FilesAreWhereTheXdgSpecificationSays) {
  const std::string name = "/tutti/" + hardware_hash() + ".json";
  EXPECT_EQ(calibration_path("", {{"XDG_CACHE_HOME", "/a"}, {"HOME", "/b"}}), "/a" + name);
  EXPECT_EQ(calibration_path("", {{"XDG_CACHE_HOME", "a"}, {"HOME", "/b"}}), "/b/.cache" + name);
  EXPECT_EQ(calibration_path("", {{"HOME", "/b"}}), "/b/.cache" + name);
  EXPECT_EQ(calibration_path("", {}), "");
  EXPECT_EQ(calibration_path("/x.json", {}), "/x.json");
}

TEST_F(Calibration, OneObjectHasTheLock) {
  const std::string path = calibration_path("", cache());
  {
    auto first = CalibrationLock::take(path);
    ASSERT_TRUE(first.ok()) << first.error().message;
    const CalibrationLock moved = *std::move(first);
    const auto second = CalibrationLock::take(path);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code, ErrorCode::kTimeout);
    EXPECT_THAT(second.error().message, HasSubstr("measures this machine"));
  }
  EXPECT_TRUE(CalibrationLock::take(path).ok());
  EXPECT_TRUE(fs::is_empty(folder_ / "tutti"));
  for (const char* forbidden : {"/proc/none/file.json", "/proc/file.json"}) {
    const auto none = CalibrationLock::take(forbidden);
    ASSERT_FALSE(none.ok()) << forbidden;
    EXPECT_EQ(none.error().code, ErrorCode::kSystem);
  }
}

TEST_F(Calibration, WhatIsStoredIsFound) {
  auto none = load_calibration("", cache());
  ASSERT_TRUE(none.ok()) << none.error().message;
  EXPECT_FALSE(none->has_value());
  Parameters parameters = default_host_parameters(3);
  parameters.hardware = hardware_hash();
  const std::string path = calibration_path("", cache());
  ASSERT_TRUE(store_calibration(path, parameters).ok());
  const auto found = load_calibration("", cache());
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(**found, parameters);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "tutti"), {}), 1) << "nothing but the file is left";
}

TEST_F(Calibration, DamagedAndForeignFilesAreToldAndNotUsed) {
  const std::string path = calibration_path("", cache());
  Parameters parameters = default_host_parameters(3);
  parameters.hardware = "0123";
  ASSERT_TRUE(store_calibration(path, parameters).ok());
  EXPECT_THAT(load_calibration("", cache()).error().message, HasSubstr("other hardware"));
  EXPECT_TRUE(load_calibration(path, cache()).ok()) << "a file that the user names is used";
  std::ofstream(path) << "{";
  EXPECT_THAT(load_calibration("", cache()).error().message, HasSubstr(path));
  EXPECT_EQ(load_calibration(path + ".not", cache()).error().code, ErrorCode::kSystem);
}

TEST_F(Calibration, WhatCannotBeWrittenIsToldAndLeavesTheOldFile) {
  const std::string file = (folder_ / "file").string();
  std::ofstream(file) << "not a folder";
  const Status stored = store_calibration(file + "/x.json", default_host_parameters(1));
  ASSERT_FALSE(stored.ok());
  EXPECT_EQ(stored.error().code, ErrorCode::kSystem);
  EXPECT_THAT(stored.error().message, HasSubstr(file + ": cannot be created (Not a directory)"));
}

// Times that are computed from known costs must give these costs again.
TEST(Fit, FindsTheCostsThatMadeTheTimes) {
  constexpr double kLaunch = 0.3, kStep = 0.09, kPost = 0.2, kLatency = 0.5, kGbytesPerS = 8;
  std::vector<Measurement> measured{{.what = "alone", .bytes = 8, .median_us = kLaunch}};
  for (const std::uint64_t bytes : {8u, 64u, 512u << 10, 4u << 20}) {
    const auto length = static_cast<double>(bytes);
    const double tiles = length / (128 << 10);
    const double move = length / (kGbytesPerS * 1e3) + tiles * (kStep + kPost);
    measured.push_back(
        {.what = "memory.one_way", .bytes = bytes, .median_us = kLaunch + kStep + kPost + kLatency + move});
    measured.push_back({.what = "memory.stream", .bytes = bytes, .median_us = kLaunch + kStep + kPost + move});
    measured.push_back({.what = "reduce", .bytes = bytes, .median_us = length / 20e3});
    measured.push_back({.what = "registered", .bytes = bytes, .median_us = 2 + length / 30e3});
  }
  measured.push_back({.what = "mailboxes", .bytes = 8, .median_us = 0.8});
  measured.push_back({.what = "mailboxes.crowd", .bytes = 4, .median_us = 2.8});
  const auto fitted = fit_parameters(measured, 2, 128 << 10);
  ASSERT_TRUE(fitted.ok()) << fitted.error().message;
  const MessageCost& cost = fitted->cost(Level::kMemory, Protocol::kSimple);
  EXPECT_NEAR(cost.post_us, kPost, 0.02);
  EXPECT_NEAR(cost.latency_us, kLatency, 0.02);
  EXPECT_NEAR(cost.gbytes_per_s, kGbytesPerS, 0.1);
  EXPECT_NEAR(fitted->launch_us, kLaunch, 1e-6);
  EXPECT_NEAR(fitted->reduce_gbytes_per_s, 20, 0.1);
  EXPECT_NEAR(fitted->cost(Level::kMemory, Protocol::kWindow).gbytes_per_s, 30, 0.1);
  EXPECT_NEAR(fitted->handover_us, 1, 0.01);
  EXPECT_EQ(fitted->measured.size(), measured.size());
  EXPECT_FALSE(fit_parameters({}, 2, 128 << 10).ok());
}

// The ranks of the crowded call run one after the other on each core, and `bytes` is their number. If there is a core
// for each of them, the default of handover_us remains.
TEST(Fit, CountsTheRanksThatShareACore) {
  const auto handover = [](std::uint64_t ranks, std::uint32_t cores) {
    std::vector<Measurement> measured;
    for (const std::uint64_t bytes : {8u, 512u << 10, 4u << 20}) {
      measured.push_back({.what = "memory.one_way", .bytes = bytes, .median_us = static_cast<double>(1 + bytes)});
    }
    measured.push_back({.what = "mailboxes", .bytes = 8, .median_us = 0.8});
    measured.push_back({.what = "mailboxes.crowd", .bytes = ranks, .median_us = 2.8});
    const auto fitted = fit_parameters(measured, cores, 128 << 10);
    EXPECT_TRUE(fitted.ok()) << fitted.error().message;
    return fitted->handover_us;
  };
  EXPECT_NEAR(handover(4, 2), 1, 0.01);
  EXPECT_NEAR(handover(16, 8), 1, 0.01);
  EXPECT_NEAR(handover(16, 12), 1, 0.01) << "four of the cores have two ranks";
  EXPECT_NEAR(handover(8, 1), 0.25, 0.01);
  const double untouched = default_host_parameters(16).handover_us;
  EXPECT_NEAR(handover(16, 16), untouched, untouched * 0.001);
  EXPECT_NEAR(handover(16, 64), default_host_parameters(64).handover_us, untouched * 0.001);
}

// Even if the measured times are noisy, the resulting file must be valid.
TEST(Fit, NoiseGivesNumbersThatAreNumbers) {
  std::vector<Measurement> measured;
  for (const char* what : {"alone", "memory.one_way", "memory.stream", "nic.one_way", "nic.stream", "mailboxes",
                           "mailboxes.crowd", "registered", "attached", "reduce", "copy"}) {
    for (const std::uint64_t bytes : {8u, 1u << 20, 4u << 20}) {
      measured.push_back({.what = what, .bytes = bytes, .median_us = bytes == 8 ? 100.0 : 1.0});
    }
  }
  const auto fitted = fit_parameters(measured, 2, 128 << 10);
  ASSERT_TRUE(fitted.ok()) << fitted.error().message;
  const auto again = parse_parameters(to_json(*fitted));
  ASSERT_TRUE(again.ok()) << again.error().message;
}

}  // namespace
}  // namespace tutti

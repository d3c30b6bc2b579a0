// Tests of NCCL's parameter functions. This program sets its own environment before the first call.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/config.h"
#include "nccl.h"
#include "nccl/environment/parameters.h"
#include "nccl/errors.h"
#include "nccl/settings.h"

namespace tutti::nccl {
namespace {

// The settings are read once per process, at the first call.
const bool kSet = [] {
  for (const char* name : {"NCCL_PARAM_DUMP_ALL", "NCCL_MAX_CTAS", "NCCL_CONF_FILE"}) unsetenv(name);
  setenv("HOME", "/nowhere", 1);
  setenv("NCCL_DEBUG", "info", 1);
  setenv("NCCL_NTHREADS", "256", 1);
  setenv("NCCL_SHM_DISABLE", "1", 1);
  setenv("NCCL_HOSTID", "host-7", 1);
  setenv("TUTTI_TRANSPORT", "shm", 1);
  setenv("TUTTI_JOB_KEY", "00112233445566778899aabbccddeeff", 1);
  setenv("TUTTI_TIMEOUT_MS", "70000000", 1);
  for (const char* name : {"TUTTI_SETUP_TIMEOUT_MS", "TUTTI_UNIQUE_ID"}) unsetenv(name);
  return true;
}();

ncclParamHandle_t bound(const char* key) {
  ncclParamHandle_t handle = nullptr;
  EXPECT_EQ(ncclParamBind(&handle, key), ncclSuccess) << last_error();
  return handle;
}

std::string text_of(const char* key) {
  const char* value = nullptr;
  int length = -1;
  EXPECT_EQ(ncclParamGetParameter(key, &value, &length), ncclSuccess) << last_error();
  if (value == nullptr) return "null";
  EXPECT_EQ(std::strlen(value), static_cast<std::size_t>(length));
  return value;
}

TEST(Params, ShowTheSettingsInEffect) {
  ASSERT_TRUE(kSet);
  EXPECT_EQ(text_of("NCCL_DEBUG"), "INFO");
  EXPECT_EQ(text_of("NCCL_NTHREADS"), "256");
  EXPECT_EQ(text_of("NCCL_MAX_CTAS"), "") << "the variable is not set";
  EXPECT_EQ(text_of("TUTTI_LOG"), "info");
  EXPECT_EQ(text_of("TUTTI_DEVICE_THREADS"), "256");
  EXPECT_EQ(text_of("TUTTI_NODE_ID"), "host-7");
  EXPECT_EQ(text_of("TUTTI_TRANSPORT"), "shm") << "TUTTI_* takes precedence over NCCL_SHM_DISABLE";
  EXPECT_EQ(text_of("TUTTI_SLOTS"), "4") << "the default";
}

// Programs written for NCCL expect calls to wait: a checkpoint or a compilation on one rank can take many minutes. A
// timeout that the user sets takes precedence.
TEST(Params, TimeoutsAreLongUnlessTheUserSetsThem) {
  constexpr std::chrono::minutes kLongSetup(30);
  const auto settings = environment_settings();
  ASSERT_TRUE(settings.ok()) << settings.error().message;
  const auto defaults = parse_config(settings->defaults);
  ASSERT_TRUE(defaults.ok()) << defaults.error().message;
  EXPECT_EQ(defaults->timeout, std::chrono::hours(24));
  EXPECT_EQ(defaults->setup_timeout, kLongSetup);
  const auto in_effect = parse_config(with_defaults(environment_variables(), settings->defaults));
  ASSERT_TRUE(in_effect.ok()) << in_effect.error().message;
  EXPECT_EQ(in_effect->timeout.count(), 70'000'000) << "TUTTI_TIMEOUT_MS is set";
  EXPECT_EQ(in_effect->setup_timeout, kLongSetup);
  EXPECT_EQ(text_of("TUTTI_TIMEOUT_MS"), "70000000") << "the parameters show what is in effect";
  EXPECT_EQ(text_of("TUTTI_SETUP_TIMEOUT_MS"), "1800000");
}

TEST(Params, NumbersAreReadInAnyTypeThatHoldsThem) {
  const ncclParamHandle_t threads = bound("NCCL_NTHREADS");
  std::int8_t i8 = 1;
  std::uint8_t u8 = 1;
  std::int16_t i16 = 1;
  std::uint16_t u16 = 1;
  std::int32_t i32 = 1;
  std::uint32_t u32 = 1;
  std::int64_t i64 = 1;
  std::uint64_t u64 = 1;
  EXPECT_EQ(ncclParamGetI8(threads, &i8), ncclInvalidArgument);
  EXPECT_NE(std::string(last_error()).find("NCCL_NTHREADS=256 is outside -128 to 127"), std::string::npos);
  EXPECT_EQ(ncclParamGetU8(threads, &u8), ncclInvalidArgument);
  EXPECT_EQ(i8, 1) << "outputs are set only on success";
  EXPECT_EQ(u8, 1);
  EXPECT_EQ(ncclParamGetI16(threads, &i16), ncclSuccess);
  EXPECT_EQ(ncclParamGetU16(threads, &u16), ncclSuccess);
  EXPECT_EQ(ncclParamGetI32(threads, &i32), ncclSuccess);
  EXPECT_EQ(ncclParamGetU32(threads, &u32), ncclSuccess);
  EXPECT_EQ(ncclParamGetI64(threads, &i64), ncclSuccess);
  EXPECT_EQ(ncclParamGetU64(threads, &u64), ncclSuccess);
  EXPECT_TRUE(i16 == 256 && u16 == 256 && i32 == 256 && u32 == 256 && i64 == 256 && u64 == 256);
  const ncclParamHandle_t slots = bound("TUTTI_SLOTS");
  EXPECT_EQ(ncclParamGetI8(slots, &i8), ncclSuccess);
  EXPECT_EQ(ncclParamGetU8(slots, &u8), ncclSuccess);
  EXPECT_TRUE(i8 == 4 && u8 == 4);
  EXPECT_EQ(ncclParamGetI16(bound("TUTTI_TIMEOUT_MS"), &i16), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetI32(bound("TUTTI_TIMEOUT_MS"), &i32), ncclSuccess);
  EXPECT_EQ(i32, 70000000);
}

TEST(Params, BothBoundsOfATypeCount) {
  const Parameter minus{.name = "X", .text = "-1", .number = -1};
  EXPECT_EQ(number_between(minus, -1, 0).value(), -1);
  EXPECT_EQ(number_between(minus, -5, -1).value(), -1);
  EXPECT_FALSE(number_between(minus, 0, 255).ok()) << "an unsigned type cannot hold it";
  EXPECT_FALSE(number_between(minus, -9, -2).ok());
}

TEST(Params, WhatIsNoNumberIsNotReadAsOne) {
  std::int64_t number = 1;
  EXPECT_EQ(ncclParamGetI64(bound("NCCL_DEBUG"), &number), ncclInvalidArgument);
  EXPECT_NE(std::string(last_error()).find("NCCL_DEBUG=\"INFO\" is not a number"), std::string::npos);
  EXPECT_EQ(ncclParamGetI64(bound("NCCL_MAX_CTAS"), &number), ncclInvalidArgument);
  EXPECT_NE(std::string(last_error()).find("not set"), std::string::npos);
  EXPECT_EQ(number, 1);
}

TEST(Params, ATextBelongsToTheThreadUntilItsNextCall) {
  const char* mine = nullptr;
  ASSERT_EQ(ncclParamGetStr(bound("NCCL_DEBUG"), &mine), ncclSuccess);
  const char* theirs = nullptr;
  std::string seen;
  std::thread([&] {
    ASSERT_EQ(ncclParamGetStr(bound("NCCL_HOSTID"), &theirs), ncclSuccess);
    seen = theirs;
  }).join();
  EXPECT_EQ(seen, "host-7");
  EXPECT_NE(mine, theirs);
  EXPECT_EQ(text_of("TUTTI_SLOTS"), "4") << "it is not the text of another parameter";
  EXPECT_STREQ(mine, "INFO");
  const char* next = nullptr;
  ASSERT_EQ(ncclParamGetStr(bound("NCCL_NTHREADS"), &next), ncclSuccess);
  EXPECT_STREQ(next, "256") << "a number can be read as text, too";
}

TEST(Params, BytesAreCopiedWhereThereIsRoom) {
  std::int64_t number = 0;
  int length = -1;
  EXPECT_EQ(ncclParamGet(bound("NCCL_NTHREADS"), &number, 7, &length), ncclInvalidArgument);
  EXPECT_EQ(length, -1);
  EXPECT_EQ(ncclParamGet(bound("NCCL_NTHREADS"), &number, sizeof(number), &length), ncclSuccess);
  EXPECT_EQ(length, 8);
  EXPECT_EQ(number, 256);
  std::array<char, 8> text{};
  EXPECT_EQ(ncclParamGet(bound("NCCL_HOSTID"), text.data(), 6, &length), ncclInvalidArgument)
      << "there is no space for the terminating zero";
  EXPECT_EQ(ncclParamGet(bound("NCCL_HOSTID"), text.data(), -1, &length), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGet(bound("NCCL_HOSTID"), text.data(), 7, &length), ncclSuccess);
  EXPECT_EQ(length, 7);
  EXPECT_STREQ(text.data(), "host-7");
}

TEST(Params, WrongNamesHandlesAndNullsAreTold) {
  ncclParamHandle_t handle = nullptr;
  EXPECT_EQ(ncclParamBind(&handle, "NCCL_NO_SUCH"), ncclInvalidArgument);
  EXPECT_NE(std::string(last_error()).find("NCCL_NO_SUCH"), std::string::npos);
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(ncclParamBind(&handle, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclParamBind(nullptr, "NCCL_DEBUG"), ncclInvalidArgument);
  std::int32_t number = 0;
  int length = 0;
  const char* text = nullptr;
  const char** keys = nullptr;
  EXPECT_EQ(ncclParamGetI32(nullptr, &number), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetI32(reinterpret_cast<ncclParamHandle_t>(&number), &number), ncclInvalidArgument);
  EXPECT_NE(std::string(last_error()).find("none that ncclParamBind()"), std::string::npos);
  EXPECT_EQ(ncclParamGetI32(bound("NCCL_NTHREADS"), nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetStr(bound("NCCL_DEBUG"), nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGet(bound("NCCL_DEBUG"), nullptr, 8, &length), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGet(bound("TUTTI_SLOTS"), &number, 8, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetParameter(nullptr, &text, &length), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetParameter("NCCL_DEBUG", nullptr, &length), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetParameter("NCCL_DEBUG", &text, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetAllParameterKeys(nullptr, &length), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetAllParameterKeys(&keys, nullptr), ncclInvalidArgument);
}

TEST(Params, KeysAreThoseOfNcclUnlessAllAreAskedFor) {
  const char** keys = nullptr;
  int count = 0;
  ASSERT_EQ(pncclParamGetAllParameterKeys(&keys, &count), ncclSuccess);
  std::vector<std::string> names(keys, keys + count);
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::count(names.begin(), names.end(), "NCCL_DEBUG"), 1);
  for (const std::string& name : names) {
    EXPECT_TRUE(name.starts_with("NCCL_"));
    EXPECT_NE(bound(name.c_str()), nullptr);
  }
  EnvironmentSettings settings;
  EXPECT_EQ(Parameters(settings, Config{}).listed().size(), names.size());
  settings.all_parameters = true;
  const Parameters all(settings, Config{});
  EXPECT_EQ(all.listed().size(), names.size() + config_variable_names().size());
}

TEST(Params, ASecretIsNeitherShownNorSaidToBeUnset) {
  EnvironmentSettings settings;
  settings.all_parameters = true;
  Config config;
  config.job_key = "the key itself";
  const Parameters parameters(settings, config);
  const std::string text = dump(parameters);
  EXPECT_NE(text.find("tutti: TUTTI_JOB_KEY is set (secret)\n"), std::string::npos) << text;
  EXPECT_NE(text.find("tutti: TUTTI_UNIQUE_ID is not set\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("the key itself"), std::string::npos);
}

TEST(Params, NoFunctionReturnsASecret) {
  const char* text = nullptr;
  std::array<char, 64> bytes{};
  std::int64_t number = 0;
  int length = 0;
  EXPECT_EQ(ncclParamGetStr(bound("TUTTI_JOB_KEY"), &text), ncclInvalidArgument);
  EXPECT_STREQ(last_error(), "ncclParamGetStr: TUTTI_JOB_KEY is set (secret): its value is not returned");
  EXPECT_EQ(ncclParamGet(bound("TUTTI_JOB_KEY"), bytes.data(), bytes.size(), &length), ncclInvalidArgument);
  EXPECT_EQ(ncclParamGetI64(bound("TUTTI_JOB_KEY"), &number), ncclInvalidArgument);
  EXPECT_STREQ(last_error(), "ncclParamGetI64: TUTTI_JOB_KEY is set (secret): its value is not returned");
  EXPECT_EQ(ncclParamGetParameter("TUTTI_JOB_KEY", &text, &length), ncclInvalidArgument);
  EXPECT_EQ(text_of("TUTTI_UNIQUE_ID"), "") << "a secret that is not set";
}

TEST(Params, DumpWritesALineForEach) {
  testing::internal::CaptureStderr();
  ncclParamDumpAll();
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("tutti: NCCL_DEBUG=INFO\n"), std::string::npos) << text;
  EXPECT_NE(text.find("tutti: NCCL_MAX_CTAS is not set\n"), std::string::npos);
  EXPECT_EQ(text.find("TUTTI_SLOTS"), std::string::npos) << "printed only with NCCL_PARAM_DUMP_ALL";
}

}  // namespace
}  // namespace tutti::nccl

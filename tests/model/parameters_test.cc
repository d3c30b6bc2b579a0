// Tests the files of cost parameters: reading, writing, defaults and errors.
#include "model/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace tutti {
namespace {

using ::testing::HasSubstr;

std::string error_of(std::string_view json) {
  const auto parsed = parse_parameters(json);
  if (parsed) return "no error";
  EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  return parsed.error().message;
}

Parameters full() {
  Parameters p = default_gpu_parameters(90);
  p.name = "a \"name\" with \\ and \xc3\xa9";
  p.hardware = "0123456789abcdef";
  p.cost(Level::kNvLink, Protocol::kLl).latency_us = 0.1 + 0.2;  // 0.30000000000000004: all bits must be preserved
  p.choices = {{2, 8, {.one_shot_bytes = 4096}}, {4, 2, {1, std::uint64_t{1} << 50, 3}}};
  p.measured = {{"memory.simple", 8, 0.25, 0.5}, {"reduce", std::uint64_t{1} << 40, 1e-9, 1e9}};
  return p;
}

TEST(Parameters, AFileGivesTheSameNumbersAgain) {
  for (const Parameters& p : {full(), default_host_parameters(2), default_gpu_parameters(80), Parameters{}}) {
    const auto again = parse_parameters(to_json(p));
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(*again, p);
  }
}

// to_json() does not use the tree of the JSON library, so its text is compared with that of the library.
TEST(Parameters, TheTextIsIndentedJson) {
  for (const Parameters& p : {full(), default_host_parameters(2), default_gpu_parameters(80), Parameters{}}) {
    const std::string text = to_json(p);
    EXPECT_EQ(nlohmann::ordered_json::parse(text).dump(2) + "\n", text);
  }
}

TEST(Parameters, DefaultsHaveWhatTheirMachinesHave) {
  const Parameters host = default_host_parameters(2);
  EXPECT_EQ(host.cores, 2u);
  EXPECT_EQ(host.source, "defaults");
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kWindow}) {
    EXPECT_GT(host.cost(Level::kMemory, protocol).gbytes_per_s, 0);
  }
  EXPECT_EQ(host.cost(Level::kNvLink, Protocol::kSimple).gbytes_per_s, 0);
  double last = 0;
  for (const std::int32_t capability : {80, 90, 100}) {
    const Parameters gpu = default_gpu_parameters(capability);
    const double nvlink = gpu.cost(Level::kNvLink, Protocol::kSimple).gbytes_per_s;
    EXPECT_GT(nvlink, last);
    last = nvlink;
    EXPECT_LT(gpu.cost(Level::kNvLink, Protocol::kLl).latency_us,
              gpu.cost(Level::kNvLink, Protocol::kLl128).latency_us);
    EXPECT_GT(gpu.cost(Level::kSpine, Protocol::kSimple).latency_us,
              gpu.cost(Level::kNic, Protocol::kSimple).latency_us);
    EXPECT_EQ(gpu.switch_gbytes_per_s > 0, capability >= 90) << "multicast came with Hopper";
  }
}

TEST(Parameters, ErrorsNameThePlace) {
  EXPECT_THAT(error_of("{\n  \"tutti_parameters\": 1,\n  \"cores\": }"), HasSubstr("line 3, column 12"));
  EXPECT_THAT(error_of("{}"), HasSubstr("has no \"tutti_parameters\""));
  EXPECT_THAT(error_of("[]"), HasSubstr("the file may not be an array"));
  EXPECT_THAT(error_of("3"), HasSubstr("the file may not be a number"));
  EXPECT_THAT(error_of(""), HasSubstr("line 1, column 1"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 2})"), HasSubstr("version 2"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "core": 1})"), HasSubstr("did you mean \"cores\"?"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "cores": 1, "cores": 2})"), HasSubstr("cores: stands here a second"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "cores": 1.5})"), HasSubstr("cores: 1.5 is not whole"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "cores": "two"})"), HasSubstr("cores: may not be a string"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "launch_us": -1})"), HasSubstr("launch_us: -1 is outside"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "launch_us": 1e999})"), HasSubstr("too large"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "slots": 0})"), HasSubstr("slots: 0 is outside 1..1024"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "costs": {"memory": {"simpel": {}}}})"),
              HasSubstr("costs.memory: has an unknown field \"simpel\"; did you mean \"simple\"?"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "costs": {"nic": {"simple": {"post_us": null}}}})"),
              HasSubstr("costs.nic.simple.post_us: may not be null"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "costs": {"nic": {"simple": {"post_us": 1}}}})"),
              HasSubstr("costs.nic.simple: has no gbytes_per_s above 0"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "costs.nic": {}})"), HasSubstr("unknown field \"costs.nic\""));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "measured": [{"bytes": 1}, {"bytes": -1}]})"),
              HasSubstr("measured[1].bytes: -1 is outside"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "measured": [[]]})"), HasSubstr("measured[0]: may not be an array"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "choices": [{"ranks": 1}]})"),
              HasSubstr("choices[0].ranks: 1 is outside 2..65535"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "choices": [{"ranks": 2, "cores": 1, "one_shot_bytes": 8}]})"),
              HasSubstr("choices: each element must have ranks, cores, one_shot_bytes, copy_by_calls_bytes and"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "choices": [{}, {}, {}, {}, {}]})"),
              HasSubstr("choices[4]: more than 4 elements"));
  EXPECT_THAT(error_of(R"({"tutti_parameters": 1, "hardware": "xyz"})"), HasSubstr("hexadecimal"));
  EXPECT_THAT(error_of("{\"tutti_parameters\": 1, \"name\": \"a\\nb\"}"), HasSubstr("control or direction characters"));
}

TEST(Parameters, HostileFilesCostNoMoreThanTheirLength) {
  std::string many = R"({"tutti_parameters": 1, "measured": [{})";
  for (std::size_t i = 0; i < kMostMeasurements; ++i) many += ",{}";
  EXPECT_THAT(error_of(many + "]}"), HasSubstr("more than 1024"));
  EXPECT_THAT(error_of(std::string(100'000, '[')), HasSubstr("may not be an array"));
  EXPECT_THAT(error_of(std::string(kMostParameterBytes + 1, ' ')), HasSubstr("are more than"));
}

// Damaged files must give a value that can be written and read again, or an error. The parser must not crash, and no
// value may exceed its limits.
TEST(Parameters, DamagedFilesAreReadOrRefused) {
  const std::string good = to_json(full());
  const unsigned seed = 20261122;
  std::mt19937 random(seed);
  std::size_t refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = good;
    for (unsigned change = random() % 3 + 1; change > 0; --change) {
      const std::size_t place = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(place, random() % 20);
      } else if (random() % 2 == 0) {
        text[place] = static_cast<char>(random());
      } else {
        text.insert(place, text.substr(random() % text.size(), random() % 40));
      }
      if (text.empty()) text = "{";
    }
    const auto parsed = parse_parameters(text);
    if (!parsed) {
      EXPECT_FALSE(parsed.error().message.empty());
      ++refused;
      continue;
    }
    const auto again = parse_parameters(to_json(*parsed));
    ASSERT_TRUE(again.ok()) << "seed " << seed << " round " << round << ": " << again.error().message;
    EXPECT_EQ(*again, *parsed) << "seed " << seed << " round " << round;
  }
  EXPECT_GT(refused, 2000u);
}

TEST(Parameters, EveryPrefixIsRefused) {
  const std::string good = to_json(full());
  for (std::size_t length = 0; length + 2 < good.size(); ++length) {
    EXPECT_FALSE(parse_parameters(good.substr(0, length)).ok()) << length;
  }
}

TEST(Parameters, FilesAreNamedInErrors) {
  const std::string path = ::testing::TempDir() + "tutti_parameters_test.json";
  std::ofstream(path) << to_json(full());
  const auto loaded = load_parameters(path);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(*loaded, full());
  std::ofstream(path) << "{";
  EXPECT_THAT(load_parameters(path).error().message, HasSubstr(path + ": line 1"));
  std::remove(path.c_str());
  EXPECT_EQ(load_parameters(path).error().code, ErrorCode::kSystem);
  EXPECT_THAT(load_parameters(::testing::TempDir()).error().message, HasSubstr(::testing::TempDir()));
}

}  // namespace
}  // namespace tutti

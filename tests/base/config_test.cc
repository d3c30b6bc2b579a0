// Tests the environment variables: valid and invalid values, and that the documentation lists exactly these
// variables.
#include "base/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

namespace tutti {
namespace {

std::string error_of(const Variables& variables) {
  auto config = parse_config(variables);
  EXPECT_FALSE(config.ok());
  if (config.ok()) return {};
  EXPECT_EQ(config.error().code, ErrorCode::kConfig);
  return config.error().message;
}

TEST(Config, ReadsEveryVariable) {
  const auto config = parse_config({{"TUTTI_RANK", "3"},
                                    {"TUTTI_WORLD_SIZE", "8"},
                                    {"TUTTI_LOCAL_RANK", "1"},
                                    {"TUTTI_LOCAL_SIZE", "2"},
                                    {"TUTTI_ROOT", "127.0.0.1:5"},
                                    {"TUTTI_ROOT_FD", "9"},
                                    {"TUTTI_ELASTIC_FD", "11"},
                                    {"TUTTI_JOB_ID", "job"},
                                    {"TUTTI_INTERFACE", "lo"},
                                    {"TUTTI_JOB_KEY_FILE", "/run/secrets/key"},
                                    {"TUTTI_JOB_KEY", "c0ffee"},
                                    {"TUTTI_UNIQUE_ID", "00ff"},
                                    {"TUTTI_PORT_RANGE", "30000-30010"},
                                    {"TUTTI_SETUP_TIMEOUT_MS", "11"},
                                    {"TUTTI_TIMEOUT_MS", "12"},
                                    {"TUTTI_SLOT_BYTES", "8192"},
                                    {"TUTTI_SLOTS", "5"},
                                    {"TUTTI_TUNE", "broadcast=tree"},
                                    {"TUTTI_TUNE_FILE", "/x.json"},
                                    {"TUTTI_SELFTEST", "1"},
                                    {"TUTTI_VERIFY_PLANS", "0"},
                                    {"TUTTI_LOG", "debug"},
                                    {"TUTTI_NCCL_VERSION", "2.28.9"}});
  ASSERT_TRUE(config.ok()) << to_string(config.error());
  EXPECT_EQ(config->rank, 3);
  EXPECT_EQ(config->size, 8);
  EXPECT_EQ(config->local_rank, 1);
  EXPECT_EQ(config->local_size, 2);
  EXPECT_EQ(config->root, "127.0.0.1:5");
  EXPECT_EQ(config->root_fd, 9);
  EXPECT_EQ(config->elastic_fd, 11);
  EXPECT_EQ(config->job_id, "job");
  EXPECT_EQ(config->interface, "lo");
  EXPECT_EQ(config->unique_id, "00ff");
  EXPECT_EQ(config->port_range, (PortRange{30000, 30010}));
  EXPECT_EQ(config->port_range.count(), 11u);
  EXPECT_EQ(config->setup_timeout.count(), 11);
  EXPECT_EQ(config->timeout.count(), 12);
  EXPECT_EQ(config->slot_bytes, 8192u);
  EXPECT_EQ(config->slots, 5u);
  EXPECT_EQ(config->tune, "broadcast=tree");
  EXPECT_EQ(config->tune_file, "/x.json");
  EXPECT_TRUE(config->selftest);
  EXPECT_FALSE(config->verify_plans);
  EXPECT_EQ(config->log_level, LogLevel::kDebug);
  EXPECT_EQ(config->nccl_version, 22809);
}

TEST(Config, NcclVersionsAreNumberedAsNcclDoes) {
  for (const auto& [text, number] : std::map<std::string, std::int32_t>{
           {"2.30.7", 23007}, {"2.8.4", 2804}, {"2.9.0", 20900}, {"22809", 22809}, {"2804", 2804}}) {
    const auto config = parse_config({{"TUTTI_NCCL_VERSION", text}});
    ASSERT_TRUE(config.ok()) << text;
    EXPECT_EQ(config->nccl_version, number) << text;
  }
}

TEST(Config, TheValuesReadBackGiveTheSameConfig) {
  const Variables given = {{"TUTTI_RANK", "3"},
                           {"TUTTI_ROOT", "host:5"},
                           {"TUTTI_PORT_RANGE", "30000-30010"},
                           {"TUTTI_TRANSPORT", "tcp"},
                           {"TUTTI_ATTACH", "calls"},
                           {"TUTTI_UNIFORM", "calls"},
                           {"TUTTI_TIMEOUT_MS", "12"},
                           {"TUTTI_SLOT_BYTES", "8192"},
                           {"TUTTI_DEVICE_CALLS", "staged"},
                           {"TUTTI_DEVICE_PROTOCOL", "ll128"},
                           {"TUTTI_VERIFY_PLANS", "0"},
                           {"TUTTI_LOG", "debug"},
                           {"TUTTI_NCCL_VERSION", "22809"}};
  const auto config = parse_config(given);
  ASSERT_TRUE(config.ok());
  Variables said;
  const auto names = config_variable_names();
  std::size_t at = 0;
  for (const ConfigValue& value : config_values(*config)) {
    EXPECT_EQ(value.name, names[at++]);
    if (value.number) {
      EXPECT_EQ(value.text, std::to_string(*value.number)) << value.name;
    }
    if (!value.text.empty()) said.emplace_back(value.name, value.text);
  }
  EXPECT_EQ(at, names.size());
  for (const auto& pair : given) {
    if (pair.first == "TUTTI_UNIQUE_ID" || pair.first == "TUTTI_JOB_KEY") {  // these are secret and not printed
      EXPECT_EQ(std::find(said.begin(), said.end(), pair), said.end()) << pair.first;
      continue;
    }
    EXPECT_NE(std::find(said.begin(), said.end(), pair), said.end()) << pair.first << " is printed with another value";
  }
  const auto again = parse_config(said);
  ASSERT_TRUE(again.ok()) << to_string(again.error());
  EXPECT_EQ(again->slots, config->slots) << "a variable that was not set is printed with its default";
}

TEST(Config, UnknownNamesAreRefusedWithTheNearestOne) {
  EXPECT_NE(error_of({{"TUTTI_RNAK", "1"}}).find("did you mean TUTTI_RANK"), std::string::npos);
  EXPECT_NE(error_of({{"TUTTI_WORLDSIZE", "1"}}).find("did you mean TUTTI_WORLD_SIZE"), std::string::npos);
  const std::string far = error_of({{"TUTTI_COMPLETELY_DIFFERENT_THING", "1"}});
  EXPECT_EQ(far.find("did you mean"), std::string::npos) << far;
  EXPECT_TRUE(parse_config({{"TUTTI_TEST_PATIENCE", "3"}}).ok()) << "variables of the tests are ignored";
}

TEST(Config, ValuesOutOfRangeAreRefusedWithTheRange) {
  for (const auto& [name, value] : Variables{{"TUTTI_RANK", "-1"},
                                             {"TUTTI_RANK", "1x"},
                                             {"TUTTI_RANK", ""},
                                             {"TUTTI_WORLD_SIZE", "0"},
                                             {"TUTTI_WORLD_SIZE", "99999999999999999999"},
                                             {"TUTTI_SLOTS", "1"},
                                             {"TUTTI_SLOT_BYTES", "5000"},
                                             {"TUTTI_VERIFY_PLANS", "2"},
                                             {"TUTTI_UNIFORM", "2"},
                                             {"TUTTI_UNIFORM", "all"},
                                             {"TUTTI_LOG", "loud"},
                                             {"TUTTI_RECORD", "1000"},
                                             {"TUTTI_RECORD", "8"},
                                             {"TUTTI_RECORD", "131072"},
                                             {"TUTTI_PORT_RANGE", "30000"},
                                             {"TUTTI_PORT_RANGE", "30010-30000"},
                                             {"TUTTI_PORT_RANGE", "0-30000"},
                                             {"TUTTI_PORT_RANGE", "30000-65536"},
                                             {"TUTTI_JOB_ID", std::string(129, 'x')},
                                             {"TUTTI_NCCL_VERSION", "2.30"},
                                             {"TUTTI_NCCL_VERSION", "2.30.7.1"},
                                             {"TUTTI_NCCL_VERSION", "newest"},
                                             {"TUTTI_NCCL_VERSION", "230"},
                                             {"TUTTI_TIMEOUT_MS", "0"}}) {
    const std::string message = error_of({{name, value}});
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_NE(message.find("give"), std::string::npos) << message;
  }
}

TEST(Config, TheDocsListJustTheKnownVariables) {
  std::ifstream file(TUTTI_SOURCE_DIR "/docs/config.md");
  std::stringstream text;
  text << file.rdbuf();
  std::set<std::string> documented;
  const std::string content = text.str();
  const std::regex name(R"(^\| `(TUTTI_[A-Z_]+)`)", std::regex::multiline);
  for (std::sregex_iterator match(content.begin(), content.end(), name), end; match != end; ++match) {
    documented.insert((*match)[1]);
  }
  const auto names = config_variable_names();
  EXPECT_EQ(documented, (std::set<std::string>(names.begin(), names.end())));
}

TEST(NearestName, FindsTyposOnly) {
  constexpr std::string_view kNames[] = {"TUTTI_RANK", "TUTTI_ROOT"};
  EXPECT_EQ(nearest_name("TUTTI_RANKS", kNames), "TUTTI_RANK");
  EXPECT_EQ(nearest_name("TUTTI_ROT", kNames), "TUTTI_ROOT");
  EXPECT_EQ(nearest_name("SOMETHING_ELSE_ALTOGETHER", kNames), "");
  EXPECT_EQ(nearest_name("", kNames), "");
  constexpr std::string_view kShort[] = {"order", "slots", "root"};
  EXPECT_EQ(nearest_name("ordre", kShort), "order") << "two swapped letters count as one mistake";
  EXPECT_EQ(nearest_name("orred", kShort), "") << "three changed letters are too many";
}

}  // namespace
}  // namespace tutti

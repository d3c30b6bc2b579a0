// Tests the parser of tuning rules, for example "all_reduce:..64K:ranks<=8=one_shot".
#include "model/overrides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "algorithms/algorithms.h"

namespace tutti {
namespace {

std::string text_of(const std::vector<Override>& rules) {
  std::string text;
  for (const Override& rule : rules) {
    text += std::string(to_string(rule.kind)) + ":" + std::to_string(rule.min_bytes) + "..";
    if (rule.max_bytes < UINT64_MAX) text += std::to_string(rule.max_bytes);
    text += ":ranks>=" + std::to_string(rule.min_ranks);
    if (rule.max_ranks < UINT32_MAX) text += ":ranks<=" + std::to_string(rule.max_ranks);
    text += "=" + std::string(to_string(rule.algorithm)) + "; ";
  }
  return text;
}

using ::testing::HasSubstr;

std::string error_of(std::string_view text) {
  const auto rules = parse_overrides(text);
  if (rules) return "no error";
  EXPECT_EQ(rules.error().code, ErrorCode::kConfig);
  return rules.error().message;
}

TEST(Overrides, SayWhatTheySay) {
  const auto rules =
      parse_overrides(" all_reduce : ..64K : ranks<=8 = one_shot ; broadcast=tree;reduce:1..2M:ranks=4=ring;");
  ASSERT_TRUE(rules.ok()) << rules.error().message;
  ASSERT_EQ(rules->size(), 3u);
  EXPECT_EQ(
      (*rules)[0],
      (Override{
          .kind = CollectiveKind::kAllReduce, .max_bytes = 65536, .max_ranks = 8, .algorithm = Algorithm::kOneShot}));
  EXPECT_EQ((*rules)[1], (Override{.kind = CollectiveKind::kBroadcast, .algorithm = Algorithm::kTree}));
  EXPECT_EQ((*rules)[2], (Override{.kind = CollectiveKind::kReduce,
                                   .min_bytes = 1,
                                   .max_bytes = 2 << 20,
                                   .min_ranks = 4,
                                   .max_ranks = 4,
                                   .algorithm = Algorithm::kRing}));
  EXPECT_TRUE((*rules)[0].fits(CollectiveKind::kAllReduce, 65536, 8));
  EXPECT_FALSE((*rules)[0].fits(CollectiveKind::kAllReduce, 65537, 8));
  EXPECT_FALSE((*rules)[0].fits(CollectiveKind::kAllReduce, 65536, 9));
  EXPECT_FALSE((*rules)[0].fits(CollectiveKind::kReduce, 8, 2));
  EXPECT_EQ(parse_overrides("reduce = ring / 32K")->at(0),
            (Override{.kind = CollectiveKind::kReduce, .algorithm = Algorithm::kRing, .chunk_bytes = 32768}));
  EXPECT_TRUE(parse_overrides("")->empty());
  EXPECT_TRUE(parse_overrides(" ; ")->empty());
}

TEST(Overrides, OfTheSameCallsOneRuleIsEnough) {
  EXPECT_THAT(
      error_of("all_reduce:..1M=ring; broadcast=tree; all_reduce:..1024K=one_shot"),
      HasSubstr("rule 3 \"all_reduce:..1024K=one_shot\" is for the same calls as an earlier one that takes ring"));
  EXPECT_THAT(error_of("reduce=ring; reduce=ring/4K"), HasSubstr("the same calls"));
  EXPECT_TRUE(parse_overrides("all_reduce=ring; all_reduce=ring").ok());
  const auto overlapping = parse_overrides("all_reduce:..64KiB=one_shot; all_reduce=ring");
  ASSERT_TRUE(overlapping.ok());
  EXPECT_EQ(overlapping->at(0).max_bytes, 65536u);
}

TEST(Overrides, ErrorsSayWhichAndWhat) {
  EXPECT_THAT(error_of("broadcast=tree; all_reduse=ring"), HasSubstr("rule 2 \"all_reduse=ring\""));
  EXPECT_THAT(error_of("all_reduse=ring"), HasSubstr("did you mean all_reduce?"));
  EXPECT_THAT(error_of("all_reduce=rign"), HasSubstr("did you mean ring?"));
  EXPECT_THAT(error_of("barrier=chain"), HasSubstr("no algorithm of barrier; there are "));
  EXPECT_THAT(error_of("all_reduce=auto"), HasSubstr("no algorithm of all_reduce"));
  EXPECT_THAT(error_of("all_reduce"), HasSubstr("has no \"= algorithm\""));
  EXPECT_THAT(error_of("all_reduce:64K=ring"), HasSubstr("\"64K\" is no range of bytes"));
  EXPECT_THAT(error_of("all_reduce:..64Q=ring"), HasSubstr("\"64Q\" is no number of bytes"));
  EXPECT_THAT(error_of("all_reduce:..99999999999T=ring"), HasSubstr("no number of bytes"));
  EXPECT_THAT(error_of("all_reduce:ranks<8=ring"), HasSubstr("ranks<=N"));
  EXPECT_THAT(error_of("all_reduce:ranks<=x=ring"), HasSubstr("cannot be read"));
  EXPECT_THAT(error_of("all_reduce:2K..1K=ring"), HasSubstr("its conditions exclude every call"));
  for (const char* rule : {"reduce=ring/", "reduce=ring/x", "reduce=ring/0", "reduce=ring/4097", "reduce=ring/-4K"}) {
    EXPECT_THAT(error_of(rule), HasSubstr("is no length of chunks: give a multiple of 4K")) << rule;
  }
  EXPECT_THAT(error_of("reduce=ring/32M"), HasSubstr("longer than a slot"));
  EXPECT_FALSE(parse_overrides("reduce=ring/32K", 16384).ok());
  EXPECT_THAT(error_of("send_recv=ring"), HasSubstr("is no collective"));
  EXPECT_THAT(error_of(std::string(2000, ';')), HasSubstr("more than 1024"));
  std::string many;
  for (std::size_t i = 0; i <= kMostOverrides; ++i) many += "reduce=ring;";
  EXPECT_THAT(error_of(many), HasSubstr("64 rules"));
}

TEST(Overrides, TheirTextGivesThemAgain) {
  std::mt19937 random(7);
  const std::uint64_t sizes[] = {0, 1, 1000, 1024, 65536, 3 << 20, UINT64_MAX};
  const std::uint32_t numbers[] = {0, 1, 8, UINT32_MAX};
  for (int round = 0; round < 500; ++round) {
    std::vector<Override> rules;
    for (unsigned i = random() % 5; i > 0; --i) {
      Override rule;
      rule.kind = all_collectives()[random() % all_collectives().size()];
      const auto algorithms = algorithms_of(rule.kind);
      rule.algorithm = algorithms[random() % algorithms.size()];
      rule.min_bytes = sizes[random() % 6];
      rule.max_bytes = std::max(rule.min_bytes, sizes[random() % 7]);
      rule.min_ranks = numbers[random() % 3];
      rule.max_ranks = std::max(rule.min_ranks, numbers[random() % 4]);
      const bool same_calls = std::any_of(rules.begin(), rules.end(), [&](Override other) {
        other.algorithm = rule.algorithm;
        return other == rule;
      });
      if (!same_calls) rules.push_back(rule);
    }
    const std::string text = text_of(rules);
    const auto again = parse_overrides(text);
    ASSERT_TRUE(again.ok()) << text << ": " << again.error().message;
    EXPECT_EQ(*again, rules) << text;
  }
}

}  // namespace
}  // namespace tutti

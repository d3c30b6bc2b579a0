// Tests the drawings of plans as SVG.
#include "tools/plan/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "plans.h"

namespace tutti::tool {
namespace {

using testing::HasSubstr;

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

struct Sizes {
  std::size_t steps = 0;
  std::size_t messages = 0;
};

Sizes sizes_of(const Plan& plan) {
  Sizes sizes;
  for (const RankPlan& rank : plan.ranks) {
    for (const Channel& channel : rank.channels) {
      sizes.steps += channel.steps.size();
      for (const Step& step : channel.steps) sizes.messages += step.receive_count;
    }
  }
  return sizes;
}

TEST(Svg, DrawsEveryStepAndEveryMessage) {
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllReduce)) {
    const Plan plan = plan_of(algorithm, 8);
    const auto [steps, messages] = sizes_of(plan);
    const auto svg = to_svg(plan);
    ASSERT_TRUE(svg.ok());
    EXPECT_EQ(count_of(*svg, "rx=\"4\""), steps + 4) << "the legend shows four boxes";
    EXPECT_EQ(count_of(*svg, "<path"), messages);
    EXPECT_THAT(
        *svg, testing::AllOf(HasSubstr("8 ranks"), HasSubstr(std::string(to_string(algorithm))), HasSubstr("rank 7<")));
    EXPECT_EQ(count_of(*svg, "<svg"), count_of(*svg, "</svg>"));
  }
}

// In the last round, rank 2 sends the blocks 2 and 3, and rank 3 the blocks 3 and 0.
TEST(Svg, LabelsARunWithItsFirstAndLastBlock) {
  const Plan plan = build_plan(
      *find_generator({.kind = CollectiveKind::kAllGather, .ranks = 4}, Algorithm::kCirculant, Messages::kRuns));
  const auto svg = to_svg(plan);
  ASSERT_TRUE(svg.ok());
  EXPECT_THAT(*svg, testing::AllOf(HasSubstr(">2..3<"), HasSubstr(">3..0<")));
}

// Includes 5 ranks on 2 machines with 2 and 3 ranks.
TEST(Svg, DrawsEveryAlgorithmOfEveryCollective) {
  const std::vector<std::vector<std::uint32_t>> shapes = {{0, 0, 0, 0}, {0, 0, 1, 1}, {0, 0, 0, 0, 0}, {0, 0, 1, 1, 1}};
  std::size_t drawn = 0;
  for (const CollectiveKind kind : all_collectives()) {
    for (const Algorithm algorithm : algorithms_of(kind)) {
      for (const std::vector<std::uint32_t>& nodes : shapes) {
        Collective collective;
        collective.kind = kind;
        collective.ranks = static_cast<std::uint32_t>(nodes.size());
        if (nodes.back() > 0) collective.nodes = nodes;
        const auto generator = find_generator(collective, algorithm);
        ASSERT_TRUE(generator.ok()) << to_string(kind) << " " << to_string(algorithm);
        const Plan plan = build_plan(*generator);
        const auto svg = to_svg(plan);
        ASSERT_TRUE(svg.ok()) << to_string(kind) << " " << to_string(algorithm) << ": " << svg.error().message;
        EXPECT_EQ(count_of(*svg, "<path"), sizes_of(plan).messages) << to_string(kind) << " " << to_string(algorithm);
        EXPECT_THAT(*svg, testing::AllOf(HasSubstr(std::string(to_string(kind))),
                                         HasSubstr(std::string(to_string(algorithm))), testing::EndsWith("</svg>\n")));
        ++drawn;
      }
    }
  }
  EXPECT_GT(drawn, 100u);
}

TEST(Svg, DrawsCollectivesThatMove) {
  for (const CollectiveKind kind : {CollectiveKind::kBroadcast, CollectiveKind::kAllGather, CollectiveKind::kAllToAll,
                                    CollectiveKind::kGather, CollectiveKind::kScatter}) {
    for (const Algorithm algorithm : algorithms_of(kind)) {
      const Plan plan = build_plan(*find_generator({.kind = kind, .ranks = 4}, algorithm));
      const auto [steps, messages] = sizes_of(plan);
      const auto svg = to_svg(plan);
      ASSERT_TRUE(svg.ok());
      EXPECT_EQ(count_of(*svg, "rx=\"4\""), steps + 2) << "the legend shows two boxes";
      EXPECT_EQ(count_of(*svg, "<path"), messages);
    }
  }
}

TEST(Svg, TellsWhoseDataTravels) {
  const auto draw = [](CollectiveKind kind, Algorithm algorithm, std::uint32_t root) {
    return *to_svg(build_plan(*find_generator({.kind = kind, .ranks = 4, .root = root}, algorithm)));
  };
  EXPECT_THAT(draw(CollectiveKind::kScatter, Algorithm::kDirect, 2), HasSubstr("scatter, direct, 4 ranks, root 2<"));
  const std::string exchange = draw(CollectiveKind::kAllToAll, Algorithm::kPairwise, 0);
  for (const char* block : {">0&gt;3<", ">3&gt;0<", ">2&gt;1<"})
    EXPECT_EQ(count_of(exchange, block), 2u) << "once in the sending and once in the storing step";
}

// A message that is received some steps later must be drawn beside the boxes of the steps between, and not behind
// them.
TEST(Svg, LeadsLongMessagesRoundTheBoxes) {
  const auto long_messages = [](CollectiveKind kind, Algorithm algorithm) {
    const std::string svg = *to_svg(build_plan(*find_generator({.kind = kind, .ranks = 4}, algorithm)));
    return count_of(svg, " C") - count_of(svg, "<path");  // such a message has one curve more than the others
  };
  EXPECT_EQ(long_messages(CollectiveKind::kAllGather, Algorithm::kRing), 0u);
  EXPECT_EQ(long_messages(CollectiveKind::kAllGather, Algorithm::kDirect), 8u)
      << "two of the three messages of each rank are long";
  EXPECT_EQ(long_messages(CollectiveKind::kGather, Algorithm::kDirect), 2u);
}

// A digit of the usual fonts is about 0.56 times as wide as its font size.
TEST(Svg, KeepsLabelsInsideTheirBoxes) {
  for (const std::uint32_t ranks : {4u, 16u, kMaxDrawnRanks}) {
    const Collective exchange{.kind = CollectiveKind::kAllToAll, .ranks = ranks};
    const std::string svg = *to_svg(build_plan(*find_generator(exchange, Algorithm::kBruck)));
    const std::regex box(
        "<rect [^>]*width=\"(\\d+)\"[^>]*rx=\"4\"[^>]*/>\n(?:<rect[^>]*/>\n)?"
        "<text [^>]*font-size=\"(\\d+)\"[^>]*>([0-9]+(?:&gt;[0-9]+)?)</text>");
    std::size_t boxes = 0;
    for (std::sregex_iterator at(svg.begin(), svg.end(), box), end; at != end; ++at, ++boxes) {
      const std::string label = std::regex_replace((*at)[3].str(), std::regex("&gt;"), ">");
      EXPECT_LT(0.58 * std::stod((*at)[2]) * static_cast<double>(label.size()), std::stod((*at)[1]))
          << at->str() << " of " << ranks << " ranks";
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_GT(boxes, ranks);
  }
}

TEST(Svg, PutsARingsStepsOneAfterTheOther) {
  EXPECT_THAT(*to_svg(plan_of(Algorithm::kRing, 8)), HasSubstr("15 steps one after the other"));
  EXPECT_THAT(*to_svg(plan_of(Algorithm::kDoubleTree, 8)), HasSubstr("7 steps one after the other"));
}

TEST(Svg, RefusesMoreRanksThanOneCanRead) {
  EXPECT_TRUE(to_svg(plan_of(Algorithm::kOneShot, kMaxDrawnRanks)).ok());
  const auto refused = to_svg(plan_of(Algorithm::kOneShot, kMaxDrawnRanks + 1));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("at most 64"));
}

TEST(Svg, RefusesAPlanThatDoesNotEnd) {
  Plan plan = two_ranks();
  for (RankPlan& rank : plan.ranks) std::swap(rank.channels[0].steps[0], rank.channels[0].steps[1]);
  const auto refused = to_svg(plan);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidPlan);
}

}  // namespace
}  // namespace tutti::tool

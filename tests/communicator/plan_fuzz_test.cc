// Tests mutated plan files. No text may crash the parser, and a plan that is accepted must compute its collective.
// The interpreter decides this, because it is independent of the verifier. A failure prints the seed of the mutant,
// which replays it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "algorithms/algorithms.h"
#include "communicator/user_plan.h"
#include "plan/collective.h"
#include "plan/formats/json.h"
#include "plan/verify/interpret.h"
#include "tutti/plan.h"

namespace tutti {
namespace {

constexpr std::uint64_t kMutantsOfEach = 4000;
constexpr double kRounding = 1e-4;  // relative error, because some float32 are added in another order

// Builds a simple plan that defines the result of a collective. Each rank first sends every chunk that another rank
// needs to that rank. Then every rank adds in rank order. The number of slots is so large that a send never waits.
Plan meaning_of(const PlanShape& shape) {
  Plan plan{.shape = {.collective = shape.collective, .chunks = shape.chunks, .slots = 0xffff}, .ranks = {}};
  const std::uint32_t ranks = shape.collective.ranks;
  const auto gives = [](const ExpectedOutput& want, std::uint32_t rank) {
    return want.contributor == kEveryRank || want.contributor == rank;
  };
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    ChannelBuilder channel;
    for (std::uint32_t peer = 0; peer < ranks; ++peer) {
      for (std::uint32_t c = 0; peer != rank && c < output_chunks(shape, peer); ++c) {
        const ExpectedOutput want = expected_output(shape, peer, c);
        if (gives(want, rank)) channel.step().local(Space::kInput, want.datum).send(channel.send_to(peer, 0));
      }
    }
    for (std::uint32_t c = 0; c < output_chunks(shape, rank); ++c) {
      const ExpectedOutput want = expected_output(shape, rank, c);
      auto step = channel.step();
      for (std::uint32_t giver = 0; giver < ranks; ++giver) {
        if (!gives(want, giver)) continue;
        if (giver == rank) step.local(Space::kInput, want.datum);
        if (giver != rank) step.receive(channel.receive_from(giver, 0));
      }
      step.store(Space::kOutput, c);
      if (want.contributor == kEveryRank) step.completes();
    }
    plan.ranks.push_back({.channels = {std::move(channel).build()}});
  }
  return plan;
}

bool close(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= kRounding * std::abs(b[i]))) return false;  // a NaN is never close
  }
  return true;
}

// Compares the plan with the reference plan of its collective in two interleavings, in place and out of place.
bool is_right(const Plan& plan) {
  const Plan meaning = meaning_of(plan.shape);
  for (const bool in_place : {false, true}) {
    const auto expected = interpret(meaning, {.in_place = in_place});
    if (!expected) ADD_FAILURE() << expected.error().message;
    for (const std::uint64_t seed : {1u, 2u}) {
      const auto got = interpret(plan, {.in_place = in_place, .seed = seed});
      if (!got || !close(*got, *expected)) return false;
    }
  }
  return true;
}

std::string text_of(CollectiveKind kind, Algorithm algorithm, std::uint32_t ranks) {
  return to_json({.plan = build_plan(*find_generator({.kind = kind, .ranks = ranks}, algorithm))});
}

// A plan with two channels on each rank, two lanes, scratch chunks, and a wait.
std::string text_with_everything() {
  PlanBuilder plan({.name = "all", .ranks = 2, .chunks = 2, .scratch_chunks = 1, .slots = 2, .lanes = 2});
  for (std::uint32_t rank : {0u, 1u}) {
    const std::uint32_t peer = 1 - rank;
    for (std::uint32_t chunk : {0u, 1u}) {
      PlanBuilder::Channel channel = plan.channel(rank);
      channel.step().local(Space::kInput, chunk).send(peer, chunk);
      PlanBuilder::Step add = channel.step();
      if (rank == 0) add.local(Space::kInput, chunk).receive(peer, chunk);
      if (rank == 1) add.receive(peer, chunk).local(Space::kInput, chunk);
      add.store(Space::kOutput, chunk).completes();
      if (chunk == 1) channel.step().local(Space::kOutput, 0).store(Space::kScratch, 0).after(0, 1);
    }
  }
  const Result<UserPlan> built = plan.build();
  EXPECT_TRUE(built) << to_string(built.error());
  return built ? built->to_json() : "";
}

class Mutator {
 public:
  Mutator(std::string text, std::uint64_t seed) : text_(std::move(text)), random_(seed) {}

  std::string mutant() {
    const std::uint64_t edits = 1 + random_() % 3;
    for (std::uint64_t i = 0; i < edits; ++i) edit();
    return text_;
  }

 private:
  std::size_t below(std::size_t end) { return end == 0 ? 0 : random_() % end; }

  void edit() {
    static const std::vector<std::string> words = {
        "{",    "}",       "[",       "]",         ",",          ":",           "\"",          "null",
        "true", "false",   "-1",      "1e9",       "\"in\"",     "\"out\"",     "\"peer\"",    "\"lane\": 1",
        "{}",   "\\u0000", "\"any\"", "\"store\"", "\"reduce\"", "\"barrier\"", "\"scratch\"", "\"completes\": true, "};
    const std::size_t at = below(text_.size() + 1);
    switch (random_() % 12) {
      case 0: text_.resize(at); break;
      case 1: text_.erase(at, 1 + below(40)); break;
      case 2: text_.insert(at, text_.substr(below(text_.size()), 1 + below(60))); break;
      case 3: text_.insert(at, words[below(words.size())]); break;
      case 4:
        if (at < text_.size()) text_[at] = static_cast<char>(random_());
        break;
      case 5: replace_word(); break;
      case 6: repeat_or_erase_line(); break;
      default: replace_number(); break;
    }
  }

  void replace_number() {
    static const std::vector<std::string> numbers = {"0",
                                                     "0",
                                                     "0",
                                                     "1",
                                                     "1",
                                                     "1",
                                                     "2",
                                                     "2",
                                                     "3",
                                                     "4",
                                                     "7",
                                                     "63",
                                                     "65",
                                                     "1023",
                                                     "1024",
                                                     "65535",
                                                     "65536",
                                                     "4294967295",
                                                     "18446744073709551616"};
    const std::size_t begin = text_.find_first_of("0123456789", below(text_.size()));
    if (begin == std::string::npos) return;
    const std::size_t end = std::min(text_.find_first_not_of("0123456789", begin), text_.size());
    text_.replace(begin, end - begin, numbers[below(numbers.size())]);
  }

  void replace_word() {
    static const std::vector<std::pair<std::string, std::string>> pairs = {
        {"\"in\"", "\"out\""}, {"\"out\"", "\"scratch\""}, {"true", "false"},         {"false", "true"},
        {"receive", "send"},   {"send", "receive"},        {"all_reduce", "barrier"}, {"all_reduce", "reduce"},
        {"by_rank", "any"},    {"cyclic", "by_rank"},      {"\"out\"", "\"in\""},     {"local", "store"}};
    const auto& [from, to] = pairs[below(pairs.size())];
    const std::size_t at = text_.find(from, below(text_.size()));
    if (at != std::string::npos) text_.replace(at, from.size(), to);
  }

  void repeat_or_erase_line() {
    const std::size_t begin = text_.find('\n', below(text_.size()));
    if (begin == std::string::npos) return;
    const std::size_t end = std::min(text_.find('\n', begin + 1), text_.size());
    if (random_() % 2 == 0)
      text_.insert(begin, text_.substr(begin, end - begin));
    else
      text_.erase(begin, end - begin);
  }

  std::string text_;
  std::mt19937_64 random_;
};

TEST(PlanFuzz, NeverCrashesAndNeverAcceptsAWrongPlan) {
  const std::vector<std::string> texts = {text_of(CollectiveKind::kAllReduce, Algorithm::kRing, 3),
                                          text_of(CollectiveKind::kAllReduce, Algorithm::kOneShot, 3),
                                          text_of(CollectiveKind::kAllReduce, Algorithm::kTwoShot, 3),
                                          text_of(CollectiveKind::kAllReduce, Algorithm::kDoubleTree, 4),
                                          text_with_everything()};
  std::uint64_t refused = 0;
  std::uint64_t changed = 0;  // number of plans that were accepted and differ from the original
  for (std::size_t base = 0; base < texts.size(); ++base) {
    const Result<UserPlan> original = UserPlan::parse_json(texts[base]);
    ASSERT_TRUE(original) << to_string(original.error());
    ASSERT_TRUE(is_right(detail::UserPlanData::of(*original).plan));
    for (std::uint64_t i = 0; i < kMutantsOfEach; ++i) {
      const std::uint64_t seed = base * kMutantsOfEach + i;
      const std::string text = Mutator(texts[base], seed).mutant();
      const Result<UserPlan> plan = UserPlan::parse_json(text);
      if (!plan) {
        ++refused;
        EXPECT_FALSE(plan.error().message.empty()) << "seed " << seed;
        continue;
      }
      if (plan->digest() != original->digest()) ++changed;
      ASSERT_TRUE(is_right(detail::UserPlanData::of(*plan).plan)) << "seed " << seed << ":\n" << text;
      const Result<UserPlan> again = UserPlan::parse_json(plan->to_json());
      ASSERT_TRUE(again) << "seed " << seed << ": " << to_string(again.error());
      EXPECT_EQ(*again, *plan) << "seed " << seed;
    }
  }
  EXPECT_GT(refused, texts.size() * kMutantsOfEach / 2);
  EXPECT_GT(changed, 50u) << "too few accepted mutants differ from the original plan";
}

// Without this check, a broken is_right() could accept every mutant.
TEST(PlanFuzz, ItsJudgeNoticesWrongPlans) {
  const Plan ring = build_plan(*find_generator({.ranks = 3}, Algorithm::kRing));
  EXPECT_TRUE(is_right(ring));
  const auto breaks = [&](const auto& change) {
    Plan plan = ring;
    change(plan.ranks[1].channels[0].steps);
    return !is_right(plan);
  };
  EXPECT_TRUE(breaks([](std::vector<Step>& steps) { steps[1].source.chunk ^= 1u; }));
  EXPECT_TRUE(breaks([](std::vector<Step>& steps) { steps[1].source = {}; }));
  EXPECT_TRUE(breaks([](std::vector<Step>& steps) { steps[2].completes = 0; }));
  EXPECT_TRUE(breaks([](std::vector<Step>& steps) { steps[4].sink.chunk ^= 1u; }));
  EXPECT_TRUE(breaks([](std::vector<Step>& steps) { steps.pop_back(); }));
  for (const CollectiveKind kind : all_collectives()) {
    const Plan meaning = meaning_of({.collective = {.kind = kind, .ranks = 3}, .chunks = 2});
    EXPECT_TRUE(interpret(meaning, {})) << to_string(kind) << " has no valid reference plan";
  }
}

}  // namespace
}  // namespace tutti

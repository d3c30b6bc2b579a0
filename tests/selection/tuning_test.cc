// Tests that all ranks choose the same algorithm. They use the costs and rules of rank 0, even if their own differ.
// A rule of the user takes precedence, and an invalid rule is refused.
#include "selection/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "algorithms/algorithms.h"
#include "bootstrap/unique_id_parts.h"
#include "communicator/create.h"
#include "model/calibration.h"
#include "selection/algorithm_selector.h"

namespace tutti::detail {
namespace {

using ::testing::HasSubstr;
using Communicators = std::vector<std::unique_ptr<Communicator>>;

void on_all(Communicators& ranks, const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

// Creates a communicator of two ranks, each in a thread and with an environment of its own, and passes the result of
// each rank to `body`.
void with_environments(const std::vector<Variables>& environments,
                       const std::function<void(std::int32_t, Result<std::unique_ptr<Communicator>>)>& body) {
  const auto id = create_unique_id({}, {});
  ASSERT_TRUE(id.ok()) << id.error().message;
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options;
      options.rank = rank;
      options.size = 2;
      options.unique_id = *id;
      body(rank, create(options, environments[static_cast<std::size_t>(rank)]));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Tuning measured_tuning() {
  Tuning tuning{.parameters = default_host_parameters(2), .measured = true};
  tuning.parameters.name.clear();
  tuning.parameters.source.clear();
  for (std::uint32_t ranks = 2; ranks < 2 + kMostRankChoices; ++ranks) {
    constexpr std::uint64_t kLong = std::uint64_t{1} << 50;
    tuning.parameters.choices.push_back({ranks, ranks, {kLong - ranks, kLong, kLong}});
  }
  tuning.rules = "all_reduce:..64K:ranks<=8=one_shot; broadcast=tree";
  tuning.overrides = *parse_overrides(tuning.rules);
  return tuning;
}

TEST(Tuning, TravelsWhole) {
  for (const bool measured : {false, true}) {
    Tuning tuning = measured_tuning();
    tuning.measured = measured;
    tuning.measure = !measured;
    if (!measured) tuning.parameters = default_host_parameters(2);
    const auto again = unpack(pack(tuning));
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(*again, tuning);
  }
  // That of a first job.
  Tuning with_choices{.parameters = default_host_parameters(2)};
  with_choices.parameters.name.clear();
  with_choices.parameters.source.clear();
  with_choices.parameters.choices = {{2, 2, {.one_shot_bytes = 2048}}};
  const auto again = unpack(pack(with_choices));
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(*again, with_choices);
}

TEST(Tuning, AFileWithChoicesOnlyLeavesTheDefaultCosts) {
  const std::string folder = ::testing::TempDir() + "tutti_first_choices_" + std::to_string(getpid());
  const EnvironmentVariables cache = {{"XDG_CACHE_HOME", folder}};
  const std::string path = calibration_path("", cache);
  const RankChoices two{2, 4, {.one_shot_bytes = 512}};
  const RankChoices eight{8, 4, {.one_shot_bytes = 1024}};
  for (const RankChoices& one : {two, eight}) {
    const Status added = add_choices(path, one, cache);
    ASSERT_TRUE(added.ok()) << added.error().message;
  }
  Config config;
  config.tune_file = path;
  const auto tuning = own_tuning(config, 3, Log(LogLevel::kOff, 0));
  ASSERT_TRUE(tuning.ok()) << tuning.error().message;
  EXPECT_FALSE(tuning->measured);
  EXPECT_EQ(tuning->parameters.launch_us, default_host_parameters(3).launch_us);
  EXPECT_EQ(tuning->parameters.choices, (std::vector<RankChoices>{two, eight}));
  std::filesystem::remove_all(folder);
}

// The rules are sent as the user wrote them. In a normalized form they could be longer than the limit
// (kMostOverrideBytes).
TEST(Tuning, RulesTravelAsTheyWereWritten) {
  Tuning tuning = measured_tuning();
  tuning.rules.clear();
  while (tuning.rules.size() + 20 < kMostOverrideBytes) tuning.rules += "reduce:ranks=8=ring;";
  tuning.overrides = *parse_overrides(tuning.rules);
  const auto again = unpack(pack(tuning));
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(*again, tuning);
}

// With the longest rules, choices are added until they do not fit any more.
TEST(Tuning, WhatDoesNotFitIntoARoundIsAnError) {
  Tuning tuning = measured_tuning();
  while (tuning.rules.size() < kMostOverrideBytes) tuning.rules += ' ';
  ASSERT_TRUE(check_size(tuning).ok());
  while (check_size(tuning).ok()) {
    EXPECT_LE(pack(tuning).size(), kMostTuningBytes);
    tuning.parameters.choices.push_back(tuning.parameters.choices.back());
  }
  EXPECT_EQ(check_size(tuning).error().code, ErrorCode::kInvalidArgument);
}

TEST(Tuning, MalformedTextIsRefused) {
  const std::string good = pack(measured_tuning());
  for (std::size_t length = 0; length + 1 < good.size(); ++length) {
    const auto part = unpack(std::string_view(good).substr(0, length));
    ASSERT_FALSE(part.ok()) << length;
    EXPECT_EQ(part.error().code, ErrorCode::kRefused);
  }
  for (const char* text : {"", "|", "|00|", "|00|{", "all_reduce=|00|2", "|00|-1", "|00|2x", "|2", "|02|2", "|0|2",
                           "|000|2", "|10|{\"tutti_parameters\":2}"}) {
    EXPECT_FALSE(unpack(text).ok()) << text;
  }
}

TEST(Tuning, AUsersRuleCounts) {
  auto ranks = create_all(3, {}, 1, {{"TUTTI_TUNE", "all_reduce:..1K=ring; all_reduce:ranks>=4=double_tree"}});
  ASSERT_TRUE(ranks.ok()) << ranks.error().message;
  on_all(*ranks, [](Communicator& rank) {
    EXPECT_EQ(rank.auto_algorithm(CollectiveKind::kAllReduce, 256, DataType::kFloat32), Algorithm::kRing);
    EXPECT_EQ(rank.auto_algorithm(CollectiveKind::kAllReduce, 257, DataType::kFloat32), Algorithm::kOneShot);
    std::vector<float> data(256, 1);
    for (int call = 0; call < 3; ++call) {
      ASSERT_TRUE(rank.all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum).ok());
    }
    EXPECT_EQ(data[0], 27);
  });
}

TEST(Tuning, AWrongRuleIsRefused) {
  const auto ranks = create_all(2, {}, 1, {{"TUTTI_TUNE", "all_reduce=rign"}});
  ASSERT_FALSE(ranks.ok());
  EXPECT_EQ(ranks.error().code, ErrorCode::kConfig);
  EXPECT_THAT(ranks.error().message, HasSubstr("did you mean ring?"));
}

TEST(Tuning, ARuleOfAnotherOrderLeavesCallsInRankOrderAlone) {
  const auto tuning = std::make_shared<Tuning>(Tuning{.parameters = default_host_parameters(2)});
  tuning->overrides = *parse_overrides("all_reduce=double_tree");
  AlgorithmSelector selector({.tuning = tuning, .ranks = 4, .mailboxes = true});
  const Collective all_reduce{.kind = CollectiveKind::kAllReduce, .ranks = 4};
  EXPECT_EQ(selector.choose(all_reduce, {.bytes = 8}).algorithm, Algorithm::kDoubleTree);
  const Algorithm in_order = selector.choose(all_reduce, {.bytes = 8, .in_rank_order = true}).algorithm;
  EXPECT_EQ(find_generator(all_reduce, in_order)->shape.order, Order::kByRank);
}

// TUTTI_TUNE of rank 0 is malformed. The options give the ranks their numbers, not the environment. Both ranks get an
// error at once; the limit for the set-up is not reached.
TEST(Tuning, AWrongRuleOfRank0FailsAllRanks) {
  const Variables wrong = {{"TUTTI_TUNE", "all_reduce=rign"}, {"TUTTI_RANK", "1"}};
  with_environments({wrong, wrong}, [](std::int32_t rank, Result<std::unique_ptr<Communicator>> made) {
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, rank == 0 ? ErrorCode::kConfig : ErrorCode::kSystem);
    EXPECT_THAT(made.error().message, HasSubstr("did you mean ring?"));
  });
}

// The two ranks have different rules. The rules of rank 0 apply on both.
TEST(Tuning, RanksWithDifferentRulesChooseAlike) {
  const std::vector<Variables> rules = {{{"TUTTI_TUNE", "all_reduce=ring"}},
                                        {{"TUTTI_TUNE", "all_reduce=double_tree"}}};
  with_environments(rules, [](std::int32_t, Result<std::unique_ptr<Communicator>> made) {
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ((*made)->auto_algorithm(CollectiveKind::kAllReduce, 1, DataType::kFloat32), Algorithm::kRing);
    float one = 1;
    ASSERT_TRUE((*made)->all_reduce(&one, &one, 1, DataType::kFloat32, ReduceOp::kSum).ok());
    EXPECT_EQ(one, 2);
    auto child = (*made)->duplicate();
    ASSERT_TRUE(child.ok());
    EXPECT_EQ((*child)->auto_algorithm(CollectiveKind::kAllReduce, 1, DataType::kFloat32), Algorithm::kRing);
  });
}

// The file has choices for two and for four ranks.
TEST(Tuning, TheMeasuredChoicesOfTheFileCount) {
  const std::string path = ::testing::TempDir() + "tutti_choices_test.json";
  Parameters parameters = default_host_parameters(2);
  for (const std::uint32_t cores : {1u, 64u}) {  // whether or not this machine has a core for each rank
    parameters.choices.push_back({2, cores, {.one_shot_bytes = 512}});
    parameters.choices.push_back({4, cores, {.one_shot_bytes = 64 << 10}});
  }
  std::ofstream(path) << to_json(parameters);
  for (const std::int32_t number : {2, 3, 4}) {
    auto ranks = create_all(number, {}, 1, {{"TUTTI_TUNE_FILE", path}});
    ASSERT_TRUE(ranks.ok()) << ranks.error().message;
    on_all(*ranks, [number](Communicator& rank) {
      const auto chosen = [&rank](std::size_t bytes) {
        return rank.auto_algorithm(CollectiveKind::kAllReduce, bytes / 4, DataType::kFloat32);
      };
      const std::size_t limit = number < 4 ? 512 : 64 << 10;
      EXPECT_EQ(chosen(limit), Algorithm::kOneShot) << number << " ranks";
      EXPECT_EQ(chosen(limit + 4), Algorithm::kTwoShot) << number << " ranks";
      std::vector<float> data(limit / 4 + 1, 1);
      ASSERT_TRUE(rank.all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum).ok());
      EXPECT_EQ(data.back(), static_cast<float>(number));
    });
  }
  std::remove(path.c_str());
}

TEST(Tuning, ADamagedFileIsNoReasonToFail) {
  const std::string path = ::testing::TempDir() + "tutti_tuning_test.json";
  std::ofstream(path) << "{\"tutti_parameters\": 1, \"cores\": ";
  auto ranks = create_all(2, {}, 1, {{"TUTTI_TUNE_FILE", path}, {"TUTTI_LOG", "error"}});
  std::remove(path.c_str());
  ASSERT_TRUE(ranks.ok()) << ranks.error().message;
  EXPECT_TRUE((*ranks)[0]->predicted_us(CollectiveKind::kAllReduce, 1, DataType::kFloat32).has_value())
      << "the default parameters are used";
}

// Over sockets the tuner decides. All ranks must choose the same algorithm, it must have a plan, and the calls must
// succeed.
TEST(Tuning, WhateverTheTunerChoosesRuns) {
  for (const std::int32_t nodes : {1, 2}) {
    CommunicatorOptions options;
    if (nodes == 1) options.transport = "tcp";
    auto ranks = create_all(4, options, nodes, {});
    ASSERT_TRUE(ranks.ok()) << ranks.error().message;
    on_all(*ranks, [](Communicator& rank) {
      for (const std::size_t count : {1u, 1000u, 50'000u, 300'000u}) {
        std::vector<float> data(count, 1);
        ASSERT_TRUE(rank.all_reduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum).ok());
        EXPECT_EQ(data[count - 1], 4);
        ASSERT_TRUE(rank.broadcast(data.data(), data.data(), count, DataType::kFloat32, 1).ok());
        const auto us = rank.predicted_us(CollectiveKind::kAllReduce, count, DataType::kFloat32);
        ASSERT_TRUE(us.has_value());
        EXPECT_GT(*us, 1);
      }
      ASSERT_TRUE(rank.barrier().ok());
    });
  }
}

// The selector stores one choice for all sizes up to a power of two. A rule whose range begins at that power of two
// must not apply to the shorter calls of the same range.
TEST(AlgorithmSelector, ARuleForLongerCallsIsNoneForShorterOnes) {
  const std::vector<std::uint32_t> nodes{0, 1, 2, 3};
  const Collective all_reduce{.kind = CollectiveKind::kAllReduce, .ranks = 4, .nodes = nodes};
  const auto chosen = [&](const std::string& rules, std::uint64_t bytes) {
    Tuning tuning{.parameters = default_host_parameters(0)};
    tuning.overrides = *parse_overrides(rules);
    AlgorithmSelector selector({.tuning = std::make_shared<const Tuning>(tuning), .ranks = 4, .nodes = nodes});
    return selector.choose(all_reduce, {.bytes = bytes}).algorithm;
  };
  ASSERT_NE(chosen("", 40'000), Algorithm::kOneShot);
  EXPECT_EQ(chosen("all_reduce:64K..=one_shot", 40'000), chosen("", 40'000));
  EXPECT_EQ(chosen("all_reduce:64K..=one_shot", 65536), Algorithm::kOneShot);
}

// The choice must follow the costs: a network with high latency and high bandwidth needs few rounds, and a network
// with low latency and low bandwidth needs few bytes.
TEST(AlgorithmSelector, FollowsTheCosts) {
  const std::vector<std::uint32_t> nodes{0, 1, 2, 3, 4, 5, 6, 7};
  const Collective all_reduce{.kind = CollectiveKind::kAllReduce, .ranks = 8, .nodes = nodes};
  const auto chosen = [&](double latency_us, double gbytes_per_s) {
    const auto tuning = std::make_shared<Tuning>(Tuning{.parameters = default_host_parameters(0), .measured = true});
    for (const Level level : {Level::kNic, Level::kSpine}) {
      tuning->parameters.cost(level, Protocol::kSimple) = {.latency_us = latency_us, .gbytes_per_s = gbytes_per_s};
    }
    AlgorithmSelector selector({.tuning = tuning, .ranks = 8, .nodes = nodes});
    const Selection taken = selector.choose(all_reduce, {.bytes = 1 << 20});
    EXPECT_EQ(selector.choose(all_reduce, {.bytes = 1 << 20}), taken)
        << "the second choice comes from the table of earlier choices";
    const auto decision = selector.explain(all_reduce, {.bytes = 1 << 20});
    EXPECT_EQ(decision.algorithm, taken.algorithm);
    EXPECT_EQ(decision.chunk_bytes, taken.chunk_bytes);
    EXPECT_LE(decision.predictions.front().total_us(), decision.predictions.back().total_us());
    return decision;
  };
  const auto far = chosen(1e6, 1000);
  EXPECT_EQ(far.by, AlgorithmSelector::By::kTuner)
      << "with a latency of 1 s, the algorithm with the fewest rounds is best";
  EXPECT_NE(far.algorithm, Algorithm::kRing);
  EXPECT_LT(far.predictions.front().total_us(), 5e6);
}

// A chain finishes sooner if its tiles are shorter. With only one slot, a rank cannot send the next tile before the
// peer has consumed the previous one, so the call takes longer.
TEST(AlgorithmSelector, GoesByTheJobsSlots) {
  const std::vector<std::uint32_t> nodes{0, 1, 2, 3, 4, 5, 6, 7};
  const Collective broadcast{.kind = CollectiveKind::kBroadcast, .ranks = 8, .nodes = nodes};
  const auto tuning = std::make_shared<Tuning>(Tuning{.parameters = default_host_parameters(0)});
  const auto predicted = [&](std::uint32_t slots, std::uint64_t slot_bytes) {
    AlgorithmSelector selector(
        {.tuning = tuning, .ranks = 8, .nodes = nodes, .slots = slots, .slot_bytes = slot_bytes});
    return selector.predict(broadcast, {.bytes = 1 << 20}, {Algorithm::kChain}).value();
  };
  EXPECT_EQ(predicted(0, 0), predicted(tuning->parameters.slots, tuning->parameters.slot_bytes));
  EXPECT_LT(predicted(4, 128 * 1024), predicted(4, 1 << 20));
  EXPECT_LT(predicted(4, 16 * 1024), predicted(1, 16 * 1024));
}

// End to end: the predictions of a communicator must depend on TUTTI_SLOT_BYTES of its job.
TEST(Tuning, AJobsSlotsAreThoseOfItsPredictions) {
  const auto predicted = [](const char* slot_bytes) {
    CommunicatorOptions options;
    options.transport = "tcp";
    auto ranks = create_all(2, options, 1, {{"TUTTI_SLOT_BYTES", slot_bytes}});
    EXPECT_TRUE(ranks.ok()) << ranks.error().message;
    return (*ranks)[0]->predicted_us(CollectiveKind::kBroadcast, 1 << 20, DataType::kInt8, Algorithm::kChain);
  };
  const auto shorter = predicted("4096");
  const auto longer = predicted("1048576");
  ASSERT_TRUE(shorter && longer);
  EXPECT_NE(*shorter, *longer);
}

TEST(AlgorithmSelector, ARuleSaysHowLongChunksAre) {
  const auto tuning = std::make_shared<Tuning>(Tuning{.parameters = default_host_parameters(2)});
  tuning->overrides = *parse_overrides("all_reduce:1M..=ring/32K; all_reduce=two_shot");
  AlgorithmSelector selector({.tuning = tuning, .ranks = 4, .mailboxes = true});
  const Collective all_reduce{.kind = CollectiveKind::kAllReduce, .ranks = 4};
  EXPECT_EQ(selector.choose(all_reduce, {.bytes = 1 << 20}), (Selection{Algorithm::kRing, 32 * 1024}));
  EXPECT_EQ(selector.choose(all_reduce, {.bytes = 1000}), (Selection{Algorithm::kTwoShot, 0}));
  const auto decision = selector.explain(all_reduce, {.bytes = 1 << 20});
  EXPECT_EQ(decision.chunk_bytes, 32u * 1024);
  for (const Prediction& one : decision.predictions) {
    EXPECT_EQ(one.candidate.chunk_bytes, one.candidate.algorithm == Algorithm::kRing ? 32u * 1024 : 0u);
  }
}

// Tests the shortest and longest chunks that a rule may set, over shared memory and over sockets, and for calls
// that need no messages.
TEST(Tuning, CallsInShortChunksGiveTheSameSums) {
  for (const char* transport : {"auto", "tcp"}) {
    for (const char* rules : {"all_reduce=ring/4K", "all_reduce=two_shot/8K; broadcast=chain/4K",
                              "all_reduce=one_shot/16K; broadcast=direct/4K", "all_reduce=double_tree/128K"}) {
      CommunicatorOptions options;
      options.transport = transport;
      auto ranks = create_all(3, options, 1, {{"TUTTI_TUNE", rules}});
      ASSERT_TRUE(ranks.ok()) << ranks.error().message;
      on_all(*ranks, [](Communicator& rank) {
        for (const std::size_t count : {1u, 100u, 1000u, 100'000u}) {
          for (int call = 0; call < 2; ++call) {  // the second call may use another path than the first one
            std::vector<float> data(count);
            for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<float>(i % 100 + rank.rank());
            ASSERT_TRUE(rank.all_reduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum).ok());
            for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], 3.0F * (i % 100) + 3) << i;
            ASSERT_TRUE(rank.broadcast(data.data(), data.data(), count, DataType::kFloat32, 2).ok());
            ASSERT_EQ(data[count - 1], 3.0F * ((count - 1) % 100) + 3);
          }
        }
      });
    }
  }
}

TEST(Tuning, ChunksLongerThanASlotAreRefused) {
  const auto ranks = create_all(2, {}, 1, {{"TUTTI_TUNE", "all_reduce=ring/32K"}, {"TUTTI_SLOT_BYTES", "16384"}});
  ASSERT_FALSE(ranks.ok());
  EXPECT_EQ(ranks.error().code, ErrorCode::kConfig);
  EXPECT_THAT(ranks.error().message, HasSubstr("longer than a slot, 16384"));
}

TEST(AlgorithmSelector, APredictionIsSimulatedOnce) {
  const std::vector<std::uint32_t> nodes{0, 1, 2, 3};
  Collective all_reduce{.kind = CollectiveKind::kAllReduce, .ranks = 4, .nodes = nodes};
  const auto tuning = std::make_shared<Tuning>(Tuning{.parameters = default_host_parameters(0)});
  AlgorithmSelector selector({.tuning = tuning, .ranks = 4, .nodes = nodes});
  const auto first = selector.predict(all_reduce, {.bytes = 5000}, {Algorithm::kRing});
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(selector.simulated(), 1u);
  EXPECT_EQ(selector.predict(all_reduce, {.bytes = 5000}, {Algorithm::kRing}), first);
  EXPECT_EQ(selector.simulated(), 1u);
  EXPECT_NE(selector.predict(all_reduce, {.bytes = 5001}, {Algorithm::kRing}), first)
      << "one more byte changes the prediction";
  EXPECT_NE(selector.predict(all_reduce, {.bytes = 5000}, {Algorithm::kDoubleTree}), first);
  EXPECT_EQ(selector.simulated(), 3u);
  // A failed prediction is stored as well and not tried again.
  EXPECT_EQ(selector.predict(all_reduce, {.bytes = 5000}, {Algorithm::kBruck}), std::nullopt);
  EXPECT_EQ(selector.predict(all_reduce, {.bytes = 5000}, {Algorithm::kBruck}), std::nullopt);
  EXPECT_EQ(selector.simulated(), 4u);
}

TEST(AlgorithmSelector, KeepsSoManyPredictionsAndNoMore) {
  const std::vector<std::uint32_t> nodes{0, 1};
  const Collective broadcast{.kind = CollectiveKind::kBroadcast, .ranks = 2, .nodes = nodes};
  const auto tuning = std::make_shared<Tuning>(Tuning{.parameters = default_host_parameters(0)});
  AlgorithmSelector selector({.tuning = tuning, .ranks = 2, .nodes = nodes});
  for (std::uint64_t bytes = 0; bytes < kMaxStoredPredictions; ++bytes) {
    selector.predict(broadcast, {.bytes = bytes}, {Algorithm::kChain});
  }
  selector.predict(broadcast, {.bytes = 0}, {Algorithm::kChain});
  EXPECT_EQ(selector.simulated(), kMaxStoredPredictions) << "the first one is still there";
  selector.predict(broadcast, {.bytes = kMaxStoredPredictions}, {Algorithm::kChain});
  selector.predict(broadcast, {.bytes = 0}, {Algorithm::kChain});
  EXPECT_EQ(selector.simulated(), kMaxStoredPredictions + 2) << "all were forgotten";
}

}  // namespace
}  // namespace tutti::detail

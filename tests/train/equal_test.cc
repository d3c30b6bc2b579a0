// Tests that ranks train exactly as one process does: the loss curves of every strategy over 200 steps, bitwise
// equality for data parallelism, and that the error bound detects intentional mistakes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ranks.h"

namespace tutti::train {
namespace {

// The largest allowed relative difference of a step's loss in float32. For correct code the curves of this model
// differ by less than a tenth of it. Each intentional mistake is far above it.
constexpr double kBound = 5e-6;

struct Case {
  const char* name;
  std::int32_t ranks;
  std::function<void(TrainOptions&)> with;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

const Training& one_process() {
  static const Training training = train_here(small_gpt());
  return training;
}

class Equal : public testing::TestWithParam<Case> {};

TEST_P(Equal, TheLossesOfOneProcess) {
  TrainOptions options = small_gpt();
  options.ranks = GetParam().ranks;
  GetParam().with(options);
  const Training training = train_here(options);
  ASSERT_EQ(training.error, "");
  ASSERT_EQ(one_process().error, "");
  ASSERT_EQ(training.losses.size(), 200U);
  EXPECT_LT(training.losses.back(), 0.8 * training.losses.front())
      << "the model has learned nothing, so equality would prove little";
  EXPECT_LT(drift(training.losses, one_process().losses), kBound);
  EXPECT_NEAR(training.result.test.loss, one_process().result.test.loss, 1e-4);
}

Strategy strategy_of(const std::string& name) {
  for (const Strategy strategy :
       {Strategy::kZero1, Strategy::kZero2, Strategy::kZero3, Strategy::kMics, Strategy::kServer}) {
    if (name == name_of(strategy)) return strategy;
  }
  return Strategy::kDdp;
}

auto by(const char* strategy) {
  return [strategy](TrainOptions& options) {
    options.strategy = strategy_of(strategy);
    options.bucket_kb = 8;
    options.group = 2;
  };
}

auto mesh(const char* strategy, std::int32_t tensor, std::int32_t pipeline, Schedule schedule) {
  return [=](TrainOptions& options) {
    options.strategy = strategy_of(strategy);
    options.tensor = tensor;
    options.pipeline = pipeline;
    options.schedule = schedule;
    options.group = 2;
  };
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, Equal,
    testing::Values(
        Case{"ddp_2", 2, by("ddp")}, Case{"ddp_5", 5, by("ddp")},
        Case{"ddp_without_overlap", 3, [](TrainOptions& o) { o.overlap = false; }},
        Case{"ddp_accumulates", 2, [](TrainOptions& o) { o.accumulate = 3; }},
        Case{"ddp_recomputes", 2, [](TrainOptions& o) { o.recompute = true; }},
        Case{"ddp_offloads", 2, [](TrainOptions& o) { o.recompute = true, o.offload = testing::TempDir(); }},
        Case{"ddp_balances", 2, [](TrainOptions& o) { o.balance = true, o.slow_rank = 1, o.slow_factor = 2; }},
        Case{"zero1_3", 3, by("zero1")}, Case{"zero2_3", 3, by("zero2")}, Case{"zero3_3", 3, by("zero3")},
        Case{"zero2_accumulates", 2, [](TrainOptions& o) { o.strategy = Strategy::kZero2, o.accumulate = 2; }},
        Case{"zero3_recomputes", 2, [](TrainOptions& o) { o.strategy = Strategy::kZero3, o.recompute = true; }},
        Case{"mics_4_by_2", 4, by("mics")}, Case{"one_server", 3, by("server")},
        Case{"two_servers", 5, [](TrainOptions& o) { o.strategy = Strategy::kServer, o.servers = 2; }},
        Case{"tensor_2", 2, mesh("ddp", 2, 1, Schedule::kGpipe)},
        Case{"tensor_4", 4, mesh("ddp", 4, 1, Schedule::kGpipe)},
        Case{"pipeline_2_gpipe", 2, mesh("ddp", 1, 2, Schedule::kGpipe)},
        Case{"pipeline_4_1f1b", 4, mesh("ddp", 1, 4, Schedule::kOneForwardOneBackward)},
        Case{"all_three", 8, mesh("ddp", 2, 2, Schedule::kOneForwardOneBackward)},
        Case{"all_three_zero1", 8, mesh("zero1", 2, 2, Schedule::kOneForwardOneBackward)},
        Case{"pipeline_zero3", 4, mesh("zero3", 1, 2, Schedule::kOneForwardOneBackward)},
        Case{"tensor_mics", 8, mesh("mics", 2, 1, Schedule::kGpipe)}),
    [](const auto& one) { return one.param.name; });

class Bits : public testing::TestWithParam<std::int32_t> {};

// The direct algorithm adds in the order of the ranks. One process can add in the same order.
TEST_P(Bits, OfDataParallelAreThoseOfOneProcessThatAddsInRankOrder) {
  TrainOptions options = small_gpt();
  options.clip = 1.0;
  options.ranks = GetParam();
  options.algorithm = "two_shot";
  const Training ranks = train_here(options);
  ASSERT_EQ(ranks.error, "");
  options.ranks = 1;
  options.as_ranks = GetParam();
  const Training alone = train_here(options);
  ASSERT_EQ(alone.error, "");
  EXPECT_EQ(ranks.losses, alone.losses);
  for (const auto& values : ranks.values) EXPECT_TRUE(values == alone.values[0]);
  EXPECT_FALSE(ranks.losses == one_process().losses)
      << "the losses are equal even without --as-ranks, so this test proves nothing";
}

INSTANTIATE_TEST_SUITE_P(Ranks, Bits, testing::Values(2, 3, 4));

class BitsOfTwoRuns : public testing::TestWithParam<Case> {};

TEST_P(BitsOfTwoRuns, AreTheSame) {
  TrainOptions options = small_gpt();
  options.ranks = GetParam().ranks;
  options.steps = 50;
  GetParam().with(options);
  const Training first = train_here(options);
  const Training second = train_here(options);
  ASSERT_EQ(first.error + second.error, "");
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_TRUE(first.values == second.values);
  options.seed = 2;
  EXPECT_NE(train_here(options).losses, first.losses) << "the seed has no effect";
}

INSTANTIATE_TEST_SUITE_P(Strategies, BitsOfTwoRuns,
                         testing::Values(Case{"ddp", 3, by("ddp")}, Case{"zero1", 3, by("zero1")},
                                         Case{"zero2", 3, by("zero2")}, Case{"zero3", 3, by("zero3")},
                                         Case{"mics", 4, by("mics")}, Case{"server", 3, by("server")},
                                         Case{"tensor", 2, mesh("ddp", 2, 1, Schedule::kGpipe)},
                                         Case{"gpipe", 3, mesh("ddp", 1, 3, Schedule::kGpipe)},
                                         Case{"pipeline", 3, mesh("ddp", 1, 3, Schedule::kOneForwardOneBackward)},
                                         Case{"all_three", 8, mesh("zero1", 2, 2, Schedule::kOneForwardOneBackward)}),
                         [](const auto& one) { return one.param.name; });

// An intentional mistake: one bucket is not summed over the ranks. This rank uses its own gradient as if it were the
// average.
struct OneBucketIsNotSynchronised final : Wrapped {
  using Wrapped::Wrapped;
  void end_backward(std::size_t layer, bool last) override {
    if (layer == 2 && last) own_ = shards().at(1).gradients.clone();
    Wrapped::end_backward(layer, last);
  }
  void finish() override {
    Wrapped::finish();
    shards().at(1).gradients.copy_(own_).mul_(2);
  }
  Tensor own_;
};

struct TheAverageIsMissing final : Wrapped {
  using Wrapped::Wrapped;
  void finish() override {
    Wrapped::finish();
    // the sum of both ranks' means instead of the mean of the batch
    for (Shard& shard : shards()) shard.gradients.mul_(2);
  }
};

struct AShardIsUpdatedTwice final : Wrapped {
  explicit AShardIsUpdatedTwice(std::unique_ptr<Replicas> inner) : Wrapped(std::move(inner)) {
    shards().push_back(shards().front());
  }
};

template <class Mistake>
double drift_with(Strategy strategy) {
  TrainOptions options = small_gpt();
  options.optimizer = OptimizerType::kSgd;
  options.optimizer_given = true;
  options.lr = 0.05;
  options.steps = 50;
  options.bucket_kb = 8;
  const Training alone = train_here(options);
  options.ranks = 2;
  options.strategy = strategy;
  const Training sound = train_here(options);
  EXPECT_LT(drift(sound.losses, alone.losses), kBound);
  const Training broken = train_here(
      options, {.wrap = [](std::unique_ptr<Replicas> inner) { return std::make_unique<Mistake>(std::move(inner)); }});
  EXPECT_EQ(alone.error + sound.error + broken.error, "");
  return drift(broken.losses, alone.losses);
}

TEST(PlantedMistakes, ABucketThatIsNotSynchronisedIsFound) {
  EXPECT_GT(drift_with<OneBucketIsNotSynchronised>(Strategy::kDdp), 10 * kBound);
}
TEST(PlantedMistakes, AMissingAverageIsFound) {
  EXPECT_GT(drift_with<TheAverageIsMissing>(Strategy::kDdp), 10 * kBound);
  EXPECT_GT(drift_with<TheAverageIsMissing>(Strategy::kZero3), 10 * kBound);
}
TEST(PlantedMistakes, AShardThatIsUpdatedTwiceIsFound) {
  EXPECT_GT(drift_with<AShardIsUpdatedTwice>(Strategy::kZero1), 10 * kBound);
  EXPECT_GT(drift_with<AShardIsUpdatedTwice>(Strategy::kZero3), 10 * kBound);
}

TEST(Equal, ForEveryModel) {
  for (const char* model : {"cnn", "resnet", "vit"}) {
    TrainOptions options = small_gpt();
    options.model = {.name = model};
    options.steps = 12;
    options.lr = 1e-3;
    const Training alone = train_here(options);
    options.ranks = 3;
    const Training ranks = train_here(options);
    options.strategy = Strategy::kZero3;
    options.ranks = 4;
    options.pipeline = 2;
    const Training stages = train_here(options);
    EXPECT_EQ(alone.error + ranks.error + stages.error, "") << model;
    EXPECT_LT(drift(ranks.losses, alone.losses), kBound) << model;
    EXPECT_LT(drift(stages.losses, alone.losses), kBound) << model;
    if (shared_by_most(options.model) == 1) continue;  // resnet has no layer that ranks can share
    options.strategy = Strategy::kDdp;
    options.ranks = 2;
    options.pipeline = 1;
    options.tensor = 2;
    const Training shared = train_here(options);
    EXPECT_EQ(shared.error, "") << model;
    EXPECT_LT(drift(shared.losses, alone.losses), kBound) << model;
  }
}

TEST(Models, HaveTheStatedParameters) {
  const std::pair<const char*, std::int64_t> stated[] = {
      {"cnn", 1'199'882}, {"resnet", 77'562}, {"resnet_bn", 77'562}, {"vit", 204'938}, {"gpt", 867'328}};
  for (const auto& [name, count] : stated) {
    std::int64_t found = 0;
    for (const auto& layer : make_layers({.name = name}, 0, layers_of({.name = name}), nullptr)) {
      for (const Parameter& parameter : layer->parts()) found += parameter.tensor.numel();
    }
    EXPECT_EQ(found, count) << name;
  }
}

}  // namespace
}  // namespace tutti::train

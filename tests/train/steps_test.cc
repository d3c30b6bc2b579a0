// Tests of single training steps: uneven shares, unused gradients, clipping, float16, early stop, and values that
// are not finite.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "ranks.h"

namespace tutti::train {
namespace {

using testing::HasSubstr;

TEST(Steps, BatchesNeedNotBeDivisible) {
  TrainOptions options = small_gpt();
  options.steps = 30;
  options.batch = 7;  // for 4 ranks; the last batch of an epoch has 2 of the 100 samples
  const Training alone = train_here(options);
  options.ranks = 4;
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero2, Strategy::kZero3}) {
    options.strategy = strategy;
    const Training ranks = train_here(options);
    ASSERT_EQ(ranks.error, "");
    EXPECT_LT(drift(ranks.losses, alone.losses), 5e-6) << name_of(strategy);
    EXPECT_EQ(ranks.reports[14].samples, 2);
  }
  options.strategy = Strategy::kZero3;
  options.accumulate = 1'000'000;  // more passes than samples
  EXPECT_LT(drift(train_here(options).losses, alone.losses), 5e-6);
  options.accumulate = 1;
  options.strategy = Strategy::kDdp;
  options.batch = 2;  // two of the four ranks have no samples
  options.ranks = 1;
  const Training few = train_here(options);
  options.ranks = 4;
  EXPECT_LT(drift(train_here(options).losses, few.losses), 5e-6);
}

// Clipping needs the norm of the whole gradient, but a rank may have only a part of the gradient.
TEST(Steps, TheNormOfTheGradientIsThatOfOneProcess) {
  TrainOptions options = small_gpt();
  options.steps = 20;
  options.clip = 0.5;
  const Training alone = train_here(options);
  EXPECT_GT(alone.reports[0].grad_norm, 0.5) << "no gradient is clipped, so this test would prove little";
  struct Mesh {
    Strategy strategy;
    std::int32_t ranks, tensor, pipeline;
  };
  for (const Mesh& mesh :
       {Mesh{Strategy::kDdp, 2, 1, 1}, Mesh{Strategy::kZero1, 3, 1, 1}, Mesh{Strategy::kZero3, 4, 2, 1},
        Mesh{Strategy::kMics, 4, 1, 1}, Mesh{Strategy::kDdp, 4, 2, 2}, Mesh{Strategy::kServer, 4, 1, 1}}) {
    options.strategy = mesh.strategy;
    options.ranks = mesh.ranks;
    options.tensor = mesh.tensor;
    options.pipeline = mesh.pipeline;
    options.group = 2;
    options.servers = 2;
    const Training ranks = train_here(options);
    ASSERT_EQ(ranks.error, "") << name_of(mesh.strategy);
    EXPECT_NEAR(ranks.reports[0].grad_norm, alone.reports[0].grad_norm, 1e-5) << name_of(mesh.strategy);
    EXPECT_LT(drift(ranks.losses, alone.losses), 5e-6) << name_of(mesh.strategy);
  }
}

// A layer with a parameter that does not affect its output.
class HalfUsed : public Layer {
 public:
  HalfUsed() {
    used_ = own("used", torch::ones({4}));
    own("unused", torch::ones({3}));
  }
  Tensor forward(Tensor input) override { return input * used_; }

 private:
  Tensor used_;
};

TEST(Steps, ParametersThatAreNotUsedHaveNoGradientAndHoldNobodyUp) {
  auto job = Communicator::create_all(2);
  ASSERT_TRUE(job.ok());
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      CommTime time;
      Comm ranks(*(*job)[static_cast<std::size_t>(rank)], time);
      Comm alone(time);
      const auto check = [&](const std::function<std::unique_ptr<Replicas>(const Layers&)>& make) {
        const Layers layers = {std::make_shared<HalfUsed>()};
        const auto replicas = make(layers);
        replicas->begin_step();
        Pass pass(layers, *replicas, {});
        pass.forward(torch::full({2, 4}, rank + 1.0));
        pass.backward(torch::ones({2, 4}), true);
        replicas->finish();
        for (const Shard& shard : replicas->shards()) {
          for (const ParameterSlice& slice : shard.slices) {
            const float expected = slice.name == "layer.0/used" ? 6 : 0;  // two rows, with the values 1 and 2
            EXPECT_EQ(shard.gradients.narrow(0, slice.at, slice.length).eq(expected).all().item<bool>(), true)
                << slice.name;
          }
        }
      };
      check([&](const Layers& layers) { return make_data_parallel(layers, ranks, {}); });
      check([&](const Layers& layers) { return make_sharded_optimizer(layers, ranks, {}); });
      check([&](const Layers& layers) { return make_sharded_gradients(layers, ranks, {}); });
      check([&](const Layers& layers) { return make_fully_sharded(layers, ranks, alone, {}); });
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// All ranks have the running statistics of the first rank that computes. A parameter server has them as well,
// because it tests the model and writes checkpoints.
TEST(Steps, BuffersAreTheSameOnAllRanks) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3, Strategy::kServer}) {
    TrainOptions options = small_gpt();
    options.model = {.name = "resnet_bn"};
    options.steps = 4;
    options.ranks = 3;
    options.strategy = strategy;
    std::vector<std::vector<float>> buffers(3);
    const auto take = [&](std::int32_t rank, Trainer& trainer) {
      for (const auto& layer : trainer.learner().layers()) {
        for (const Tensor& buffer : layer->buffers()) {
          if (!buffer.is_floating_point()) continue;
          const float* const data = buffer.data_ptr<float>();
          auto& all = buffers[static_cast<std::size_t>(rank)];
          all.insert(all.end(), data, data + buffer.numel());
        }
      }
    };
    const Training ranks = train_here(options, {.end = take});
    ASSERT_EQ(ranks.error, "") << name_of(strategy);
    ASSERT_FALSE(buffers[0].empty());
    EXPECT_TRUE(buffers[1] == buffers[0] && buffers[2] == buffers[0]) << name_of(strategy);
    EXPECT_NE(buffers[0][0], 0) << name_of(strategy) << ": the statistics were not updated";
  }
}

// Every rank initializes its model with other values. All must continue with the values of rank 0, and keep none of
// their own.
TEST(Steps, AllRanksStartWithTheValuesOfRankZero) {
  TrainOptions options = small_gpt();
  options.steps = 20;
  const Training alone = train_here(options);
  options.ranks = 4;
  options.group = 2;
  const auto other_seeds = [](std::int32_t rank, TrainOptions& of_rank) {
    of_rank.model.seed += static_cast<std::uint64_t>(rank);
  };
  for (const Strategy strategy :
       {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kZero3, Strategy::kMics, Strategy::kServer}) {
    options.strategy = strategy;
    const Training ranks = train_here(options, {.begin = other_seeds});
    ASSERT_EQ(ranks.error, "") << name_of(strategy);
    EXPECT_LT(drift(ranks.losses, alone.losses), 5e-6) << name_of(strategy);
    for (std::size_t rank = 1; rank < 4 && strategy == Strategy::kDdp; ++rank) {
      EXPECT_TRUE(ranks.values[rank] == ranks.values[0]);
    }
  }
  options.strategy = Strategy::kDdp;
  options.ranks = 1;
  const Training other = train_here(options, {.begin = [](std::int32_t, TrainOptions& o) { ++o.model.seed; }});
  ASSERT_EQ(other.losses.size(), alone.losses.size());
  EXPECT_GT(drift(other.losses, alone.losses), 5e-5) << "the seed has no effect";
}

TEST(Steps, ALossThatIsNotFiniteStopsAllRanksWithTheValuesOfBefore) {
  TrainOptions options = small_gpt();
  options.optimizer = OptimizerType::kSgd;
  options.optimizer_given = true;
  options.lr = 1e30;
  options.decay = Decay::kNone;
  options.ranks = 2;
  const Training ranks = train_here(options);
  EXPECT_THAT(ranks.errors[0], HasSubstr("is not finite"));
  EXPECT_THAT(ranks.errors[0], HasSubstr("Lower --lr"));
  EXPECT_EQ(ranks.errors[0], ranks.errors[1]);
}

// On ranks that have shards, one value of the gradient overflows in steps 5 and 6 only.
struct Overflows final : Wrapped {
  using Wrapped::Wrapped;
  void begin_step() override {
    Wrapped::begin_step();
    ++step_;
  }
  void finish() override {
    Wrapped::finish();
    if ((step_ == 5 || step_ == 6) && !shards().empty()) shards()[0].gradients[0] = INFINITY;
  }
  int step_ = 0;
};

TEST(Float16, AnOverflowSkipsTheStepOnAllRanksAndHalvesTheScale) {
  TrainOptions options = small_gpt();
  options.precision = Precision::kFloat16;
  options.steps = 60;
  options.ranks = 2;
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero2, Strategy::kZero3, Strategy::kServer}) {
    options.strategy = strategy;
    const Training ranks = train_here(options, {.wrap = [](std::unique_ptr<Replicas> inner) {
                                        return std::make_unique<Overflows>(std::move(inner));
                                      }});
    ASSERT_EQ(ranks.error, "") << name_of(strategy);
    for (std::size_t step = 0; step < 60; ++step) {
      EXPECT_EQ(ranks.reports[step].skipped, step == 4 || step == 5) << name_of(strategy) << " step " << step + 1;
    }
    EXPECT_EQ(ranks.reports[3].scale, 65536);
    EXPECT_EQ(ranks.reports[7].scale, 65536 / 4);
    EXPECT_LT(ranks.losses.back(), ranks.losses.front());
  }
}

struct GradientsAreTwiceTooLong final : Wrapped {
  using Wrapped::Wrapped;
  void finish() override {
    Wrapped::finish();
    for (Shard& shard : shards()) shard.gradients.mul_(2);
  }
};

// Uses SGD, because the steps of AdamW do not depend on the length of the gradient.
TEST(Float16, StepsAreThoseOfGradientsWithoutTheScale) {
  TrainOptions options = small_gpt();
  options.optimizer = OptimizerType::kSgd;
  options.optimizer_given = true;
  options.lr = 0.05;
  options.steps = 60;
  const Training exact = train_here(options);
  options.precision = Precision::kFloat16;
  options.ranks = 2;
  const Training rounded = train_here(options);
  const Training wrong = train_here(options, {.wrap = [](std::unique_ptr<Replicas> inner) {
                                      return std::make_unique<GradientsAreTwiceTooLong>(std::move(inner));
                                    }});
  ASSERT_EQ(exact.error + rounded.error + wrong.error, "");
  EXPECT_LT(drift(rounded.losses, exact.losses), 0.005);
  EXPECT_GT(drift(wrong.losses, exact.losses), 0.05) << "an error by a factor of two must be visible";
}

TEST(Float16, TheScaleGrowsAfterGoodSteps) {
  LossScaler scaler;
  for (int i = 0; i < 199; ++i) scaler.step_succeeded();
  EXPECT_EQ(scaler.scale(), 65536);
  scaler.step_succeeded();
  EXPECT_EQ(scaler.scale(), 131072);
  scaler.overflowed();
  EXPECT_EQ(scaler.scale(), 65536);
  for (int i = 0; i < 60 && !scaler.scale_too_small(); ++i) scaler.overflowed();
  EXPECT_TRUE(scaler.scale_too_small());
}

// With a mantissa of at most 11 bits, the curve stays near that of float32, but is not equal to it.
TEST(Precision, ShorterTypesStayNearFloat32) {
  TrainOptions options = small_gpt();
  options.steps = 60;
  const Training exact = train_here(options);
  for (const Precision precision : {Precision::kBfloat16, Precision::kFloat16}) {
    options.precision = precision;
    options.ranks = 2;
    const Training rounded = train_here(options);
    ASSERT_EQ(rounded.error, "");
    EXPECT_LT(drift(rounded.losses, exact.losses), 2e-2) << name_of(precision);
    EXPECT_GT(drift(rounded.losses, exact.losses), 1e-7) << name_of(precision);
  }
}

TEST(EarlyEnd, IsAgreedOnByAllRanks) {
  TrainOptions options = small_gpt();
  options.lr = 0;
  options.steps = 0;
  options.epochs = 50;
  options.test_every = 1;
  options.patience = 2;
  options.ranks = 3;
  const Training ranks = train_here(options);
  ASSERT_EQ(ranks.error, "");
  EXPECT_EQ(ranks.result.steps, 3 * 9);  // the first test and two tests without improvement, with 9 batches each
}

TEST(EarlyEnd, ByTheClockOfOneRankEndsAll) {
  TrainOptions options = small_gpt();
  options.steps = 1'000'000;
  options.minutes = 0.01;
  options.ranks = 2;
  const Training ranks = train_here(options);
  ASSERT_EQ(ranks.error, "");
  EXPECT_LT(ranks.result.steps, 1'000'000);
  EXPECT_TRUE(ranks.reports.back().stop);
}

TEST(Balance, GivesASlowRankLess) {
  TrainOptions options = small_gpt();
  options.batch = 24;
  options.steps = 40;
  options.ranks = 2;
  options.balance = true;
  options.slow_rank = 1;
  options.slow_factor = 6;
  std::vector<double> weights;
  const Training ranks = train_here(options, {.end = [&](std::int32_t rank, Trainer& trainer) {
                                      if (rank == 0) weights = trainer.learner().weights();
                                    }});
  ASSERT_EQ(ranks.error, "");
  EXPECT_LT(weights[1], 0.7 * weights[0]);
}

TEST(Memory, OfTheStateShrinksAsShardsDo) {
  TrainOptions options = small_gpt();
  options.steps = 2;
  options.ranks = 4;
  const std::int64_t parameters = 2 * 3280 + (256 + 64) * 16 + 32 + 256 * 16 + 256;
  const auto bytes_of = [&](Strategy strategy) {
    options.strategy = strategy;
    return train_here(options).result.state_bytes;
  };
  EXPECT_EQ(bytes_of(Strategy::kDdp), 16 * parameters);
  EXPECT_NEAR(double(bytes_of(Strategy::kZero1)), 8.0 * parameters + 8.0 * parameters / 4, 400);
  EXPECT_LT(bytes_of(Strategy::kZero3), bytes_of(Strategy::kZero1));
}

TEST(Options, ThatCannotBeAreRefusedBeforeAnythingStarts) {
  const auto refused = [](const std::function<void(TrainOptions&)>& with) {
    TrainOptions options = small_gpt();
    options.ranks = 3;
    with(options);
    return train_here(options).error;
  };
  EXPECT_THAT(refused([](TrainOptions& o) { o.tensor = 2; }), HasSubstr("3 ranks cannot be laid out"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.tensor = 3; }), HasSubstr("can be shared by 4 ranks at most"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.model.name = "gtp"; }), HasSubstr("\"gtp\" is not one of cnn, "));
  EXPECT_THAT(refused([](TrainOptions& o) { o.strategy = Strategy::kMics, o.group = 2; }), HasSubstr("--group"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.elastic = true, o.strategy = Strategy::kZero3; }),
              HasSubstr("--elastic"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.algorithm = "rings"; }),
              HasSubstr("--algorithm: \"rings\" is not one of"));
  EXPECT_THAT(refused([](TrainOptions& o) { o.device = "cuda"; }), HasSubstr("without CUDA"));
}

}  // namespace
}  // namespace tutti::train

// Compares the training of one process with a reference, which shares only the layers and the order of samples with
// the training harness. The reference uses one autograd graph of the whole model, the mean cross entropy, and
// libtorch's own optimizers. Other tests compare several ranks with one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ranks.h"

namespace tutti::train {
namespace {

constexpr double kBound = 5e-6;  // largest relative difference of a step's loss

TrainOptions options_of(const char* model, OptimizerType optimizer) {
  TrainOptions options = small_gpt();
  if (options.model.name != model) options.model = {.name = model};
  options.optimizer = optimizer;
  options.optimizer_given = true;
  options.lr = optimizer == OptimizerType::kSgd ? 0.05 : 1e-3;
  options.steps = 50;
  return options;
}

struct Betas {
  double first = 0.9;
  double second = 0.999;
};

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const TrainOptions& options, std::vector<Tensor> parameters,
                                                      const Betas& betas) {
  if (options.optimizer == OptimizerType::kSgd) {
    return std::make_unique<torch::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(options.lr).momentum(options.momentum).weight_decay(0));
  }
  return std::make_unique<torch::optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(options.lr)
                                                                          .betas({betas.first, betas.second})
                                                                          .eps(1e-8)
                                                                          .weight_decay(options.weight_decay));
}

// Returns the losses of the reference. The learning rate falls linearly to 0, which is the default of the harness.
std::vector<double> reference(TrainOptions options, const Betas& betas = {}) {
  complete(options);
  options.model.seed = options.seed;
  const Data data = load_data(
      {.name = options.data, .text = reads_text(options.model.name), .samples = options.samples, .seed = options.seed});
  Sampler sampler(data.train.size(), options.batch, options.seed);
  const Layers layers = make_layers(options.model, 0, layers_of(options.model), nullptr);
  std::vector<Tensor> parameters;
  for (const auto& layer : layers) {
    for (const Parameter& parameter : layer->parts()) parameters.push_back(parameter.tensor);
  }
  const auto optimizer = optimizer_of(options, parameters, betas);
  std::vector<double> losses;
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const double lr = options.lr * (1 - static_cast<double>(step) / static_cast<double>(options.steps));
    for (auto& group : optimizer->param_groups()) group.options().set_lr(lr);
    const Tensor indices = torch::tensor(sampler.batch(step), torch::kInt64);
    Tensor output = data.train.inputs.index_select(0, indices);
    for (const auto& layer : layers) output = layer->forward(output);
    const Tensor loss = torch::nn::functional::cross_entropy(output.reshape({-1, output.size(-1)}),
                                                             data.train.targets.index_select(0, indices).reshape({-1}));
    optimizer->zero_grad();
    loss.backward();
    if (options.clip > 0) torch::nn::utils::clip_grad_norm_(parameters, options.clip);
    optimizer->step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

struct Case {
  const char* name;
  const char* model;
  OptimizerType optimizer;
  std::function<void(TrainOptions&)> with;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class OneProcess : public testing::TestWithParam<Case> {};

TEST_P(OneProcess, HasTheLossesOfOneGraphAndLibtorchsOptimizer) {
  TrainOptions options = options_of(GetParam().model, GetParam().optimizer);
  GetParam().with(options);
  const Training training = train_here(options);
  ASSERT_EQ(training.error, "");
  EXPECT_LT(training.losses.back(), 0.95 * training.losses.front())
      << "the model has learned nothing, so this test would prove little";
  EXPECT_LT(drift(training.losses, reference(options)), kBound);
}

const auto kAsItIs = [](TrainOptions&) {};

INSTANTIATE_TEST_SUITE_P(
    Models, OneProcess,
    testing::Values(Case{"gpt_adamw", "gpt", OptimizerType::kAdamW, kAsItIs},
                    Case{"gpt_sgd", "gpt", OptimizerType::kSgd, kAsItIs},
                    Case{"gpt_adamw_decays", "gpt", OptimizerType::kAdamW,
                         [](TrainOptions& o) { o.weight_decay = 0.1; }},
                    Case{"gpt_sgd_clips", "gpt", OptimizerType::kSgd, [](TrainOptions& o) { o.clip = 0.5; }},
                    Case{"gpt_accumulates_and_recomputes", "gpt", OptimizerType::kSgd,
                         [](TrainOptions& o) { o.accumulate = 3, o.recompute = true; }},
                    Case{"cnn_sgd", "cnn", OptimizerType::kSgd, [](TrainOptions& o) { o.lr = 0.01; }},
                    Case{"resnet_sgd", "resnet", OptimizerType::kSgd, kAsItIs},
                    Case{"vit_adamw", "vit", OptimizerType::kAdamW, kAsItIs}),
    [](const auto& one) { return one.param.name; });

// ---- The bound detects mistakes

TEST(AgainstTheReference, AnOptimizerWithOtherBetasIsFound) {
  const TrainOptions options = options_of("gpt", OptimizerType::kAdamW);
  const Training training = train_here(options);
  ASSERT_EQ(training.error, "");
  EXPECT_GT(drift(training.losses, reference(options, {.first = 0.89})), 10 * kBound);
  EXPECT_GT(drift(training.losses, reference(options, {.second = 0.998})), 10 * kBound);
}

// An intentional mistake: the gradient of one layer counts twice.
struct ALayerCountsTwice final : Wrapped {
  using Wrapped::Wrapped;
  void finish() override {
    Wrapped::finish();
    shards().back().gradients.mul_(2);
  }
};

TEST(AgainstTheReference, AGradientThatIsNotThatOfTheLossIsFound) {
  TrainOptions options = options_of("gpt", OptimizerType::kSgd);
  options.bucket_kb = 8;
  const Training broken = train_here(options, {.wrap = [](std::unique_ptr<Replicas> inner) {
                                       return std::make_unique<ALayerCountsTwice>(std::move(inner));
                                     }});
  ASSERT_EQ(broken.error, "");
  EXPECT_GT(drift(broken.losses, reference(options)), 10 * kBound);
}

}  // namespace
}  // namespace tutti::train

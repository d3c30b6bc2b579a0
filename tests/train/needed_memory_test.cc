// Tests of the estimate of the memory that a training needs. If the memory is too small, the training must be
// refused.
#include "train/needed_memory.h"

#include <gtest/gtest.h>

#include <string>

#include "train/models.h"

namespace tutti::train {
namespace {

TEST(NeededMemory, CountsTheParametersOfEveryModel) {
  for (const std::string& name : model_names()) {
    for (const std::int64_t width : {0, 32}) {
      ModelConfig model{.name = name, .seed = 1, .width = width, .blocks = width == 0 ? 0 : 3};
      complete(model);
      std::int64_t made = 0;
      for (const auto& layer : make_layers(model, 0, layers_of(model), nullptr)) {
        for (const Parameter& parameter : layer->parts()) made += parameter.tensor.numel();
      }
      EXPECT_EQ(parameters_of(model), made) << name << ", width " << width;
    }
  }
}

TEST(NeededMemory, FallsWhenRanksShareTheState) {
  TrainOptions options;
  options.model = {.name = "gpt", .seed = 1, .width = 1024, .blocks = 8};
  options.ranks = 8;
  options.optimizer = OptimizerType::kAdamW;
  options.batch = 8;
  const auto state = [&](Strategy strategy) {
    options.strategy = strategy;
    return needed_bytes(options);
  };
  EXPECT_GT(state(Strategy::kDdp), state(Strategy::kZero1));
  EXPECT_GT(state(Strategy::kZero1), state(Strategy::kZero2));
  EXPECT_GT(state(Strategy::kZero2), state(Strategy::kZero3));
  const auto parameters = static_cast<std::uint64_t>(parameters_of(options.model));
  EXPECT_GT(state(Strategy::kDdp), 8 * 16 * parameters) << "weights, gradients and two AdamW values, on 8 ranks";
}

// SGD allocates its moment also without momentum.
TEST(NeededMemory, DoesNotDependOnTheMomentum) {
  TrainOptions options;
  options.model = {.name = "gpt", .seed = 1, .width = 1024, .blocks = 8};
  options.optimizer = OptimizerType::kSgd;
  const std::uint64_t with_momentum = needed_bytes(options);
  options.momentum = 0;
  EXPECT_EQ(needed_bytes(options), with_momentum);
}

TEST(NeededMemory, AModelThatDoesNotFitIsRefusedWithBothNumbers) {
  TrainOptions options;
  options.model = {.name = "gpt", .seed = 1, .width = 1024, .blocks = 8};
  options.batch = 1;
  options.memory_bytes = needed_bytes(options);
  check_memory(options);
  options.memory_bytes = std::uint64_t{3} << 28;
  try {
    check_memory(options);
    FAIL() << "the model needs more memory, so it must be refused";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.error().code, ErrorCode::kSystem);
    const std::string& message = failure.error().message;
    EXPECT_NE(message.find("needs about 1.2 GiB of memory on 1 ranks, and 0.8 GiB are available"), std::string::npos)
        << message;
  }
}

}  // namespace
}  // namespace tutti::train

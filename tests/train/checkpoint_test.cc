// Tests of trainings that resume from a checkpoint: with another number of ranks, with another strategy, and after
// damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "ranks.h"

namespace tutti::train {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class Checkpoint : public testing::Test {
 protected:
  Checkpoint() : folder(fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(folder);
  }
  ~Checkpoint() override { fs::remove_all(folder); }

  TrainOptions options(std::int64_t steps) const {
    TrainOptions options = small_gpt();
    options.steps = steps;
    options.decay = Decay::kNone;
    options.clip = 1;
    options.checkpoint = folder;
    options.checkpoint_every = 5;
    return options;
  }
  // Trains 20 steps. Of the checkpoints at steps 5, 10, 15 and 20, the two newest exist afterwards.
  void train_first() {
    TrainOptions how = options(20);
    how.ranks = 2;
    ASSERT_EQ(train_here(how).error, "");
    ASSERT_TRUE(fs::exists(folder / "step-00000015" / "manifest.json"));
    ASSERT_TRUE(fs::exists(folder / "step-00000020" / "manifest.json"));
    ASSERT_FALSE(fs::exists(folder / "step-00000010"));
  }
  static void damage(const fs::path& file) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(-5, std::ios::end);
    const char byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(-5, std::ios::end);
    stream.put(byte);
  }
  Training go_on(std::int64_t steps, std::int32_t ranks = 1) {
    TrainOptions how = options(steps);
    how.resume = true;
    how.ranks = ranks;
    return train_here(how);
  }
  fs::path folder;
};

struct ResumeSetting {
  Strategy strategy;
  std::int32_t ranks, tensor, pipeline;
  void apply_to(TrainOptions& options) const {
    options.strategy = strategy;
    options.ranks = ranks;
    options.tensor = tensor;
    options.pipeline = pipeline;
    options.group = 2;
  }
};

// Each setting resumes where the previous one has stopped. Together they must give the loss curve of one process
// that never stopped.
TEST_F(Checkpoint, IsGoneOnWithByAnyStrategyOnAnyRanks) {
  const ResumeSetting settings[] = {{Strategy::kDdp, 2, 1, 1},   {Strategy::kZero3, 3, 1, 1},
                                    {Strategy::kDdp, 4, 2, 2},   {Strategy::kZero1, 4, 2, 1},
                                    {Strategy::kMics, 4, 1, 1},  {Strategy::kServer, 3, 1, 1},
                                    {Strategy::kZero2, 4, 1, 2}, {Strategy::kDdp, 1, 1, 1}};
  TrainOptions whole = options(80);
  whole.checkpoint.clear();
  const Training alone = train_here(whole);
  std::vector<double> losses;
  for (std::size_t i = 0; i < std::size(settings); ++i) {
    TrainOptions how = options(10 * (static_cast<std::int64_t>(i) + 1));
    how.resume = i > 0;
    settings[i].apply_to(how);
    const Training part = train_here(how);
    ASSERT_EQ(part.error, "") << i;
    ASSERT_EQ(part.losses.size(), 10U) << i;
    losses.insert(losses.end(), part.losses.begin(), part.losses.end());
  }
  EXPECT_LT(drift(losses, alone.losses), 5e-6);
}

TEST_F(Checkpoint, GoesOnToTheBit) {
  TrainOptions whole = options(20);
  whole.ranks = 2;
  whole.checkpoint.clear();
  const Training straight = train_here(whole);
  train_first();
  fs::remove_all(folder / "step-00000020");
  const Training rest = go_on(20, 2);
  ASSERT_EQ(rest.error, "");
  EXPECT_EQ(rest.losses, std::vector<double>(straight.losses.begin() + 15, straight.losses.end()));
  EXPECT_TRUE(rest.values == straight.values);
}

TEST_F(Checkpoint, ATornOneIsPassedOverAndTheOneBeforeServes) {
  train_first();
  damage(folder / "step-00000020" / "rank-0.part");
  const Training rest = go_on(20);
  ASSERT_EQ(rest.error, "");
  EXPECT_EQ(rest.losses.size(), 5U);
}

TEST_F(Checkpoint, ThatIsCutShortOrLacksAFileIsTorn) {
  train_first();
  fs::resize_file(folder / "step-00000020" / "rank-0.part", 100);
  fs::remove(folder / "step-00000015" / "rank-1.part");
  EXPECT_THAT(go_on(30).error, HasSubstr("there is no complete checkpoint in"));
}

TEST_F(Checkpoint, AManifestThatIsNoneIsTorn) {
  train_first();
  const fs::path other = folder / "step-00000015" / "manifest.json";
  std::string text;
  std::getline(std::ifstream(other), text, '\0');
  const std::size_t at = text.find("\"step\": 15");
  ASSERT_NE(at, std::string::npos);
  std::ofstream(folder / "step-00000020" / "manifest.json") << text.replace(at, 10, "\"step\": 14");
  EXPECT_EQ(go_on(20).losses.size(), 5U);
  fs::create_directory(folder / "step-00000025");
  std::ofstream(folder / "step-00000020" / "manifest.json") << "{\"files\": 7";
  EXPECT_EQ(go_on(20).losses.size(), 5U);
}

TEST_F(Checkpoint, WhatWasHalfWrittenDoesNotCount) {
  train_first();
  fs::rename(folder / "step-00000020", folder / "step-00000025.partial");
  EXPECT_EQ(go_on(20).losses.size(), 5U);
  EXPECT_FALSE(fs::exists(folder / "step-00000025.partial"))
      << "a partial checkpoint must be removed, because it is as large as a whole one";
}

TEST_F(Checkpoint, OfAnotherModelOrOptimizerIsRefusedByAllRanks) {
  train_first();
  TrainOptions how = options(30);
  how.resume = true;
  how.ranks = 2;
  how.model.width = 32;
  const Training other = train_here(how);
  EXPECT_THAT(other.errors[0], HasSubstr("gpt (width 16, blocks 2), but this training has gpt (width 32, blocks 2)"));
  EXPECT_THAT(other.errors[1], HasSubstr("width 32"));
  how.model.width = 16;
  how.optimizer = OptimizerType::kSgd;
  how.optimizer_given = true;
  EXPECT_THAT(train_here(how).errors[1], HasSubstr("optimizer adamw"));
  how.checkpoint = folder / "none";
  EXPECT_THAT(train_here(how).error, HasSubstr("there is no complete checkpoint"));
}

TEST_F(Checkpoint, ThatCannotBeWrittenIsToldByAllRanksAndNamesTheRank) {
  std::ofstream(folder.string()) << "a file in place of the folder";
  TrainOptions how = options(20);
  how.ranks = 2;
  const Training training = train_here(how);
  EXPECT_THAT(training.errors[0], HasSubstr("rank 0: "));
  EXPECT_EQ(training.errors[0], training.errors[1]);
}

TEST_F(Checkpoint, OfAnotherTrainingIsInTheWayAndStays) {
  train_first();
  TrainOptions how = options(4);
  how.ranks = 2;
  const Training another = train_here(how);
  EXPECT_THAT(another.errors[1], HasSubstr("step-00000020 exists already: resume it with --resume"));
  EXPECT_TRUE(fs::exists(folder / "step-00000015" / "manifest.json"));
}

// The last of them reads other samples of the same number.
TEST_F(Checkpoint, OfOtherBatchesIsRefused) {
  train_first();
  for (const auto& change : std::vector<std::function<void(TrainOptions&)>>{
           [](TrainOptions& o) { o.batch = 8; }, [](TrainOptions& o) { o.seed = 9; },
           [](TrainOptions& o) { o.samples = 50; }, [](TrainOptions& o) { o.data = "text"; }}) {
    TrainOptions how = options(30);
    how.resume = true;
    change(how);
    EXPECT_THAT(train_here(how).error, HasSubstr("batches 12 of 100 samples by seed 1"));
  }
}

TEST_F(Checkpoint, OnlyCheckpointsAreRemoved) {
  for (const char* name : {"step-notes", "step-zzzzzzzz", "steps"}) fs::create_directories(folder / name);
  train_first();
  for (const char* name : {"step-notes", "step-zzzzzzzz", "steps"}) EXPECT_TRUE(fs::exists(folder / name)) << name;
}

TEST_F(Checkpoint, TornOnesDoNotCountAmongTheLastTwo) {
  train_first();
  damage(folder / "step-00000020" / "rank-0.part");
  TrainOptions how = options(18);
  how.resume = true;
  how.checkpoint_every = 1;
  ASSERT_EQ(train_here(how).error, "");
  EXPECT_TRUE(fs::exists(folder / "step-00000017" / "manifest.json"));
  EXPECT_TRUE(fs::exists(folder / "step-00000018" / "manifest.json"));
  EXPECT_FALSE(fs::exists(folder / "step-00000020"));
}

TEST_F(Checkpoint, ATrainingThatIsDoneSaysSo) {
  train_first();
  const Training again = go_on(20);
  EXPECT_EQ(again.error, "");
  EXPECT_TRUE(again.losses.empty());
  EXPECT_TRUE(std::isnan(again.result.loss));
}

TEST_F(Checkpoint, ValuesThatAreNotFiniteAreNotSaved) {
  TrainOptions how = options(2);
  how.checkpoint_every = 1;
  how.ranks = 2;
  struct Breaks final : Wrapped {
    using Wrapped::Wrapped;
    void publish() override {
      shards().back().values[0] = INFINITY;
      Wrapped::publish();
    }
  };
  const Training broken = train_here(
      how, {.wrap = [](std::unique_ptr<Replicas> inner) { return std::make_unique<Breaks>(std::move(inner)); }});
  EXPECT_THAT(broken.errors[0], HasSubstr("a parameter is not finite"));
  EXPECT_FALSE(fs::exists(folder / "step-00000001"));
}

TEST_F(Checkpoint, HasTheBuffers) {
  TrainOptions how = options(4);
  how.model = {.name = "resnet_bn"};
  how.ranks = 2;
  how.lr = 1e-3;
  std::vector<float> before;
  std::vector<float> after;
  const auto take = [](std::vector<float>& all) {
    return [&all](std::int32_t rank, Trainer& trainer) {
      if (rank != 0) return;
      for (const auto& layer : trainer.learner().layers()) {
        for (const Tensor& buffer : layer->buffers()) {
          const Tensor values = buffer.to(torch::kFloat32).reshape({-1});
          all.insert(all.end(), values.data_ptr<float>(), values.data_ptr<float>() + values.numel());
        }
      }
    };
  };
  ASSERT_EQ(train_here(how, {.end = take(before)}).error, "");
  how.resume = true;
  how.ranks = 1;
  ASSERT_EQ(train_here(how, {.end = take(after)}).error, "");  // no step is left to train
  EXPECT_FALSE(before.empty());
  EXPECT_TRUE(before == after);
}

}  // namespace
}  // namespace tutti::train

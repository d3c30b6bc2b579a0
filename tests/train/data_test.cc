// Tests of data sets, of the order of samples, and of the ranks' shares of a batch.
#include "train/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

namespace tutti::train {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

std::string failure(const DataConfig& config) {
  try {
    load_data(config);
  } catch (const Failure& failed) {
    return failed.error().message;
  }
  return "no failure";
}

void write_idx(const fs::path& path, std::vector<std::uint8_t> header, std::size_t bytes) {
  header.resize(header.size() + bytes, 7);
  gzFile file = ::gzopen(path.c_str(), "wb");
  ::gzwrite(file, header.data(), static_cast<unsigned>(header.size()));
  ::gzclose(file);
}

class Idx : public testing::Test {
 protected:
  Idx() : folder(fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::create_directories(folder);
    for (const char* prefix : {"train", "t10k"}) {
      write_idx(folder / (std::string(prefix) + "-images-idx3-ubyte.gz"),
                {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28}, 2 * 784);
      write_idx(folder / (std::string(prefix) + "-labels-idx1-ubyte.gz"), {0, 0, 8, 1, 0, 0, 0, 2}, 2);
    }
  }
  ~Idx() override { fs::remove_all(folder); }
  std::string fault() const { return failure({.name = "fashion-mnist", .folder = folder}); }
  fs::path folder;
};

TEST_F(Idx, FilesAreRead) {
  const Data data = load_data({.name = "fashion-mnist", .folder = folder});
  EXPECT_EQ(data.train.size(), 2);
  EXPECT_EQ(data.test.targets[1].item<int>(), 7);
  EXPECT_NEAR(data.train.inputs[0][0][3][3].item<double>(), (7 / 255.0 - 0.2860) / 0.3530, 1e-6);
}

TEST_F(Idx, WhatIsNoneIsRefused) {
  write_idx(folder / "train-images-idx3-ubyte.gz", {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28}, 2 * 784 - 1);
  EXPECT_THAT(fault(), HasSubstr("does not contain as many values as its header states"));
  write_idx(folder / "train-images-idx3-ubyte.gz", {0, 0, 8, 3, 255, 255, 255, 255, 0, 0, 0, 28, 0, 0, 0, 28}, 784);
  EXPECT_THAT(fault(), HasSubstr("does not contain as many values as its header states"));
  write_idx(folder / "train-images-idx3-ubyte.gz", {0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 29, 0, 0, 0, 28}, 29 * 28);
  EXPECT_THAT(fault(), HasSubstr("28 x 28"));
  write_idx(folder / "train-images-idx3-ubyte.gz", {1, 2, 3}, 0);
  EXPECT_THAT(fault(), HasSubstr("is not an IDX file"));
  std::ofstream(folder / "train-images-idx3-ubyte.gz").write("\x1f\x8b\x08\x00torn", 8);
  EXPECT_THAT(fault(), HasSubstr("damaged or cut short"));
  fs::remove(folder / "train-images-idx3-ubyte.gz");
  EXPECT_THAT(fault(), HasSubstr("apt-get install dataset-fashion-mnist"));
}

TEST_F(Idx, ClassesMustFit) {
  write_idx(folder / "train-labels-idx1-ubyte.gz", {0, 0, 8, 1, 0, 0, 0, 1}, 1);
  EXPECT_THAT(fault(), HasSubstr("different numbers of images and classes"));
  write_idx(folder / "train-labels-idx1-ubyte.gz", {0, 0, 8, 1, 0, 0, 0, 2, 11}, 1);
  EXPECT_THAT(fault(), HasSubstr("beyond 9"));
}

TEST(Data, TheKindMustFitTheModel) {
  EXPECT_THAT(failure({.name = "text"}), HasSubstr("classifies images"));
  EXPECT_THAT(failure({.name = "fashion-mnist", .text = true}), HasSubstr("reads text"));
  EXPECT_THAT(failure({.name = "imagenet"}), HasSubstr("\"imagenet\" is not one of fashion-mnist, "));
  EXPECT_THAT(failure({.name = "text", .folder = testing::TempDir() + "/none", .text = true}),
              HasSubstr("holds no texts"));
}

TEST(Data, TargetsOfTextAreTheNextBytes) {
  const Data data = load_data({.name = "generated", .text = true, .samples = 50});
  EXPECT_EQ(data.train.size(), 50);
  EXPECT_TRUE(data.train.inputs.narrow(1, 1, 63).equal(data.train.targets.narrow(1, 0, 63)));
  EXPECT_GT(data.test.size(), 0);
}

TEST(Data, GeneratedDataDependsOnTheSeedOnly) {
  const auto images = [](std::uint64_t seed) {
    return load_data({.name = "generated", .samples = 20, .seed = seed}).train.inputs;
  };
  EXPECT_TRUE(images(1).equal(images(1)));
  EXPECT_FALSE(images(1).equal(images(2)));
}

TEST(Sampler, EachEpochHasEverySampleOnceInAnotherOrder) {
  Sampler sampler(103, 10, 5);
  EXPECT_EQ(sampler.batches(), 11);
  std::vector<std::vector<std::int64_t>> epochs(2);
  for (std::int64_t step = 0; step < 22; ++step) {
    const auto batch = sampler.batch(step);
    EXPECT_EQ(batch.size(), step % 11 == 10 ? 3U : 10U);
    auto& epoch = epochs[static_cast<std::size_t>(sampler.epoch_of(step))];
    epoch.insert(epoch.end(), batch.begin(), batch.end());
  }
  EXPECT_NE(epochs[0], epochs[1]);
  for (const auto& epoch : epochs) EXPECT_EQ(std::set<std::int64_t>(epoch.begin(), epoch.end()).size(), 103U);
  EXPECT_EQ(Sampler(103, 10, 5).batch(15), sampler.batch(15)) << "batches can be requested in any order";
  EXPECT_NE(Sampler(103, 10, 6).batch(15), sampler.batch(15));
}

TEST(Shares, CoverTheBatchOnceWhateverTheWeights) {
  for (const std::vector<double>& weights : {std::vector<double>{1, 1, 1}, {0, 1, 1}, {0.05, 3, 1, 1}, {1}, {1, 0}}) {
    for (std::int64_t batch = 1; batch < 40; ++batch) {
      std::int64_t next = 0;
      for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(weights.size()); ++rank) {
        const IndexRange part = share_of(batch, weights, rank);
        EXPECT_EQ(part.begin, next);
        EXPECT_GE(part.length, 0);
        EXPECT_TRUE(weights[static_cast<std::size_t>(rank)] != 0 || part.length == 0);
        next += part.length;
      }
      EXPECT_EQ(next, batch);
    }
  }
  EXPECT_EQ(share_of(30, {1, 2}, 1).length, 20);
}

}  // namespace
}  // namespace tutti::train

// What is trained on, and who gets which samples.
//
//   fashion-mnist  60,000 + 10,000 images of 28 x 28 and their classes, from Debian's package dataset-fashion-mnist
//   text           the licence texts in /usr/share/common-licenses (package base-files), as bytes; every tenth window
//   of
//                  64 bytes is a test
//   generated      classes of noisy patterns (images), or a noisy repetitive language (text), from a seed: for
//                  benchmarks and tests, nothing to install
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/layer.h"

namespace tutti::train {

// Rows of inputs and targets. Values.
struct Samples {
  Tensor inputs;   // images: float32 [n, 1, 28, 28], mean 0, deviation 1; text: int64 [n, 64]
  Tensor targets;  // images: int64 [n]; text: int64 [n, 64], the next bytes
  std::int64_t size() const { return inputs.size(0); }
};

struct Data {
  Samples train;
  Samples test;
};

struct DataConfig {
  std::string name = {};     // "fashion-mnist", "text", "generated"; empty: what the model reads
  std::string folder = {};   // empty: where the package puts it
  bool text = false;         // what the model reads
  std::int64_t samples = 0;  // the first so many of training only; 0: all
  std::uint64_t seed = 1;    // of what is generated
};

// Throws Failure: a file is missing (says which package has it), is none of its kind or cut short, or the kind does not
// fit the model.
Data load_data(const DataConfig& config);

// The batches of an epoch: a permutation of all samples, by seed and epoch, cut into batches; the last one may be
// short. The same on all ranks, whatever their number.
class Sampler {
 public:
  Sampler(std::int64_t samples, std::int64_t batch, std::uint64_t seed);
  std::int64_t batches() const { return (samples_ + batch_ - 1) / batch_; }  // of an epoch
  // Samples of batch `step` (0, 1, ... over all epochs): indices into the training set.
  std::vector<std::int64_t> batch(std::int64_t step);
  std::int64_t epoch_of(std::int64_t step) const { return step / batches(); }

 private:
  std::int64_t samples_;
  std::int64_t batch_;
  std::uint64_t seed_;
  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> order_;  // of epoch_
};

// A rank's share of a batch: the samples between the sums of weights in front of it and up to it; all get about as
// much as their weight says, none is left out, and a share may be empty.
Part share_of(std::int64_t batch, const std::vector<double>& weights, std::int32_t rank);

Samples pick(const Samples& samples, const std::vector<std::int64_t>& indices, Part part, torch::Device device);

}  // namespace tutti::train

// The data sets, and the distribution of samples to steps and ranks.
//
//   fashion-mnist  60,000 + 10,000 images of 28 x 28 pixels with their classes, from Debian's package
//                  dataset-fashion-mnist
//   text           the text files of a folder, by default the licence texts in /usr/share/common-licenses (package
//                  base-files), as bytes. They are divided into windows of kContext (models.h) bytes, and every tenth
//                  window is test data
//   generated      noisy patterns of ten classes (images), or a noisy repetitive language (text), made from a seed.
//                  For benchmarks and tests, because nothing has to be installed
//
// Data and samples are values. A Sampler is used by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/layer.h"

namespace tutti::train {

// Inputs and targets; element i of both belongs to sample i.
struct Samples {
  Tensor inputs;   // images: float32 [n, 1, 28, 28], mean about 0, deviation about 1; text: int64 [n, kContext]
  Tensor targets;  // images: int64 [n]; text: int64 [n, kContext], the next bytes
  std::int64_t size() const { return inputs.size(0); }
};

struct Data {
  Samples train;
  Samples test;
};

struct DataConfig {
  std::string name = {};    // "fashion-mnist", "text" or "generated"; empty: the usual one, see `text`
  std::string folder = {};  // empty: the folder of the Debian package
  bool text = false;        // true: the model reads text (usual set: "text"); false: images ("fashion-mnist")
  // Maximum number of training samples, which are taken from the beginning of the set. 0: all, or 4,096 generated
  // images, or slightly more windows of generated text. The number of test samples does not depend on it, except with
  // generated text.
  std::int64_t samples = 0;
  std::uint64_t seed = 1;  // seed of the generated data
};

// Loads or generates a data set. Throws Failure if the images are missing or the folder contains too little text (the
// message names the Debian package of the default), if an image file is damaged or has another format, or if the data
// set is unknown or does not fit the model.
Data load_data(const DataConfig& config);

// Divides the samples of an epoch into batches. The order is a permutation of all samples that depends on seed and
// epoch. The last batch of an epoch may be shorter. The result is the same on all ranks and for any number of ranks.
class Sampler {
 public:
  Sampler(std::int64_t samples, std::int64_t batch, std::uint64_t seed);
  std::int64_t batches() const { return (samples_ + batch_ - 1) / batch_; }  // batches of an epoch
  // The samples of batch `step` (0, 1, ... over all epochs), as indices into the training set.
  std::vector<std::int64_t> batch(std::int64_t step);
  std::int64_t epoch_of(std::int64_t step) const { return step / batches(); }

 private:
  std::int64_t samples_;
  std::int64_t batch_;
  std::uint64_t seed_;
  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> order_;  // the permutation of epoch epoch_
};

// The share of a batch that `rank` trains on. `weights` has one number for each rank, and the lengths of the shares
// are proportional to them (rounded). Together the shares cover the batch exactly; a share may be empty.
IndexRange share_of(std::int64_t batch, const std::vector<double>& weights, std::int32_t rank);

// Copies the samples indices[part.begin, part.begin + part.length) to the device.
Samples pick(const Samples& samples, const std::vector<std::int64_t>& indices, IndexRange part, torch::Device device);

}  // namespace tutti::train

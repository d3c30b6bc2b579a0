#include <algorithm>

#include "train/parallel/replicas.h"

namespace tutti::train {
namespace {

// Data parallel: every rank holds all values, gradients and optimizer state. The gradients of a bucket are all-reduced
// as soon as its backward pass in the last pass of the step has finished, or, without overlap, in finish().
class DataParallel final : public BaseReplicas {
 public:
  DataParallel(const Layers& layers, Comm& ranks, const ReplicaOptions& options)
      : layers_(layers),
        ranks_(ranks),
        options_(options),
        buckets_(make_buckets(layers, options.first_layer, options.bucket_bytes, 1)),
        work_(buckets_.size()),
        ready_(buckets_.size(), false) {
    for (const Bucket& bucket : buckets_) {
      Tensor values = torch::empty({bucket.padded}, torch::TensorOptions(torch::kFloat32).device(options.device));
      move_values(layers, bucket, values);
      ranks.broadcast(values, 0);
      Tensor gradients =
          options.keep_in_place ? ranks.shared_zeros(bucket.padded, options.device) : torch::zeros_like(values);
      bind_gradients(layers, bucket, gradients);
      shards_.push_back({values, gradients, bucket.slices});
    }
  }
  ~DataParallel() override {
    work_.clear();
    for (const Bucket& bucket : buckets_) forget_gradients(layers_, bucket);
  }

  void begin_step() override {
    for (Shard& shard : shards_) shard.gradients.zero_();
    std::fill(ready_.begin(), ready_.end(), false);
  }
  // The backward pass goes from the last layer to the first. So a bucket is complete when its first layer is done.
  void end_backward(std::size_t layer, bool last) override {
    for (std::size_t i = 0; i < buckets_.size() && last; ++i) {
      if (buckets_[i].first != layer) continue;
      ready_[i] = true;
      if (options_.overlap) work_[i] = ranks_.start_all_reduce(shards_[i].gradients);
    }
  }
  // Starts the buckets that end_backward() has not started: all of them without overlap. With overlap there are none,
  // because a rank without samples also makes a backward pass, with a weight of zero.
  void finish() override {
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (!options_.overlap || !ready_[i]) work_[i] = ranks_.start_all_reduce(shards_[i].gradients);
    }
    for (Pending& work : work_) work.wait();
  }
  void abandon() override {
    for (Pending& work : work_) work = Pending();
  }
  bool replicated() const override { return true; }
  std::int64_t held_bytes() const override {
    std::int64_t bytes = 0;
    for (const Bucket& bucket : buckets_) bytes += 2 * 4 * bucket.padded;
    return bytes;
  }

 private:
  const Layers& layers_;
  Comm& ranks_;
  ReplicaOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<Pending> work_;
  std::vector<bool> ready_;
};

}  // namespace

std::unique_ptr<Replicas> make_data_parallel(const Layers& layers, Comm& ranks, const ReplicaOptions& options) {
  return std::make_unique<DataParallel>(layers, ranks, options);
}

}  // namespace tutti::train

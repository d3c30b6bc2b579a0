#include <algorithm>

#include "train/parallel/replicas.h"

namespace tutti::train {
namespace {

// ZeRO-1: rank r updates part r of each bucket. Gradients are reduce-scattered in place and values are all-gathered
// in place. Together they move as many bytes as the all-reduce of data parallel.
class ShardedOptimizer final : public BaseReplicas {
 public:
  ShardedOptimizer(const Layers& layers, Comm& ranks, const ReplicaOptions& options)
      : layers_(layers),
        ranks_(ranks),
        options_(options),
        buckets_(make_buckets(layers, options.first_layer, options.bucket_bytes, ranks.size())),
        work_(buckets_.size()),
        ready_(buckets_.size(), false) {
    for (const Bucket& bucket : buckets_) {
      Tensor values = ranks.shared_zeros(bucket.padded, options.device);
      move_values(layers, bucket, values);
      ranks.broadcast(values, 0);
      const Tensor gradients = ranks.shared_zeros(bucket.padded, options.device);
      bind_gradients(layers, bucket, gradients);
      const std::int64_t length = bucket.padded / ranks.size();
      const std::int64_t begin = ranks.rank() * length;
      shards_.push_back({values.narrow(0, begin, length), gradients.narrow(0, begin, length),
                         slices_within(bucket.slices, begin, length)});
      values_.push_back(values);
      gradients_.push_back(gradients);
    }
  }
  ~ShardedOptimizer() override {
    work_.clear();
    for (const Bucket& bucket : buckets_) forget_gradients(layers_, bucket);
  }

  void begin_step() override {
    for (Tensor& gradients : gradients_) gradients.zero_();
    std::fill(ready_.begin(), ready_.end(), false);
  }
  void end_backward(std::size_t layer, bool last) override {
    for (std::size_t i = 0; i < buckets_.size() && last && options_.overlap; ++i) {
      if (buckets_[i].first == layer) start(i);
    }
  }
  void finish() override {
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (!ready_[i]) start(i);
    }
    for (Pending& work : work_) work.wait();
  }
  void publish() override {
    for (std::size_t i = 0; i < buckets_.size(); ++i) work_[i] = ranks_.start_all_gather(shards_[i].values, values_[i]);
    for (Pending& work : work_) work.wait();
  }
  bool replicated() const override { return false; }
  std::int64_t held_bytes() const override {
    std::int64_t bytes = 0;
    for (const Bucket& bucket : buckets_) bytes += 2 * 4 * bucket.padded;
    return bytes;
  }

 private:
  void start(std::size_t i) {
    ready_[i] = true;
    work_[i] = ranks_.start_reduce_scatter(gradients_[i], shards_[i].gradients);
  }

  const Layers& layers_;
  Comm& ranks_;
  ReplicaOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<Tensor> values_;
  std::vector<Tensor> gradients_;
  std::vector<Pending> work_;
  std::vector<bool> ready_;
};

}  // namespace

std::unique_ptr<Replicas> make_sharded_optimizer(const Layers& layers, Comm& ranks, const ReplicaOptions& options) {
  return std::make_unique<ShardedOptimizer>(layers, ranks, options);
}

}  // namespace tutti::train

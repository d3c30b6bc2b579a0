#include "train/parallel/gradient_scatter.h"
#include "train/parallel/replicas.h"

namespace tutti::train {
namespace {

// ZeRO-2: every rank holds all values; gradients and optimizer state are sharded. Each pass reduces its gradients
// bucket by bucket, and finish() waits for the last ones.
class ShardedGradients final : public BaseReplicas {
 public:
  ShardedGradients(const Layers& layers, Comm& ranks, const ReplicaOptions& options)
      : ranks_(ranks),
        buckets_(make_buckets(layers, options.first_layer, options.bucket_bytes, ranks.size())),
        work_(buckets_.size()) {
    for (const Bucket& bucket : buckets_) {
      Tensor values = ranks.shared_zeros(bucket.padded, options.device);
      move_values(layers, bucket, values);
      ranks.broadcast(values, 0);
      const std::int64_t length = bucket.padded / ranks.size();
      const std::int64_t begin = ranks.rank() * length;
      shards_.push_back({values.narrow(0, begin, length), torch::zeros({length}, values.options()),
                         slices_within(bucket.slices, begin, length)});
      values_.push_back(values);
    }
    scatter_ = std::make_unique<GradientScatter>(layers, ranks, buckets_, options.device, options.overlap);
  }

  void begin_step() override {
    for (Shard& shard : shards_) shard.gradients.zero_();
  }
  void begin_backward(std::size_t layer) override {
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (buckets_[i].last == layer) scatter_->open(i);
    }
  }
  void end_backward(std::size_t layer, bool) override {
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (buckets_[i].first == layer) scatter_->close(i, shards_[i].gradients);
    }
  }
  void finish() override { scatter_->finish(); }
  void publish() override {
    for (std::size_t i = 0; i < buckets_.size(); ++i) work_[i] = ranks_.start_all_gather(shards_[i].values, values_[i]);
    for (Pending& work : work_) work.wait();
  }
  bool replicated() const override { return false; }
  std::int64_t held_bytes() const override {
    std::int64_t bytes = scatter_->buffer_bytes();
    for (const Bucket& bucket : buckets_) bytes += 4 * (bucket.padded + bucket.padded / ranks_.size());
    return bytes;
  }

 private:
  Comm& ranks_;
  std::vector<Bucket> buckets_;
  std::vector<Tensor> values_;
  std::vector<Pending> work_;
  std::unique_ptr<GradientScatter> scatter_;
};

}  // namespace

std::unique_ptr<Replicas> make_sharded_gradients(const Layers& layers, Comm& ranks, const ReplicaOptions& options) {
  return std::make_unique<ShardedGradients>(layers, ranks, options);
}

}  // namespace tutti::train

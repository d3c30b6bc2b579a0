#include "train/parallel/gradient_scatter.h"
#include "train/parallel/replicas.h"
#include "train/parallel/shared_values.h"

namespace tutti::train {
namespace {

// ZeRO-3 and MiCS: values, gradients and optimizer state are divided among `ranks`. If `across` has more than one rank
// (MiCS), there are other groups like `ranks`, each with all shards; finish() adds up the gradients over the groups.
class FullySharded final : public BaseReplicas {
 public:
  FullySharded(const Layers& layers, Comm& ranks, Comm& across, const ReplicaOptions& options)
      : ranks_(ranks),
        across_(across),
        buckets_(make_buckets(layers, options.first_layer, 0, ranks.size())),
        bucket_of_(layers.size(), -1) {
    const auto flat = torch::TensorOptions(torch::kFloat32).device(options.device);
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      Tensor values = torch::empty({buckets_[i].padded}, flat);
      move_values(layers, buckets_[i], values);
      ranks.broadcast(values, 0);
      across.broadcast(values, 0);
      for (std::size_t layer = buckets_[i].first; layer <= buckets_[i].last; ++layer) {
        bucket_of_[layer] = static_cast<std::ptrdiff_t>(i);
      }
    }
    values_ = std::make_unique<SharedValues>(layers, ranks, buckets_, options.device);
    scatter_ = std::make_unique<GradientScatter>(layers, ranks, buckets_, options.device, options.overlap);
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      const Tensor& mine = values_->shard(i);
      shards_.push_back({mine, torch::zeros_like(mine),
                         slices_within(buckets_[i].slices, ranks.rank() * mine.numel(), mine.numel())});
    }
  }

  void begin_step() override {
    for (Shard& shard : shards_) shard.gradients.zero_();
  }
  void need(std::size_t layer, std::int64_t next) override {
    if (bucket_of_[layer] < 0) return;
    values_->need(static_cast<std::size_t>(bucket_of_[layer]),
                  next < 0 ? -1 : bucket_of_[static_cast<std::size_t>(next)]);
  }
  void begin_backward(std::size_t layer) override {
    const std::ptrdiff_t bucket = bucket_of_[layer];
    if (bucket >= 0 && buckets_[static_cast<std::size_t>(bucket)].last == layer) {
      scatter_->open(static_cast<std::size_t>(bucket));
    }
  }
  void end_backward(std::size_t layer, bool) override {
    const std::ptrdiff_t bucket = bucket_of_[layer];
    if (bucket < 0 || buckets_[static_cast<std::size_t>(bucket)].first != layer) return;
    scatter_->close(static_cast<std::size_t>(bucket), shards_[static_cast<std::size_t>(bucket)].gradients);
  }
  void finish() override {
    scatter_->finish();
    for (Shard& shard : shards_) across_.all_reduce(shard.gradients);
  }
  void publish() override { values_->changed(); }
  bool replicated() const override { return false; }
  std::int64_t held_bytes() const override {
    std::int64_t bytes = scatter_->buffer_bytes() + values_->buffer_bytes();
    for (const Bucket& bucket : buckets_) bytes += 2 * 4 * bucket.padded / ranks_.size();
    return bytes;
  }

 private:
  Comm& ranks_;
  Comm& across_;
  std::vector<Bucket> buckets_;
  std::vector<std::ptrdiff_t> bucket_of_;  // indexed by layer; -1: the layer belongs to no bucket
  std::unique_ptr<SharedValues> values_;
  std::unique_ptr<GradientScatter> scatter_;
};

}  // namespace

std::unique_ptr<Replicas> make_fully_sharded(const Layers& layers, Comm& ranks, Comm& across,
                                             const ReplicaOptions& options) {
  return std::make_unique<FullySharded>(layers, ranks, across, options);
}

}  // namespace tutti::train

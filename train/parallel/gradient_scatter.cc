#include "train/parallel/gradient_scatter.h"

#include <algorithm>

namespace tutti::train {

GradientScatter::GradientScatter(const Layers& layers, Comm& ranks, const std::vector<Bucket>& buckets,
                                 torch::Device device, bool overlap)
    : layers_(layers), ranks_(ranks), buckets_(buckets), overlap_(overlap) {
  for (const Bucket& bucket : buckets) length_ = std::max(length_, bucket.padded);
  for (Buffer& buffer : buffers_) {
    buffer.whole = ranks.shared_zeros(length_, device);
    buffer.arriving = torch::zeros({length_ / ranks.size()}, buffer.whole.options());
  }
}

GradientScatter::~GradientScatter() {
  for (Buffer& buffer : buffers_) buffer.work = Pending();
  for (const Bucket& bucket : buckets_) forget_gradients(layers_, bucket);
}

void GradientScatter::settle(Buffer& buffer) {
  if (!buffer.shard.defined()) return;
  buffer.work.wait();
  buffer.shard.add_(buffer.arriving.narrow(0, 0, buffer.shard.numel()));
  buffer.shard = Tensor();
}

void GradientScatter::open(std::size_t bucket) {
  Buffer& buffer = buffers_[turn_];
  settle(buffer);
  Tensor part = buffer.whole.narrow(0, 0, buckets_[bucket].padded);
  part.zero_();
  bind_gradients(layers_, buckets_[bucket], part);
}

void GradientScatter::close(std::size_t bucket, Tensor& shard) {
  Buffer& buffer = buffers_[turn_];
  turn_ = 1 - turn_;
  forget_gradients(layers_, buckets_[bucket]);
  buffer.shard = shard;
  buffer.work = ranks_.start_reduce_scatter(buffer.whole.narrow(0, 0, buckets_[bucket].padded),
                                            buffer.arriving.narrow(0, 0, shard.numel()));
  if (!overlap_) settle(buffer);
}

void GradientScatter::finish() {
  for (Buffer& buffer : buffers_) settle(buffer);
}

}  // namespace tutti::train

// GradientScatter: the gradients of ZeRO-2 and ZeRO-3, of which each rank keeps only a shard. The backward pass adds
// the gradients of a bucket to one of two buffers. A reduce-scatter then sums them over the ranks, and the result is
// added to this rank's shard. With two buffers, one bucket can be reduced while the next one is computed. One thread
// uses it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "train/parallel/flat.h"

namespace tutti::train {

class GradientScatter {
 public:
  // `layers` and `buckets` must outlive this object.
  GradientScatter(const Layers& layers, Comm& ranks, const std::vector<Bucket>& buckets, torch::Device device,
                  bool overlap);
  ~GradientScatter();
  GradientScatter(const GradientScatter&) = delete;
  GradientScatter& operator=(const GradientScatter&) = delete;

  // Prepares a buffer with zeros for the gradients of the bucket. If the buffer is still in use, this waits for its
  // reduce-scatter.
  void open(std::size_t bucket);
  // Starts the reduce-scatter of the bucket. With overlap, open() or finish() adds its result to `shard` later. Without
  // overlap, this function waits for the result and adds it.
  void close(std::size_t bucket, Tensor& shard);
  // Waits for the reduce-scatters of all outstanding buckets, and adds their results to the shards.
  void finish();
  // Bytes of both buffers, each with the result of its reduce-scatter.
  std::int64_t buffer_bytes() const { return 2 * (length_ + length_ / ranks_.size()) * 4; }

 private:
  struct Buffer {
    // gradients of this rank for the whole bucket
    Tensor whole;
    // result of the reduce-scatter: this rank's part of the gradients, summed over the ranks
    Tensor arriving;
    Tensor shard;  // `arriving` is added to it; undefined: the buffer is free
    Pending work;
  };
  // Waits for the reduce-scatter of a buffer, and adds the result to the shard.
  void settle(Buffer& buffer);

  const Layers& layers_;
  Comm& ranks_;
  const std::vector<Bucket>& buckets_;
  bool overlap_;
  std::int64_t length_ = 0;  // elements of the longest bucket
  std::array<Buffer, 2> buffers_;
  // the buffer that open() uses next, or has used for a bucket that is not closed yet
  std::size_t turn_ = 0;
};

}  // namespace tutti::train

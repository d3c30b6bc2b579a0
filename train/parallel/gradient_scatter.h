// Gradients that no rank has as a whole for longer than it needs: a bucket's are added up in one of two buffers, leave
// from there for the ranks that keep them, and what comes in is added to this rank's shard.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "train/parallel/flat.h"

namespace tutti::train {

class GradientScatter {
 public:
  // The sizes of row, buckets and gradients are those of the shards' owner, and stay.
  GradientScatter(const Row& row, Comm& ranks, const std::vector<Bucket>& buckets, torch::Device device, bool overlap);
  ~GradientScatter();
  GradientScatter(const GradientScatter&) = delete;
  GradientScatter& operator=(const GradientScatter&) = delete;

  void open(std::size_t bucket);                  // backward may add to its gradients
  void close(std::size_t bucket, Tensor& shard);  // they leave; their sum over ranks is added to `shard`
  void finish();                                  // all of it is there
  std::int64_t buffer_bytes() const { return 2 * (length_ + length_ / ranks_.size()) * 4; }

 private:
  struct Buffer {
    Tensor whole;
    Tensor arriving;
    Tensor shard;  // what `arriving` goes to
    Pending work;
  };
  void settle(Buffer& buffer);

  const Row& row_;
  Comm& ranks_;
  const std::vector<Bucket>& buckets_;
  bool overlap_;
  std::int64_t length_ = 0;  // of the longest bucket
  std::array<Buffer, 2> buffers_;
  std::size_t turn_ = 0;
};

}  // namespace tutti::train

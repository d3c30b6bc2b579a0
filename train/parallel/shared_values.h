// SharedValues: the values of ZeRO-3, of which each rank keeps only a shard. When a layer is about to be used, its
// bucket is gathered from all ranks into one of two buffers. While the layer is computed, the next bucket is gathered
// into the other buffer.
//
// The parameters of the layers, and the tensors that autograd has saved, refer to one libtorch storage per bucket.
// While a bucket is in a buffer, its storage points to that buffer; otherwise it points to no memory. One thread uses a
// SharedValues.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "train/parallel/flat.h"

namespace tutti::train {

class SharedValues {
 public:
  // Takes the current values of the layers, which must be the same on all ranks. `buckets` must outlive this object.
  SharedValues(const Layers& layers, Comm& ranks, const std::vector<Bucket>& buckets, torch::Device device);
  ~SharedValues();
  SharedValues(const SharedValues&) = delete;
  SharedValues& operator=(const SharedValues&) = delete;

  // This rank's part of the values of a bucket.
  Tensor& shard(std::size_t bucket) { return shards_[bucket]; }
  // Gathers the values of a bucket and waits for them. Also starts to gather `next`, unless it is -1.
  void need(std::size_t bucket, std::ptrdiff_t next);
  // Call it after the values of the shards have changed: the gathered values are discarded.
  void changed();
  std::int64_t buffer_bytes() const { return 2 * length_ * 4; }

 private:
  struct Buffer {
    Tensor whole;
    std::ptrdiff_t bucket = -1;  // the bucket in this buffer, or being gathered into it; -1: none
    Pending work;
  };
  // Returns the buffer with the bucket, and starts to gather it if it is not there. `but_not`: a buffer to keep, or
  // -1.
  std::size_t buffer_of(std::size_t bucket, std::ptrdiff_t but_not);
  // Makes the storage of the buffer's bucket point to no memory.
  void drop(Buffer& buffer);

  Comm& ranks_;
  const std::vector<Bucket>& buckets_;
  torch::Device device_;
  std::int64_t length_ = 0;  // elements of the longest bucket
  std::vector<Tensor> shards_;
  std::vector<c10::Storage> storages_;
  std::array<Buffer, 2> buffers_;
  std::size_t used_ = 0;  // the buffer that need() used last
};

}  // namespace tutti::train

// Values that no rank has as a whole for longer than it needs: of each bucket a rank keeps a shard, and gathers all of
// it into one of two buffers when a layer of it is about to be used, the next one while this one is computed with.
//
// The layers' parameters, and what backward has saved of them, refer to a storage of each bucket's own; a gathered
// bucket's storage points into a buffer, another one's to nothing.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "train/parallel/flat.h"

namespace tutti::train {

class SharedValues {
 public:
  // Takes the layers' values as they are, the same on all ranks. `buckets` stay.
  SharedValues(const Row& row, Comm& ranks, const std::vector<Bucket>& buckets, torch::Device device);
  ~SharedValues();
  SharedValues(const SharedValues&) = delete;
  SharedValues& operator=(const SharedValues&) = delete;

  Tensor& shard(std::size_t bucket) { return shards_[bucket]; }
  void need(std::size_t bucket, std::ptrdiff_t next);  // next: to be fetched meanwhile, or -1
  void changed();                                      // the shards' values: what was gathered is old
  std::int64_t buffer_bytes() const { return 2 * length_ * 4; }

 private:
  struct Buffer {
    Tensor whole;
    std::ptrdiff_t bucket = -1;  // that is in it, or on its way
    Pending work;
  };
  std::size_t buffer_of(std::size_t bucket, std::ptrdiff_t but_not);
  void drop(Buffer& buffer);

  Comm& ranks_;
  const std::vector<Bucket>& buckets_;
  torch::Device device_;
  std::int64_t length_ = 0;  // of the longest bucket
  std::vector<Tensor> shards_;
  std::vector<c10::Storage> storages_;
  std::array<Buffer, 2> buffers_;
  std::size_t used_ = 0;  // the buffer that was asked for last
};

}  // namespace tutti::train

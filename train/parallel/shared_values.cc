#include "train/parallel/shared_values.h"

#include <algorithm>

namespace tutti::train {

SharedValues::SharedValues(const Layers& layers, Comm& ranks, const std::vector<Bucket>& buckets, torch::Device device)
    : ranks_(ranks), buckets_(buckets), device_(device) {
  const auto options = torch::TensorOptions(torch::kFloat32).device(device);
  for (const Bucket& bucket : buckets) length_ = std::max(length_, bucket.padded);
  for (const Bucket& bucket : buckets) {
    const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bucket.padded) * sizeof(float),
                               c10::DataPtr(nullptr, device), nullptr, false);
    Tensor whole = torch::zeros({bucket.padded}, options);
    Tensor view = torch::empty({0}, options);
    view.set_(storage, 0, {bucket.padded}, {1});
    storage.set_data_ptr_noswap(c10::DataPtr(whole.data_ptr(), device));
    move_values(layers, bucket, view);
    storage.set_data_ptr_noswap(c10::DataPtr(nullptr, device));
    const std::int64_t length = bucket.padded / ranks.size();
    shards_.push_back(whole.narrow(0, ranks.rank() * length, length).clone());
    storages_.push_back(storage);
  }
  for (Buffer& buffer : buffers_) buffer.whole = ranks.shared_zeros(length_, device);
}

SharedValues::~SharedValues() {
  for (Buffer& buffer : buffers_) {
    buffer.work = Pending();
    drop(buffer);
  }
}

void SharedValues::drop(Buffer& buffer) {
  if (buffer.bucket >= 0) storages_[static_cast<std::size_t>(buffer.bucket)].set_data_ptr_noswap({nullptr, device_});
  buffer.bucket = -1;
}

// If neither buffer has the bucket, starts to gather it into the buffer that is not `but_not`, or, if `but_not` is -1,
// into the buffer that need() has not used last.
std::size_t SharedValues::buffer_of(std::size_t bucket, std::ptrdiff_t but_not) {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (buffers_[i].bucket == static_cast<std::ptrdiff_t>(bucket)) return i;
  }
  const std::size_t free = but_not >= 0 ? 1 - static_cast<std::size_t>(but_not) : 1 - used_;
  Buffer& buffer = buffers_[free];
  buffer.work.wait();
  drop(buffer);
  buffer.bucket = static_cast<std::ptrdiff_t>(bucket);
  buffer.work = ranks_.start_all_gather(shards_[bucket], buffer.whole.narrow(0, 0, buckets_[bucket].padded));
  storages_[bucket].set_data_ptr_noswap({buffer.whole.data_ptr(), device_});
  return free;
}

void SharedValues::need(std::size_t bucket, std::ptrdiff_t next) {
  used_ = buffer_of(bucket, -1);
  buffers_[used_].work.wait();
  if (next >= 0) buffer_of(static_cast<std::size_t>(next), static_cast<std::ptrdiff_t>(used_));
}

void SharedValues::changed() {
  for (Buffer& buffer : buffers_) {
    buffer.work.wait();
    drop(buffer);
  }
}

}  // namespace tutti::train

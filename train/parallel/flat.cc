#include "train/parallel/flat.h"

#include <algorithm>

namespace tutti::train {
namespace {

template <class Visit>
void for_each_parameter(const Layers& layers, const Bucket& bucket, const Visit& visit) {
  std::size_t index = 0;
  for (std::size_t layer = bucket.first; layer <= bucket.last; ++layer) {
    for (const Parameter& parameter : layers[layer]->parts()) {
      Tensor tensor = parameter.tensor;  // a second reference to the same tensor
      visit(tensor, bucket.slices[index++]);
    }
  }
}

void add_layer(Bucket& bucket, const Layer& layer, std::size_t index) {
  for (const Parameter& parameter : layer.parts()) {
    bucket.slices.push_back({.name = "layer." + std::to_string(index) + "/" + parameter.name,
                             .whole = parameter.whole,
                             .part = parameter.tensor.sizes().vec(),
                             .split_dim = parameter.split_dim,
                             .at = bucket.count,
                             .length = parameter.tensor.numel()});
    bucket.count += parameter.tensor.numel();
  }
}

std::int64_t elements(const Layer& layer) {
  std::int64_t count = 0;
  for (const Parameter& parameter : layer.parts()) count += parameter.tensor.numel();
  return count;
}

}  // namespace

std::vector<Bucket> make_buckets(const Layers& layers, std::size_t first_index, std::int64_t bytes,
                                 std::int64_t multiple) {
  std::vector<Bucket> buckets;
  std::size_t end = layers.size();  // end of the bucket that is being filled
  std::int64_t filled = 0;
  for (std::size_t layer = layers.size(); layer-- > 0;) {
    filled += elements(*layers[layer]);
    const bool full = filled > 0 && filled * 4 >= bytes;
    if (!full && layer > 0) continue;
    if (filled == 0) break;
    buckets.push_back({.first = layer, .last = end - 1, .slices = {}});
    end = layer;
    filled = 0;
  }
  if (!buckets.empty()) buckets.back().first = 0;
  for (Bucket& bucket : buckets) {
    for (std::size_t layer = bucket.first; layer <= bucket.last; ++layer)
      add_layer(bucket, *layers[layer], first_index + layer);
    bucket.padded = (bucket.count + multiple - 1) / multiple * multiple;
  }
  return buckets;
}

void move_values(const Layers& layers, const Bucket& bucket, Tensor& flat) {
  const torch::NoGradGuard no_grad;
  for_each_parameter(layers, bucket, [&](Tensor& parameter, const ParameterSlice& slice) {
    Tensor view = flat.narrow(0, slice.at, slice.length).view(parameter.sizes());
    view.copy_(parameter);
    parameter.set_data(view);
  });
}

void bind_gradients(const Layers& layers, const Bucket& bucket, const Tensor& flat) {
  for_each_parameter(layers, bucket, [&](Tensor& parameter, const ParameterSlice& slice) {
    parameter.mutable_grad() = flat.narrow(0, slice.at, slice.length).view(parameter.sizes());
  });
}

void forget_gradients(const Layers& layers, const Bucket& bucket) {
  for_each_parameter(layers, bucket,
                     [](Tensor& parameter, const ParameterSlice&) { parameter.mutable_grad() = Tensor(); });
}

std::vector<ParameterSlice> slices_within(const std::vector<ParameterSlice>& slices, std::int64_t begin,
                                          std::int64_t length) {
  std::vector<ParameterSlice> within;
  for (ParameterSlice slice : slices) {
    const std::int64_t from = std::max(begin, slice.at);
    const std::int64_t to = std::min(begin + length, slice.at + slice.length);
    if (from >= to) continue;
    slice.begin += from - slice.at;
    slice.at = from - begin;
    slice.length = to - from;
    within.push_back(std::move(slice));
  }
  return within;
}

}  // namespace tutti::train

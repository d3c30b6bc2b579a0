#include "train/parallel/flat.h"

#include <algorithm>

namespace tutti::train {
namespace {

template <class Visit>
void for_each_parameter(const Row& row, const Bucket& bucket, const Visit& visit) {
  std::size_t index = 0;
  for (std::size_t layer = bucket.first; layer <= bucket.last; ++layer) {
    for (const Parameter& parameter : row[layer]->parts()) {
      Tensor tensor = parameter.tensor;  // the same one
      visit(tensor, bucket.pieces[index++]);
    }
  }
}

void add_layer(Bucket& bucket, const Layer& layer, std::size_t index) {
  for (const Parameter& parameter : layer.parts()) {
    bucket.pieces.push_back({.name = "layer." + std::to_string(index) + "/" + parameter.name,
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

std::vector<Bucket> make_buckets(const Row& row, std::size_t first_index, std::int64_t bytes, std::int64_t multiple) {
  std::vector<Bucket> buckets;
  std::size_t end = row.size();  // of the bucket that is filled now
  std::int64_t filled = 0;
  for (std::size_t layer = row.size(); layer-- > 0;) {
    filled += elements(*row[layer]);
    const bool full = filled > 0 && filled * 4 >= bytes;
    if (!full && layer > 0) continue;
    if (filled == 0) break;
    buckets.push_back({.first = layer, .last = end - 1, .pieces = {}});
    end = layer;
    filled = 0;
  }
  if (!buckets.empty()) buckets.back().first = 0;
  for (Bucket& bucket : buckets) {
    for (std::size_t layer = bucket.first; layer <= bucket.last; ++layer)
      add_layer(bucket, *row[layer], first_index + layer);
    bucket.padded = (bucket.count + multiple - 1) / multiple * multiple;
  }
  return buckets;
}

void move_values(const Row& row, const Bucket& bucket, Tensor& flat) {
  const torch::NoGradGuard no_grad;
  for_each_parameter(row, bucket, [&](Tensor& parameter, const Piece& piece) {
    Tensor view = flat.narrow(0, piece.at, piece.length).view(parameter.sizes());
    view.copy_(parameter);
    parameter.set_data(view);
  });
}

void bind_gradients(const Row& row, const Bucket& bucket, const Tensor& flat) {
  for_each_parameter(row, bucket, [&](Tensor& parameter, const Piece& piece) {
    parameter.mutable_grad() = flat.narrow(0, piece.at, piece.length).view(parameter.sizes());
  });
}

void forget_gradients(const Row& row, const Bucket& bucket) {
  for_each_parameter(row, bucket, [](Tensor& parameter, const Piece&) { parameter.mutable_grad() = Tensor(); });
}

std::vector<Piece> pieces_within(const std::vector<Piece>& pieces, std::int64_t begin, std::int64_t length) {
  std::vector<Piece> within;
  for (Piece piece : pieces) {
    const std::int64_t from = std::max(begin, piece.at);
    const std::int64_t to = std::min(begin + length, piece.at + piece.length);
    if (from >= to) continue;
    piece.begin += from - piece.at;
    piece.at = from - begin;
    piece.length = to - from;
    within.push_back(std::move(piece));
  }
  return within;
}

}  // namespace tutti::train

#include "train/layer.h"

namespace tutti::train {

IndexRange range_of_part(std::int64_t total, std::int64_t index, std::int64_t parts) {
  const std::int64_t least = total / parts;
  const std::int64_t longer = total % parts;
  return {index * least + std::min(index, longer), least + (index < longer ? 1 : 0)};
}

Tensor Layer::own(const std::string& name, const Tensor& whole, const Comm* split_over, std::int64_t dim) {
  const bool split = split_over != nullptr && split_over->size() > 1 && dim >= 0;
  Tensor part = whole.detach();
  if (split) {
    if (whole.size(dim) % split_over->size() != 0) {
      throw Failure(ErrorCode::kInvalidArgument, "parameter " + name + " has " + std::to_string(whole.size(dim)) +
                                                     " rows or columns, which " + std::to_string(split_over->size()) +
                                                     " tensor-parallel ranks cannot share: give --tensor a divisor");
    }
    const std::int64_t length = whole.size(dim) / split_over->size();
    part = part.narrow(dim, split_over->rank() * length, length);
  }
  Tensor mine = part.clone(torch::MemoryFormat::Contiguous).set_requires_grad(true);
  register_parameter("own_" + std::to_string(parts_.size()), mine);
  parts_.push_back({name, mine, whole.sizes().vec(), split ? dim : -1});
  return mine;
}

void Layer::own_all(const std::string& prefix, torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    parts_.push_back({prefix + item.key(), item.value(), item.value().sizes().vec(), -1});
  }
}

PlainLayer::PlainLayer(torch::nn::Sequential body) : body_(std::move(body)) {
  register_module("body", body_);
  own_all("", *body_);
}

}  // namespace tutti::train

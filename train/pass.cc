#include "train/pass.h"

#include <ATen/autocast_mode.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tutti::train {
namespace {

[[noreturn]] void spill_failed(const std::string& what, int error) {
  throw Failure(ErrorCode::kSystem, "activations cannot be offloaded: " + what + ": " + std::strerror(error) +
                                        "; give --offload a folder with more room");
}

// What was cast in it is forgotten at its end: the parameters change before the next one.
class Autocast {
 public:
  explicit Autocast(Precision precision) : on_(precision == Precision::kBfloat16) {
    if (!on_) return;
    at::autocast::set_autocast_cpu_dtype(torch::kBFloat16);
    at::autocast::set_autocast_gpu_dtype(torch::kBFloat16);
    at::autocast::set_cpu_enabled(true);
    at::autocast::set_enabled(true);
  }
  ~Autocast() {
    if (!on_) return;
    at::autocast::set_cpu_enabled(false);
    at::autocast::set_enabled(false);
    at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool on_;
};

Tensor run_layer(Layer& layer, Precision precision, const Tensor& input) {
  const Autocast autocast(precision);
  const Tensor output = layer.forward(input);
  if (precision == Precision::kFloat16) return output.to(torch::kFloat16).to(torch::kFloat32);
  return output.to(torch::kFloat32);
}

}  // namespace

Spill::Spill(const std::string& folder) {
  std::string path = folder + "/tutti-offload-XXXXXX";
  fd_ = ::mkstemp(path.data());
  if (fd_ < 0) spill_failed("no file can be made in " + folder, errno);
  ::unlink(path.c_str());
}

Spill::~Spill() { ::close(fd_); }

Spill::Slot Spill::put(const Tensor& values) {
  const Tensor plain = values.contiguous();
  Slot slot = {end_, plain.sizes().vec(), plain.scalar_type(), static_cast<std::int64_t>(plain.nbytes())};
  const char* const data = static_cast<const char*>(plain.data_ptr());
  for (std::int64_t done = 0; done < slot.bytes;) {
    const ssize_t length = ::pwrite(fd_, data + done, static_cast<std::size_t>(slot.bytes - done), slot.at + done);
    if (length <= 0) spill_failed("writing", length < 0 ? errno : ENOSPC);
    done += length;
  }
  end_ += slot.bytes;
  ++waiting_;
  return slot;
}

Tensor Spill::get(const Slot& slot) {
  Tensor values = torch::empty(slot.shape, slot.type);
  char* const data = static_cast<char*>(values.data_ptr());
  for (std::int64_t done = 0; done < slot.bytes;) {
    const ssize_t length = ::pread(fd_, data + done, static_cast<std::size_t>(slot.bytes - done), slot.at + done);
    if (length <= 0) spill_failed("reading", length < 0 ? errno : EIO);
    done += length;
  }
  if (--waiting_ == 0) end_ = 0;
  return values;
}

Tensor Pass::run(std::size_t layer, const Tensor& input) const {
  return run_layer(*row_[layer], options_.precision, input);
}

void Pass::keep_input(Kept& kept, const Tensor& input) const {
  if (options_.spill != nullptr) {
    kept.slot = options_.spill->put(input.to(torch::kCPU));
  } else {
    kept.input = options_.to_host ? input.to(torch::kCPU) : input;
  }
}

void Pass::restore_input(Kept& kept) const {
  if (kept.slot) kept.input = options_.spill->get(*kept.slot);
  const auto parts = row_[0]->parts();
  if (!parts.empty()) kept.input = kept.input.to(parts[0].tensor.device());
}

Tensor Pass::forward(const Tensor& input) {
  Tensor next = input;
  kept_.assign(row_.size(), {});
  for (std::size_t layer = 0; layer < row_.size(); ++layer) {
    Kept& kept = kept_[layer];
    const bool is_last = layer + 1 == row_.size();
    kept.wants_gradient = layer > 0 || input.requires_grad();
    replicas_.need(layer, is_last ? static_cast<std::int64_t>(layer) - 1 : static_cast<std::int64_t>(layer) + 1);
    if (options_.recompute && !is_last) {
      keep_input(kept, next);
      const torch::NoGradGuard no_grad;
      next = run(layer, next);
      continue;
    }
    kept.input = next.detach().set_requires_grad(kept.wants_gradient);
    kept.output = run(layer, kept.input);
    next = kept.output;
  }
  return next.detach().set_requires_grad(true);
}

Tensor Pass::backward(Tensor gradient, bool last) {
  for (std::size_t layer = row_.size(); layer-- > 0;) {
    Kept& kept = kept_[layer];
    replicas_.need(layer, static_cast<std::int64_t>(layer) - 1);
    replicas_.begin_backward(layer);
    if (!kept.output.defined()) {
      restore_input(kept);
      kept.input = kept.input.detach().set_requires_grad(kept.wants_gradient);
      kept.output = run(layer, kept.input);
    }
    kept.output.backward(gradient);
    gradient = kept.input.grad();
    kept = {};
    replicas_.end_backward(layer, last);
  }
  return gradient;
}

Tensor infer(const Row& row, Replicas& replicas, Precision precision, Tensor input) {
  const torch::NoGradGuard no_grad;
  for (std::size_t layer = 0; layer < row.size(); ++layer) {
    const bool is_last = layer + 1 == row.size();
    replicas.need(layer, is_last ? -1 : static_cast<std::int64_t>(layer) + 1);
    input = run_layer(*row[layer], precision, input);
  }
  return input;
}

}  // namespace tutti::train

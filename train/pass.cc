#include "train/pass.h"

#include <ATen/autocast_mode.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tutti::train {
namespace {

[[noreturn]] void offload_failed(const std::string& what, int error) {
  throw Failure(ErrorCode::kSystem, "activations cannot be offloaded: " + what + ": " + std::strerror(error) +
                                        "; give --offload a folder with more free space");
}

// Enables libtorch's autocast to bfloat16 as long as this object exists, if the precision is kBfloat16. The destructor
// clears the cache of converted parameters, because the parameters change from step to step.
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

OffloadFile::OffloadFile(const std::string& folder) {
  std::string path = folder + "/tutti-offload-XXXXXX";
  // The file is unlinked as soon as it has been created, so that the system frees its space even if the process is
  // killed.
  fd_ = ::mkstemp(path.data());
  if (fd_ < 0) offload_failed("cannot create a file in " + folder, errno);
  ::unlink(path.c_str());
}

OffloadFile::~OffloadFile() { ::close(fd_); }

OffloadFile::Slot OffloadFile::put(const Tensor& values) {
  const Tensor plain = values.contiguous();
  Slot slot = {end_, plain.sizes().vec(), plain.scalar_type(), static_cast<std::int64_t>(plain.nbytes())};
  const char* const data = static_cast<const char*>(plain.data_ptr());
  for (std::int64_t done = 0; done < slot.bytes;) {
    const ssize_t length = ::pwrite(fd_, data + done, static_cast<std::size_t>(slot.bytes - done), slot.at + done);
    if (length <= 0) offload_failed("writing", length < 0 ? errno : ENOSPC);
    done += length;
  }
  end_ += slot.bytes;
  ++waiting_;
  return slot;
}

Tensor OffloadFile::get(const Slot& slot) {
  Tensor values = torch::empty(slot.shape, slot.type);
  char* const data = static_cast<char*>(values.data_ptr());
  for (std::int64_t done = 0; done < slot.bytes;) {
    const ssize_t length = ::pread(fd_, data + done, static_cast<std::size_t>(slot.bytes - done), slot.at + done);
    if (length <= 0) offload_failed("reading", length < 0 ? errno : EIO);
    done += length;
  }
  if (--waiting_ == 0) end_ = 0;
  return values;
}

Tensor Pass::run(std::size_t layer, const Tensor& input) const {
  return run_layer(*layers_[layer], options_.precision, input);
}

void Pass::save_input(SavedLayer& saved, const Tensor& input) const {
  if (options_.offload_file != nullptr) {
    saved.slot = options_.offload_file->put(input.to(torch::kCPU));
  } else {
    saved.input = options_.to_host ? input.to(torch::kCPU) : input;
  }
}

void Pass::restore_input(SavedLayer& saved) const {
  if (saved.slot) saved.input = options_.offload_file->get(*saved.slot);
  const auto parts = layers_[0]->parts();
  if (!parts.empty()) saved.input = saved.input.to(parts[0].tensor.device());
}

Tensor Pass::forward(const Tensor& input) {
  Tensor next = input;
  saved_.assign(layers_.size(), {});
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    SavedLayer& saved = saved_[layer];
    const bool is_last = layer + 1 == layers_.size();
    saved.wants_gradient = layer > 0 || input.requires_grad();
    replicas_.need(layer, is_last ? static_cast<std::int64_t>(layer) - 1 : static_cast<std::int64_t>(layer) + 1);
    if (options_.recompute && !is_last) {
      save_input(saved, next);
      const torch::NoGradGuard no_grad;
      next = run(layer, next);
      continue;
    }
    saved.input = next.detach().set_requires_grad(saved.wants_gradient);
    saved.output = run(layer, saved.input);
    next = saved.output;
  }
  return next.detach().set_requires_grad(true);
}

Tensor Pass::backward(Tensor gradient, bool last) {
  for (std::size_t layer = layers_.size(); layer-- > 0;) {
    SavedLayer& saved = saved_[layer];
    replicas_.need(layer, static_cast<std::int64_t>(layer) - 1);
    replicas_.begin_backward(layer);
    if (!saved.output.defined()) {
      restore_input(saved);
      saved.input = saved.input.detach().set_requires_grad(saved.wants_gradient);
      saved.output = run(layer, saved.input);
    }
    saved.output.backward(gradient);
    gradient = saved.input.grad();
    saved = {};
    replicas_.end_backward(layer, last);
  }
  return gradient;
}

Tensor infer(const Layers& layers, Replicas& replicas, Precision precision, Tensor input) {
  const torch::NoGradGuard no_grad;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const bool is_last = layer + 1 == layers.size();
    replicas.need(layer, is_last ? -1 : static_cast<std::int64_t>(layer) + 1);
    input = run_layer(*layers[layer], precision, input);
  }
  return input;
}

}  // namespace tutti::train

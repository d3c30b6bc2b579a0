#include "train/parallel/pipeline.h"

#include <algorithm>
#include <deque>
#include <memory>

namespace tutti::train {
namespace {

constexpr std::int64_t kMostDimensions = 6;
constexpr std::size_t kMaxPendingSends = 8;  // limit for tensors with outstanding sends; each has a header and values

// Sends and receives tensors between stages. A header with the shape is sent before the values, because the receiver
// does not know the shape.
class StageChannel {
 public:
  StageChannel(Comm& stages, torch::Device device) : stages_(stages), device_(device) {}
  void send(const Tensor& values, std::int32_t peer) {
    Tensor header = torch::zeros({kMostDimensions + 1}, torch::kInt64);
    header[0] = values.dim();
    for (std::int64_t i = 0; i < values.dim(); ++i) header[i + 1] = values.size(i);
    sent_.push_back(stages_.start_send(header, peer));
    sent_.push_back(stages_.start_send(values.contiguous(), peer));
    while (sent_.size() > 2 * kMaxPendingSends) {
      sent_.front().wait();
      sent_.pop_front();
    }
  }
  Tensor receive(std::int32_t peer) {
    Tensor header = torch::zeros({kMostDimensions + 1}, torch::kInt64);
    stages_.receive(header, peer);
    std::vector<std::int64_t> shape;
    for (std::int64_t i = 0; i < header[0].item<std::int64_t>(); ++i)
      shape.push_back(header[i + 1].item<std::int64_t>());
    Tensor values = torch::empty(shape, torch::TensorOptions(torch::kFloat32).device(device_));
    stages_.receive(values, peer);
    return values;
  }
  void finish() {
    for (Pending& one : sent_) one.wait();
    sent_.clear();
  }

 private:
  Comm& stages_;
  torch::Device device_;
  std::deque<Pending> sent_;
};

// The stage of this rank: one Pass for each micro-batch, so that several micro-batches can be between their forward
// and their backward pass.
class Stage {
 public:
  Stage(const Layers& layers, Replicas& replicas, const PassOptions& options, Mesh& mesh,
        const std::vector<MicroBatch>& batches)
      : mesh_(mesh), batches_(batches), channel_(mesh.pipe, batches.at(0).inputs.device()), outputs_(batches.size()) {
    for (std::size_t i = 0; i < batches.size(); ++i)
      passes_.push_back(std::make_unique<Pass>(layers, replicas, options));
  }
  void forward(std::size_t batch) {
    const std::int32_t stage = mesh_.pipe.rank();
    Tensor input = stage == 0 ? batches_[batch].inputs : channel_.receive(stage - 1).set_requires_grad(true);
    outputs_[batch] = passes_[batch]->forward(input);
    if (!mesh_.is_last_stage()) channel_.send(outputs_[batch].detach(), stage + 1);
  }
  void backward(std::size_t batch) {
    const std::int32_t stage = mesh_.pipe.rank();
    Tensor gradient;
    if (mesh_.is_last_stage()) {
      batches_[batch].backward_of_loss(outputs_[batch]);
      gradient = outputs_[batch].grad();
    } else {
      gradient = channel_.receive(stage + 1);
    }
    outputs_[batch] = Tensor();
    const Tensor of_input = passes_[batch]->backward(gradient, batch + 1 == batches_.size());
    passes_[batch].reset();
    if (stage > 0) channel_.send(of_input, stage - 1);
  }
  void finish() { channel_.finish(); }

 private:
  Mesh& mesh_;
  const std::vector<MicroBatch>& batches_;
  StageChannel channel_;
  std::vector<std::unique_ptr<Pass>> passes_;
  std::vector<Tensor> outputs_;
};

}  // namespace

void run_pipeline(const Layers& layers, Replicas& replicas, const PassOptions& options, Mesh& mesh, Schedule schedule,
                  const std::vector<MicroBatch>& batches) {
  Stage stage(layers, replicas, options, mesh, batches);
  // `ahead` is the number of forward passes before forward and backward passes alternate: with gpipe all of them, with
  // 1f1b as many as there are stages after this one (`behind`), but at most all.
  const auto behind = static_cast<std::size_t>(mesh.pipe.size() - 1 - mesh.pipe.rank());
  const std::size_t ahead = schedule == Schedule::kGpipe ? batches.size() : std::min(behind, batches.size());
  for (std::size_t batch = 0; batch < ahead; ++batch) stage.forward(batch);
  for (std::size_t batch = 0; batch < batches.size(); ++batch) {
    if (batch + ahead < batches.size()) stage.forward(batch + ahead);
    stage.backward(batch);
  }
  stage.finish();
}

Tensor infer_pipeline(const Layers& layers, Replicas& replicas, Precision precision, Mesh& mesh, const Tensor& inputs) {
  const std::int32_t stage = mesh.pipe.rank();
  StageChannel channel(mesh.pipe, inputs.device());
  const Tensor output = infer(layers, replicas, precision, stage == 0 ? inputs : channel.receive(stage - 1));
  if (mesh.is_last_stage()) return output;
  channel.send(output, stage + 1);
  channel.finish();
  return {};
}

}  // namespace tutti::train

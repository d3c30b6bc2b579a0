#include "train/parallel/pipeline.h"

#include <algorithm>
#include <deque>
#include <memory>

namespace tutti::train {
namespace {

constexpr std::int64_t kMostDimensions = 6;
constexpr std::size_t kMostUnderWay = 8;  // sends, each a header and values

// Tensors from stage to stage, their shape in front.
class Line {
 public:
  Line(Comm& stages, torch::Device device) : stages_(stages), device_(device) {}
  void send(const Tensor& values, std::int32_t peer) {
    Tensor header = torch::zeros({kMostDimensions + 1}, torch::kInt64);
    header[0] = values.dim();
    for (std::int64_t i = 0; i < values.dim(); ++i) header[i + 1] = values.size(i);
    sent_.push_back(stages_.start_send(header, peer));
    sent_.push_back(stages_.start_send(values.contiguous(), peer));
    while (sent_.size() > 2 * kMostUnderWay) {
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

class Stage {
 public:
  Stage(const Row& row, Replicas& replicas, const PassOptions& options, Mesh& mesh,
        const std::vector<MicroBatch>& batches)
      : mesh_(mesh), batches_(batches), line_(mesh.pipe, batches.at(0).inputs.device()), outputs_(batches.size()) {
    for (std::size_t i = 0; i < batches.size(); ++i) passes_.push_back(std::make_unique<Pass>(row, replicas, options));
  }
  void forward(std::size_t batch) {
    const std::int32_t stage = mesh_.pipe.rank();
    Tensor input = stage == 0 ? batches_[batch].inputs : line_.receive(stage - 1).set_requires_grad(true);
    outputs_[batch] = passes_[batch]->forward(input);
    if (!mesh_.is_last_stage()) line_.send(outputs_[batch].detach(), stage + 1);
  }
  void backward(std::size_t batch) {
    const std::int32_t stage = mesh_.pipe.rank();
    Tensor gradient;
    if (mesh_.is_last_stage()) {
      batches_[batch].backward_of_loss(outputs_[batch]);
      gradient = outputs_[batch].grad();
    } else {
      gradient = line_.receive(stage + 1);
    }
    outputs_[batch] = Tensor();
    const Tensor of_input = passes_[batch]->backward(gradient, batch + 1 == batches_.size());
    passes_[batch].reset();
    if (stage > 0) line_.send(of_input, stage - 1);
  }
  void finish() { line_.finish(); }

 private:
  Mesh& mesh_;
  const std::vector<MicroBatch>& batches_;
  Line line_;
  std::vector<std::unique_ptr<Pass>> passes_;
  std::vector<Tensor> outputs_;
};

}  // namespace

void run_pipeline(const Row& row, Replicas& replicas, const PassOptions& options, Mesh& mesh, Schedule schedule,
                  const std::vector<MicroBatch>& batches) {
  Stage stage(row, replicas, options, mesh, batches);
  // How many forwards are ahead of backwards: all, or as many as there are stages behind this one.
  const auto behind = static_cast<std::size_t>(mesh.pipe.size() - 1 - mesh.pipe.rank());
  const std::size_t ahead = schedule == Schedule::kGpipe ? batches.size() : std::min(behind, batches.size());
  for (std::size_t batch = 0; batch < ahead; ++batch) stage.forward(batch);
  for (std::size_t batch = 0; batch < batches.size(); ++batch) {
    if (batch + ahead < batches.size()) stage.forward(batch + ahead);
    stage.backward(batch);
  }
  stage.finish();
}

Tensor infer_pipeline(const Row& row, Replicas& replicas, Precision precision, Mesh& mesh, const Tensor& inputs) {
  const std::int32_t stage = mesh.pipe.rank();
  Line line(mesh.pipe, inputs.device());
  const Tensor output = infer(row, replicas, precision, stage == 0 ? inputs : line.receive(stage - 1));
  if (mesh.is_last_stage()) return output;
  line.send(output, stage + 1);
  line.finish();
  return {};
}

}  // namespace tutti::train

// One step of pipeline-parallel training. Each rank has one stage, a run of consecutive layers. It receives
// micro-batches from the previous stage, sends its outputs to the next one, and the gradients travel back in the same
// way. Both schedules do the same work in another order:
//   gpipe   the forward passes of all micro-batches, then all backward passes. A stage holds the activations of all
//           micro-batches at the same time
//   1f1b    (one forward, one backward) a micro-batch starts its backward pass as soon as it has passed the last stage.
//           A stage holds the activations of at most as many micro-batches as there are stages from it to the last one
// Sources: Huang et al., GPipe, 2019; Narayanan et al., PipeDream-Flush in Megatron-LM, 2021.
#pragma once

#include <functional>
#include <vector>

#include "train/parallel/mesh.h"
#include "train/pass.h"

namespace tutti::train {

// A micro-batch. The first stage uses the inputs, the last stage uses the loss.
struct MicroBatch {
  Tensor inputs;
  // Computes the loss of the last stage's output, which is a leaf tensor, and runs the backward pass of the loss. That
  // sets the gradient of `output`.
  std::function<void(const Tensor& output)> backward_of_loss;
};

// Executes the forward and backward passes of all micro-batches through the layers of this rank's stage. All stages of
// the pipeline must call it. With one stage, nothing is sent. Throws Failure.
void run_pipeline(const Layers& layers, Replicas& replicas, const PassOptions& options, Mesh& mesh, Schedule schedule,
                  const std::vector<MicroBatch>& batches);

// The forward pass only. Returns the output on the last stage, and an undefined tensor on the others.
Tensor infer_pipeline(const Layers& layers, Replicas& replicas, Precision precision, Mesh& mesh, const Tensor& inputs);

}  // namespace tutti::train

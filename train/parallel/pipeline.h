// A step through the stages of a pipeline, of which this rank has one: micro-batches come from the stage before, go to
// the next, and their gradients come back. The two schedules do the same work in another order:
//   gpipe   all micro-batches forward, then all backward: keeps the activations of all of them
//   1f1b    as soon as one is through it comes back: keeps those of the stages behind this one at most
// Sources: Huang et al., GPipe, 2019; Narayanan et al., PipeDream-Flush in Megatron-LM, 2021.
#pragma once

#include <functional>
#include <vector>

#include "train/parallel/mesh.h"
#include "train/pass.h"

namespace tutti::train {

// What of a micro-batch a stage needs: the first one its inputs, the last one its loss.
struct MicroBatch {
  Tensor inputs;
  // Of the last stage's output, a leaf: runs the loss backward, so that the output has its gradient.
  std::function<void(const Tensor& output)> backward_of_loss;
};

void run_pipeline(const Row& row, Replicas& replicas, const PassOptions& options, Mesh& mesh, Schedule schedule,
                  const std::vector<MicroBatch>& batches);

// Forward alone: the last stage's output there, undefined elsewhere.
Tensor infer_pipeline(const Row& row, Replicas& replicas, Precision precision, Mesh& mesh, const Tensor& inputs);

}  // namespace tutti::train

// How much memory a training takes, estimated before ranks are started: a model that is too large is refused in words,
// and no rank is killed by the kernel.
#pragma once

#include <cstdint>

#include "train/options.h"

namespace tutti::train {

std::int64_t parameters_of(const ModelConfig& model);  // with its width and blocks filled in

// Of all ranks together, whose tensors are on processors. An estimate: the state (weights, gradients, optimizer) is
// exact, the layers' saved inputs and outputs are not.
std::uint64_t needed_bytes(const TrainOptions& options);

// Throws Failure (kSystem) with both numbers if less than that is available. `options` are complete.
void check_memory(const TrainOptions& options);

}  // namespace tutti::train

// Estimates the memory that a training needs, before its ranks are started. So a model that is too large is refused
// with an error message, and the kernel does not have to kill a rank.
#pragma once

#include <cstdint>

#include "train/options.h"

namespace tutti::train {

std::int64_t parameters_of(const ModelConfig& model);  // complete(model) must have been called

// The memory of all ranks together, in bytes: tensors in host memory, and kRankBytes (needed_memory.cc) for each
// process. It is an estimate: the state (weights, gradients, optimizer) is counted without padding and without the
// buffers for communication, and the saved inputs and outputs of layers are approximated.
std::uint64_t needed_bytes(const TrainOptions& options);

// Throws Failure (kSystem) with both numbers if needed_bytes() is more than options.memory_bytes. Does nothing if
// memory_bytes is 0 (unknown), or if the device is a GPU. complete(options) must have been called.
void check_memory(const TrainOptions& options);

}  // namespace tutti::train

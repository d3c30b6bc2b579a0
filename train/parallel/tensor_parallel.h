// Tensor parallelism: the matrices of a layer are split over ranks, which all have the same input and get the same
// output.
//
// If a matrix is split by columns, each rank computes some of the outputs: the forward pass needs no communication,
// and the backward pass sums the gradients of the inputs over the ranks. If a matrix is split by rows, each rank uses
// some of the inputs, so its outputs are partial sums: the forward pass sums them over the ranks, and the backward
// pass needs no communication. A matrix split by columns, then an element-wise function, then a matrix split by rows
// therefore need one all-reduce in each direction. Source: Shoeybi et al., Megatron-LM, 2019.
#pragma once

#include <memory>
#include <string>

#include "train/layer.h"
#include "train/parallel/comm.h"

namespace tutti::train {

// same_input() is the identity, and its gradient is summed over the ranks. sum_of_parts() is the sum over the ranks,
// and its gradient is the identity. If `ranks` is null or has one rank, both are the identity. `ranks` must outlive
// the autograd graph.
Tensor same_input(const Tensor& input, Comm* ranks);
Tensor sum_of_parts(const Tensor& part, Comm* ranks);

}  // namespace tutti::train

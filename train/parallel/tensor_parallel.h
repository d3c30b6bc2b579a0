// Tensor parallel: one layer's matrices split over ranks, which all have the same input and get the same output.
//
// A column-split matrix gives each rank some of the outputs: nothing to say in forward, the inputs' gradients are added
// in backward. A row-split one takes some of the inputs: its outputs are partial sums, which are added in forward; in
// backward nothing. A column-split matrix, something element by element, and a row-split one thus cost one all-reduce
// in each direction. Source: Shoeybi et al., Megatron-LM, 2019.
#pragma once

#include <memory>
#include <string>

#include "train/layer.h"
#include "train/parallel/comm.h"

namespace tutti::train {

// The identity, whose gradient is added over the ranks; and the sum over the ranks, whose gradient is the identity.
// Without ranks to share with (null, or one) both are the identity. `ranks` outlives the graph.
Tensor same_input(const Tensor& input, Comm* ranks);
Tensor sum_of_parts(const Tensor& part, Comm* ranks);

}  // namespace tutti::train

// The factor of a pre-multiplied sum. NCCL's interface passes it as one element of the call's type, in host or device
// memory.
#pragma once

#include "nccl/comm.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::nccl {

// Reads the factor from the element at `bytes`, which need not be aligned.
Scale decode_scale(DataType type, const void* bytes);

// The factor of a call that is being enqueued in `stream`. Errors: those of read_in_stream() (streams.h).
Result<Scale> scale_of(const CustomOp& op, void* stream);

}  // namespace tutti::nccl

// The factor of a pre-multiplied sum: NCCL's interface gives it as an element of the call's type, in memory.
#pragma once

#include "nccl/comm.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::nccl {

// The element at `bytes`, which need not be aligned.
Scale decode_scale(DataType type, const void* bytes);

// The factor of a call that runs in `stream` now. Errors: those of reading it (streams.h).
Result<Scale> scale_of(const CustomOp& op, void* stream);

}  // namespace tutti::nccl

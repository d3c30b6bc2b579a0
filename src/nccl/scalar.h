// The factor of a pre-multiplied sum (ncclRedOpCreatePreMulSum). NCCL's interface passes the factor as one element of
// the call's type, in host or device memory.
#pragma once

#include "nccl/comm.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::nccl {

// Converts the element of type `type` at `bytes` in host memory to a factor. `bytes` need not be aligned.
Scale decode_scale(DataType type, const void* bytes);

// The factor of a call with the operation `op` that is being enqueued in `stream`: `op.scale` or, if the operation has
// the address of a factor (`op.scalar`), the factor read from there. Errors: those of read_in_stream() (streams.h).
Result<Scale> scale_of(const CustomOp& op, void* stream);

}  // namespace tutti::nccl

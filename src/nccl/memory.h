// Memory that ncclMemAlloc() gave, and what the C face does with memory of either kind.
#pragma once

#include <cstddef>

#include "tutti/communicator.h"
#include "tutti/result.h"

namespace tutti::nccl {

// True also where there is no driver: all memory is the host's then.
bool is_host_memory(const void* data);

// Copies host memory to host or device memory; done when it returns.
Status write_memory(void* to, const void* from, std::size_t bytes);

// Registers memory that the runtime can make reachable in place: device memory where the GPUs carry out calls, which is
// collective, and host memory of ncclMemAlloc(). An empty Memory, and no error, for what is used as it is.
Result<Memory> register_if_useful(Communicator& communicator, void* data, std::size_t bytes);

}  // namespace tutti::nccl

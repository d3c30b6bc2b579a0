// Memory that ncclMemAlloc() gave, and what the C face does with memory of either kind.
#pragma once

#include <cstddef>
#include <memory>

#include "tutti/communicator.h"
#include "tutti/result.h"

namespace tutti::nccl {

class Block;  // one of ncclMemAlloc()'s

// A buffer that a communicator knows. Where the buffer is ncclMemAlloc()'s, it stays, though the program frees it,
// until the last of these has gone.
struct Registration {
  std::shared_ptr<Block> block{};  // null: the program's own memory
  Memory memory{};                 // empty: the buffer is used as it is. Ends before the block
};

// True also where there is no driver: all memory is the host's then.
bool is_host_memory(const void* data);

// Copies host memory to host or device memory; done when it returns.
Status write_memory(void* to, const void* from, std::size_t bytes);

// Registers memory that the runtime can make reachable in place: device memory where the GPUs carry out calls, which is
// collective, and host memory of ncclMemAlloc(). Other memory, and what is beyond the runtime's room, is used as it is.
Result<Registration> register_if_useful(Communicator& communicator, void* data, std::size_t bytes);

}  // namespace tutti::nccl

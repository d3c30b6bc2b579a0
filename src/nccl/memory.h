// Host and device memory of the NCCL interface: ncclMemAlloc(), and helpers that work on memory of either type.
#pragma once

#include <cstddef>
#include <memory>

#include "tutti/communicator.h"
#include "tutti/result.h"

namespace tutti::nccl {

class Block;  // an allocation of ncclMemAlloc()

// A buffer that is registered with a communicator. If the buffer was allocated by ncclMemAlloc(), it stays allocated
// until its last Registration is destroyed, even if the program frees it before.
struct Registration {
  std::shared_ptr<Block> block{};  // null: the memory was not allocated by ncclMemAlloc()
  // Empty: the buffer is used without registration. Declared after `block`, so that it is destroyed first.
  Memory memory{};
};

// Whether `data` is host memory. Always true if the process has not loaded a CUDA driver.
bool is_host_memory(const void* data);

// Copies `bytes` bytes from host memory to host or device memory. The copy has finished when the function returns.
Status write_memory(void* to, const void* from, std::size_t bytes);

// Registers memory that other ranks can then access directly. This is device memory if GPUs execute the calls
// (registration is then collective), and whole pages of host memory from ncclMemAlloc(). Other memory, and memory that
// the communicator cannot register because its limit is reached, is used without registration: the result's `memory`
// is empty.
Result<Registration> register_if_useful(Communicator& communicator, void* data, std::size_t bytes);

}  // namespace tutti::nccl

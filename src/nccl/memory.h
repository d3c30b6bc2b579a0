// Host and device memory of the NCCL interface: the registration of buffers, and helpers that work on host memory and
// on device memory. memory.cc also defines ncclMemAlloc() and ncclMemFree().
#pragma once

#include <cstddef>
#include <memory>

#include "tutti/communicator.h"
#include "tutti/result.h"

namespace tutti::nccl {

class Block;  // an allocation of ncclMemAlloc()

// The registration of a buffer with a communicator. If `block` is set, the buffer is memory of ncclMemAlloc(), and it
// stays allocated at least until the last Registration with this `block` is destroyed, even if the program calls
// ncclMemFree() before.
struct Registration {
  std::shared_ptr<Block> block{};  // null: not memory of ncclMemAlloc(), or device memory of ncclCommRegister()
  // Empty: the buffer is used without registration. Declared after `block`, so that the registration is released before
  // the memory is freed.
  Memory memory{};
};

// Whether `data` points to host memory, pageable or pinned (not to managed memory). Always true if the process has not
// loaded a CUDA driver. False if the driver returns an error.
bool is_host_memory(const void* data);

// Copies `bytes` bytes from host memory to host or device memory. The copy has finished when the function returns.
Status write_memory(void* to, const void* from, std::size_t bytes);

// Registers memory if other ranks can then access it directly. This is the case for device memory if GPUs execute the
// calls (registration is then collective), and for host memory that begins at a page of an allocation of
// ncclMemAlloc(). In all other cases the buffer is used without registration: the result's `memory` is empty. The same
// holds if registration returns kUnsupported, for example because the limit of registrations is reached, or if it
// returns kInvalidArgument for host memory, for example because that is registered already. Other errors are returned.
Result<Registration> register_if_useful(Communicator& communicator, void* data, std::size_t bytes);

}  // namespace tutti::nccl

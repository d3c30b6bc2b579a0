// What memory a caller's pointer points to. Asked once per buffer and call, by whoever takes buffers; any thread.
#pragma once

#include <cstdint>

#include "cuda/driver.h"

namespace tutti::cuda {

enum class MemoryKind : std::uint8_t {
  kHost,     // ordinary memory, or memory that no device knows
  kPinned,   // host memory that is page-locked and known to a device
  kDevice,   // a device's: the host cannot touch it
  kManaged,  // moves between host and device
};

struct PointerInfo {
  MemoryKind kind = MemoryKind::kHost;
  int device = -1;  // whose it is; -1 for kHost
  CUcontext context =
      nullptr;  // in which it was allocated; null for kHost, and for mapped virtual memory, which has none

  bool operator==(const PointerInfo&) const = default;
};

Result<PointerInfo> classify(const Driver& driver, const void* pointer);

// The same where the driver may not even be loaded; then every pointer is the host's. Errors: the driver's, not
// "absent".
Result<PointerInfo> classify(const void* pointer);

// Whether other devices of the process that were given access to the memory's context can use it by its address: not
// mapped virtual memory, managed memory, or memory of a pool, which have access rules of their own.
Result<bool> is_plain_device_memory(const Driver& driver, const void* pointer);

// Whether it was allocated from a memory pool (cuMemAllocAsync).
Result<bool> is_pool_memory(const Driver& driver, const void* pointer);

}  // namespace tutti::cuda

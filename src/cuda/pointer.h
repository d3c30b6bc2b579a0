// classify(): finds out the type of memory to which a caller's pointer refers. If the CUDA driver is loaded, classify()
// is called for the buffers of almost every call, for some of them more than once. May be called from any thread.
#pragma once

#include <cstdint>

#include "cuda/driver.h"

namespace tutti::cuda {

enum class MemoryKind : std::uint8_t {
  kHost,     // ordinary host memory: the driver does not know it
  kPinned,   // page-locked host memory that the driver has allocated or registered
  kDevice,   // memory of a device, which the host normally cannot access
  kManaged,  // the driver moves it between host and device
};

constexpr bool is_of_device(MemoryKind kind) { return kind == MemoryKind::kDevice || kind == MemoryKind::kManaged; }

struct PointerInfo {
  MemoryKind kind = MemoryKind::kHost;
  int device = -1;  // the device that owns the memory; for kPinned, the device of `context`; -1 for kHost
  // The context in which the memory was allocated or registered. Null for kHost, and for mapped virtual memory, which
  // belongs to no context.
  CUcontext context = nullptr;
  // Whether other devices of the process can use the memory by its address as soon as they have access to its context.
  // False for host memory, and for mapped virtual memory, managed memory and memory of a pool, because the latter three
  // have access rules of their own.
  bool plain = false;

  bool operator==(const PointerInfo&) const = default;
};

Result<PointerInfo> classify(const Driver& driver, const void* pointer);

// Like classify(driver, pointer), for code that has no Driver. If this process has not loaded the driver, every
// pointer is host memory (kHost), and this is not an error.
Result<PointerInfo> classify(const void* pointer);

// Whether the memory was allocated from a memory pool (cuMemAllocAsync).
Result<bool> is_pool_memory(const Driver& driver, const void* pointer);

}  // namespace tutti::cuda

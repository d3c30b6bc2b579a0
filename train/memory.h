// Counts the bytes of tensors in host memory: of the tensors that libtorch allocates, and of those that train/
// allocates from communicators. All functions except count_allocations() may be called by any thread.
#pragma once

#include <cstdint>

namespace tutti::train {

// Installs the counting allocator of libtorch for tensors in host memory. From now on, the process also keeps freed
// memory, as far as malloc permits (kMostKeptBytes in memory.cc). Call it once, before the first tensor is created.
void count_allocations();
// Adds `bytes` to the number of bytes in use; a negative number means that memory was freed. The counting allocator
// calls it for tensors of libtorch. Call it for tensors in memory that libtorch has not allocated.
void count_bytes(std::int64_t bytes);

std::int64_t peak_bytes();  // the maximum since the last reset_peak(), or since the process started
void reset_peak();

}  // namespace tutti::train

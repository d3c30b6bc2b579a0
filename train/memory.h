// Bytes of tensors on processors: what libtorch allocates, and what the harness takes from communicators.
#pragma once

#include <cstdint>

namespace tutti::train {

// From now on what libtorch allocates for tensors on processors is counted, and what is freed stays with the
// process. Once, before the first tensor.
void count_allocations();
void count_bytes(std::int64_t bytes);  // taken elsewhere, or given back (negative). Any thread.

std::int64_t peak_bytes();  // since the process began, or since reset_peak()
void reset_peak();

}  // namespace tutti::train

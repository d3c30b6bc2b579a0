// Reductions of the caller's own, on host memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

// What stands for "add" in an all_reduce, reduce or reduce_scatter.
//
// combine(left, right, result, count, context) sets result[i] = left[i] (+) right[i] for `count` elements of
// `element_bytes` each. `result` may be the same address as `left`, and never overlaps either otherwise. It must be
// associative and, like a kernel, give the same result wherever it runs; it is called by whichever thread makes
// progress, one call at a time for one operation, and must not call Tutti or throw. Not aligned beyond what the
// caller's buffers are, when element_bytes is not a power of two up to 64.
struct UserReduction {
  using Combine = void (*)(const void* left, const void* right, void* result, std::size_t count, void* context);
  Combine combine = nullptr;  // null: none
  void* context = nullptr;
  std::size_t element_bytes = 0;  // 1 .. 4096
  // False: ranks are combined in rank order, 0 (+) 1 (+) ... (+) p-1, grouped in whatever way.
  bool commutative = true;
  // Which reduction it is: ranks that pass different numbers are told that they disagree.
  std::uint32_t id = 0;
};

}  // namespace tutti

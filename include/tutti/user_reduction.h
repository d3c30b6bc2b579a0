// UserReduction: a reduction function that the caller supplies. It always runs on the host. If a call's buffers are
// device memory, the host carries out the call, with copies in and out.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

// The operation that an all_reduce, reduce or reduce_scatter applies in place of a ReduceOp; written (+) below.
//
// combine(left, right, result, count, context) sets result[i] = left[i] (+) right[i] for `count` elements of
// `element_bytes` bytes each. `result` may be equal to `left`; otherwise it does not overlap the operands. The function
// must be associative and deterministic, because different ranks compute parts of one result. The thread that makes
// progress at that moment calls the function, one thread at a time for one operation. The function must not call Tutti
// and must not throw. If element_bytes is a power of two up to 64, the three pointers are aligned to it, provided that
// the caller's buffers are. Otherwise they need not be aligned.
struct UserReduction {
  using Combine = void (*)(const void* left, const void* right, void* result, std::size_t count, void* context);
  Combine combine = nullptr;      // null: the call uses its ReduceOp
  void* context = nullptr;        // passed to each call of combine
  std::size_t element_bytes = 0;  // 1 .. 4096
  // If false, the operands are combined in rank order: 0 (+) 1 (+) ... (+) p-1, with any placement of parentheses.
  bool commutative = true;
  // Identifies the reduction. Ranks that pass different numbers in one call get kMismatch.
  std::uint32_t id = 0;
};

}  // namespace tutti

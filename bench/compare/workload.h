// Workload: one collective over float32 of one size, its inputs, and the check of every element of its result. All
// functions may be called from any thread.
//
// The buffers of each collective are the same for all libraries (n elements in all, m = n / ranks elements in a block):
//   all_reduce      sum in place in `main` (n)
//   broadcast       in place in `main` (n), root 0
//   reduce          sum of `main` (n) into `other` (n), root 0
//   all_gather      `other` (m) into `main` (n)
//   reduce_scatter  sum of `main` (n) into `other` (m)
//   all_to_all      `main` (n) into `other` (n)
//   gather          `other` (m) into `main` (n), root 0
//   scatter         `main` (n) into `other` (m), root 0
//   barrier         no data
// All values are small integers, so that sums are exact in any order and every library must get the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/types.h"

namespace tutti::compare {

struct Workload {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  // Size of the larger one of the input and the output, as in nccl-tests. A multiple of 4 (of 4 * ranks for collectives
  // with blocks); 0 for a barrier.
  std::uint64_t bytes = 0;
  int ranks = 1;

  std::size_t elements() const { return bytes / sizeof(float); }
  std::size_t block_elements() const { return elements() / static_cast<std::size_t>(ranks); }
  bool operator==(const Workload&) const = default;
};

// Returns a workload with the largest size of at most `bytes` bytes that the collective can have with this number of
// ranks. But it has at least one element, or one element per block. A barrier has the size 0.
Workload make_workload(CollectiveKind kind, std::uint64_t bytes, int ranks);

// Whether the collective uses a second buffer.
bool has_other(CollectiveKind kind);
// Whether `main` contains the input, and whether it contains the output; otherwise `other` does. In an in-place
// collective, `main` contains both.
bool input_in_main(CollectiveKind kind);
bool output_in_main(CollectiveKind kind);

// The buffers of one rank. `other` is empty if the collective uses only one buffer. Otherwise both have elements()
// elements, but some collectives use only the first block of `other`.
struct Buffers {
  std::span<float> main;
  std::span<float> other;
};

// Fills the input of `rank`, and sets all other elements of the buffers to a value that is never a correct result.
void fill(const Workload& workload, int rank, const Buffers& buffers);

// The number of elements in the result of `rank` that differ from the correct value. 0 if the rank gets no result.
std::uint64_t count_wrong(const Workload& workload, int rank, const Buffers& buffers);

}  // namespace tutti::compare

// What is measured: a collective over float32 at one size, its inputs, and the check of every element of its result.
// Values; any thread.
//
// Buffers of every collective, the same for all libraries (n elements in all, m = n / ranks a block):
//   all_reduce      sum in place in `main` (n)               broadcast   in place in `main` (n), root 0
//   reduce          sum of `main` (n) into `other` (n), root 0
//   all_gather      `other` (m) into `main` (n)              reduce_scatter   sum of `main` (n) into `other` (m)
//   all_to_all      `main` (n) into `other` (n)
//   gather          `other` (m) into `main` (n), root 0      scatter   `main` (n) into `other` (m), root 0
//   barrier         no data
// Values are small integers, so sums are exact in any order and every library must get the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/types.h"

namespace tutti::compare {

struct Workload {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::uint64_t bytes = 0;  // of the larger side, as nccl-tests counts; a multiple of 4 (of 4 * ranks with blocks)
  int ranks = 1;

  std::size_t elements() const { return bytes / sizeof(float); }
  std::size_t block_elements() const { return elements() / static_cast<std::size_t>(ranks); }
  bool operator==(const Workload&) const = default;
};

// `bytes` rounded down to what the collective can have over so many ranks, at least one element (a block).
Workload make_workload(CollectiveKind kind, std::uint64_t bytes, int ranks);

// Whether there is a second buffer.
bool has_other(CollectiveKind kind);

// One rank's two buffers; `other` is empty where there is none. Both have elements() elements: for some collectives
// only the first block of `other` is used.
struct Buffers {
  std::span<float> main;
  std::span<float> other;
};

// Inputs of `rank`, and values that no result has where results will be.
void fill(const Workload& workload, int rank, const Buffers& buffers);

// Elements of rank's result that are not what they must be, bit for bit. 0 for a rank that gets no result.
std::uint64_t count_wrong(const Workload& workload, int rank, const Buffers& buffers);

}  // namespace tutti::compare

// The definition of each collective in chunks: the contents of every rank's input, the required contents of every
// rank's output, and the chunks of input and output that share memory in an in-place call. The verifier proves
// plans against these functions, the interpreter takes the sizes of buffers and the in-place rules from them, and
// Layout (plan/layout.h) maps the same chunks to positions in the buffers of a call. Pure functions.
//
// A buffer is a sequence of blocks, and a block is a sequence of PlanShape::chunks chunks: chunk c of a buffer is
// chunk c % chunks of block c / chunks. A *datum* is the unit of data that a collective adds or moves, and is as
// long as a chunk. Data are numbered from 0 by their position in the ranks' inputs: on every rank, input chunk c
// is that rank's contribution to datum c. In a collective that adds, the contributions of different ranks to the
// same datum are added. In the other collectives, the contribution of one rank to a datum is copied to other
// ranks.
//
//   collective      blocks in          blocks out        in[c] of rank r       out[c] of rank r
//   all_reduce      1                  1                 datum c               datum c of all ranks
//   broadcast       1 at the root      1                 datum c               datum c of the root
//   reduce          1                  1 at the root     datum c               datum c of all ranks
//   all_gather      1                  p                 datum c               datum c % B of rank c / B
//   reduce_scatter  p                  1                 datum c               datum r * B + c of all ranks
//   all_to_all      p                  p                 datum c               datum r * B + c % B of rank c / B
//   gather          1                  p at the root     datum c               datum c % B of rank c / B
//   scatter         p at the root      1                 datum c               datum r * B + c of the root
//   barrier         1 (empty)          1 (empty)         datum c               datum c of all ranks
// Here p is the number of ranks and B is PlanShape::chunks. For example, in an all_gather, out[c] of every rank is
// a copy of in[c % B] of rank c / B. A barrier is an all_reduce of blocks with 0 elements: a rank that has
// received the contributions of all ranks has waited for all of them.
#pragma once

#include <cstdint>

#include "base/collective_table.h"
#include "plan/plan.h"

namespace tutti {

inline constexpr std::uint32_t kEveryRank = ~std::uint32_t{0};
inline constexpr std::uint32_t kNoChunk = ~std::uint32_t{0};

// The blocks of one buffer (input or output) of one rank. `count` is their number; 0 means that the rank does not
// use this buffer. The first block belongs to rank `first`, the next one to rank first + 1, and so on. If the
// blocks do not belong to ranks (for example the only block of an all_reduce), `first` is 0. In the v-variants
// (all_gather_v, ...), the length of a block depends on the rank to which it belongs.
struct Blocks {
  std::uint32_t count = 0;
  std::uint32_t first = 0;

  bool operator==(const Blocks&) const = default;
};
// input_blocks() and output_blocks() are inline, because almost every collective call needs them, and the shortest
// calls take less than a microsecond.
inline Blocks input_blocks(const Collective& collective, std::uint32_t rank) {
  const CollectiveRow& row = row_of(collective.kind);
  if (row.root == RootHas::kTheInput && rank != collective.root) return {};
  return {.count = block_count(row.input, collective.ranks), .first = first_block(row.input, rank)};
}
inline Blocks output_blocks(const Collective& collective, std::uint32_t rank) {
  const CollectiveRow& row = row_of(collective.kind);
  if (row.root == RootHas::kTheOutput && rank != collective.root) return {};
  return {.count = block_count(row.output, collective.ranks), .first = first_block(row.output, rank)};
}

// Number of chunks of the whole input (or output) of `rank`, in one tile. 0 if the rank does not use that buffer.
std::uint32_t input_chunks(const PlanShape& shape, std::uint32_t rank);
std::uint32_t output_chunks(const PlanShape& shape, std::uint32_t rank);
// The number of chunks of the input, of the output, or of the scratch memory of `rank`. 0 for kNone.
std::uint32_t space_chunks(const PlanShape& shape, std::uint32_t rank, Space space);
// Returns chunk i, counted from 0, of the run that begins with chunk `first` (Step::run). `chunks` is the number of
// chunks of the buffer. After the last one, the run goes on with chunk 0. For example, the run of 3 chunks from chunk 2
// of 4 on has the chunks 2, 3 and 0. Requires first.chunk < chunks and i < chunks.
inline Slice chunk_of_run(const Slice& first, std::uint32_t i, std::uint32_t chunks) {
  const std::uint32_t left = chunks - first.chunk;
  return {.space = first.space, .chunk = i < left ? first.chunk + i : i - left};
}
// Calls visit(slice) for each chunk that a step of `rank` reads (`first` is Step::source) or stores to (`first` is
// Step::sink), in the order of the run. Does nothing if the space of `first` is kNone.
template <class Visit>
void for_each_chunk(const PlanShape& shape, std::uint32_t rank, const Step& step, const Slice& first, Visit visit) {
  if (first.space == Space::kNone) return;
  if (step.run == 1) return visit(first);
  const std::uint32_t chunks = space_chunks(shape, rank, first.space);
  for (std::uint32_t i = 0; i < step.run; ++i) visit(chunk_of_run(first, i, chunks));
}
// Number of different data of the whole collective, in one tile: the data are numbered 0 .. data() - 1 (see datum
// at the top of this file).
std::uint32_t data(const PlanShape& shape);

// The required contents of out[chunk] of `rank`: the datum, and the rank that contributed the copied value. If
// `contributor` is kEveryRank, the output is the sum of all ranks' contributions to the datum.
struct ExpectedOutput {
  std::uint32_t datum = 0;
  std::uint32_t contributor = kEveryRank;

  bool operator==(const ExpectedOutput&) const = default;
};
ExpectedOutput expected_output(const PlanShape& shape, std::uint32_t rank, std::uint32_t chunk);

// For in-place calls: returns the output chunk that has the same memory as in[input_chunk] of `rank`, or kNoChunk
// if no output chunk has that memory. For example, in a reduce_scatter only the rank's own block of the input is
// also the output.
std::uint32_t output_alias(const PlanShape& shape, std::uint32_t rank, std::uint32_t input_chunk);

}  // namespace tutti

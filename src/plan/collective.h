// What each collective means, in chunks: what stands in every rank's input, what must stand in every rank's output, and
// which of the two are the same memory in place. The verifier proves plans against these functions, the interpreter
// judges by them, and the executor's Layout (plan/tiling.h) gives the same chunks their bytes. Pure functions.
//
// A buffer is a row of blocks, a block a row of PlanShape::chunks chunks; chunk c of a buffer is piece c % chunks of
// block c / chunks. A *datum* is what ranks add up or hand on: the pieces that different ranks contribute to the same
// datum belong to the same place of the message.
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
//   barrier         1 (empty)          1 (empty)         as all_reduce: who holds everybody's contribution has waited
//                                                        for everybody
// with p ranks and B = PlanShape::chunks.
#pragma once

#include <cstdint>

#include "base/collective_table.h"
#include "plan/plan.h"

namespace tutti {

inline constexpr std::uint32_t kEveryRank = ~std::uint32_t{0};
inline constexpr std::uint32_t kNoChunk = ~std::uint32_t{0};

// The blocks of one buffer of `rank`: `count` of them, of which the first is the block of rank `first` (0 where the
// blocks do not belong to ranks). A block's length is that of its rank in the v-variants.
struct Blocks {
  std::uint32_t count = 0;
  std::uint32_t first = 0;

  bool operator==(const Blocks&) const = default;
};
Blocks input_blocks(const Collective& collective, std::uint32_t rank);
Blocks output_blocks(const Collective& collective, std::uint32_t rank);

// Chunks of the whole buffer.
std::uint32_t input_chunks(const PlanShape& shape, std::uint32_t rank);
std::uint32_t output_chunks(const PlanShape& shape, std::uint32_t rank);
// Different data of the whole collective.
std::uint32_t data(const PlanShape& shape);

// What must stand in out[chunk] of `rank`.
struct Wanted {
  std::uint32_t datum = 0;
  std::uint32_t contributor = kEveryRank;

  bool operator==(const Wanted&) const = default;
};
Wanted wanted(const PlanShape& shape, std::uint32_t rank, std::uint32_t chunk);

// In place: the chunk of output that is the same memory as in[chunk] of `rank`; kNoChunk where there is none.
std::uint32_t output_alias(const PlanShape& shape, std::uint32_t rank, std::uint32_t input_chunk);

}  // namespace tutti

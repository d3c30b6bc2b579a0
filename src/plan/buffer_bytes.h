// The number of bytes of a collective that `tutti top` counts for its column MB/s. The recorder (src/engine) and the
// reader of recordings (tools/recorder) use the same function. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plan/collective.h"

namespace tutti {

// Returns the length of the longer one of a rank's input and output, in bytes. `block_bytes`: the length of a block.
// For example, in a gather the result is the length of all blocks at the root, and of one block elsewhere.
inline std::uint64_t longer_buffer_bytes(const Collective& collective, std::uint32_t rank, std::uint64_t block_bytes) {
  return block_bytes * std::max(input_blocks(collective, rank).count, output_blocks(collective, rank).count);
}

}  // namespace tutti

// Pieces: long calls of communicators some of whose ranks have a device are cut, so that a piece is copied from the
// device while the ranks add up the one before and an earlier one is copied back (docs/decisions/0013). Every rank cuts
// alike, those with host memory too: a piece is an operation, with a number of its own, for all of them. Pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/call_tag.h"
#include "plan/plan.h"

namespace tutti::detail {

// Least length of a piece. Guessed: at 25 GB/s a copy of 4 MiB takes 170 us, ten times what starting one and waking the
// ranks takes. A page less, since a staged piece has its word before it, and staging memory is dealt out in powers of
// two.
inline constexpr std::size_t kSegmentBytes = (std::size_t{4} << 20) - 4096;
// Of one call; longer calls have longer pieces. The first copy in and the last copy out overlap nothing, which is an
// eighth of all copies. No more, since a call whose first piece fails fails with all its pieces, and the boards of the
// transports keep eight failures for peers that come late.
inline constexpr std::size_t kMostSegments = 8;

struct Piece {
  std::uint64_t first = 0;  // element
  std::uint64_t count = 0;

  bool operator==(const Piece&) const = default;
};

// The pieces of a block, in order; one alone where that is shorter than two.
std::vector<Piece> cut(std::uint64_t count, std::size_t element_bytes);

// Whether an element's result does not depend on where in the message it stands, so that pieces have the bits of the
// whole, and whether each rank's buffers are one block, so that a piece of the message is a piece of them.
bool same_in_segments(const PlanShape& shape);

// By what the tag says alone: false where the call is certainly whole.
bool may_be_segmented(const CallTag& tag);

}  // namespace tutti::detail

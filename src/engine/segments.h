// Segments: if some ranks of a communicator have a GPU, long calls are divided into segments. Then three steps can
// overlap: one segment is copied from the GPU, the ranks reduce the segment before it, and an earlier one is copied
// back (docs/decisions/0013). Every rank divides a call in the same way, even if its buffers are in host memory,
// because each segment is an operation with a sequence number of its own. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/call_tag.h"
#include "plan/plan.h"

namespace tutti::detail {

// Minimum length of a segment. Estimate: at 25 GB/s a copy of 4 MiB takes 170 us, ten times as long as starting a
// copy and waking the ranks. One page is subtracted because a staged segment is preceded by its flag, and staging
// memory is allocated in powers of two.
inline constexpr std::size_t kSegmentBytes = (std::size_t{4} << 20) - 4096;
// Maximum number of segments of one call. Longer calls have longer segments. The first copy from the GPU and the
// last copy to it overlap with nothing, which is an eighth of all copies. The number is not higher because if the
// first segment fails, all segments fail, and a transport's board keeps only eight failures for peers that arrive
// late.
inline constexpr std::size_t kMostSegments = 8;

// A range of elements of a call's block.
struct Segment {
  std::uint64_t first = 0;  // index of the first element
  std::uint64_t count = 0;

  bool operator==(const Segment&) const = default;
};

// Returns the segments of a block, in order. A block shorter than two segments is returned as one.
std::vector<Segment> split_into_segments(std::uint64_t count, std::size_t element_bytes);

// Returns true if a plan gives the same result for a call as a whole and in segments. That requires that an
// element's result does not depend on its position in the message, so that the bits are equal, and that each rank's
// buffers are one block, so that a segment of the message is a segment of the buffers.
bool same_in_segments(const PlanShape& shape);

// Decides by the tag alone. Returns false only if the call is certainly not divided.
bool may_be_segmented(const CallTag& tag);

}  // namespace tutti::detail

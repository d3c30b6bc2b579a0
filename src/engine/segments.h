// Segments: if some rank of the job has a GPU, and the host carries out the calls of a communicator on device memory,
// long calls are divided into segments if may_be_segmented() is true for their tag and same_in_segments() for their
// plan. Then three steps can overlap: one segment is copied from the GPU, the ranks communicate for the segment before
// it, and an earlier one is copied back (docs/decisions/0013). Every rank must divide a call in the same way, even a
// rank with buffers in host memory, because each segment is an operation with a sequence number of its own. Pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/call_tag.h"
#include "plan/plan.h"

namespace tutti::detail {

// Maximum length of a segment in bytes if a call needs from 2 to kMostSegments segments. A call shorter than 2 *
// kSegmentBytes is one segment, and a call that would need more than kMostSegments segments has that many longer ones.
// Otherwise segments have at least about two thirds of this length, because of an estimate: at 25 GB/s a copy of 4 MiB
// takes 170 us, ten times as long as starting a copy and waking the ranks. One page is subtracted because staging
// memory is allocated in powers of two, and the first page of a staged segment contains its flag.
inline constexpr std::size_t kSegmentBytes = (std::size_t{4} << 20) - 4096;
// Maximum number of segments of one call. A call that would need more has longer segments. With eight segments, the
// first copy from the GPU and the last copy to it overlap with nothing. These are two of 16 copies, an eighth of the
// time. There are never more than eight, because if the first segment fails, all segments fail, and a status board
// keeps only the last eight failures for peers that arrive late.
inline constexpr std::size_t kMostSegments = 8;

// A range of elements of a call's block; the same range is used in the input and in the output.
struct Segment {
  std::uint64_t first = 0;  // index of the first element
  std::uint64_t count = 0;

  bool operator==(const Segment&) const = default;
};

// Returns the segments of a block of `count` elements, in order. A block shorter than 2 * kSegmentBytes is returned
// as one segment.
std::vector<Segment> split_into_segments(std::uint64_t count, std::size_t element_bytes);

// Returns true if a plan is known to give the same bits for a call as a whole and in segments. That has two conditions.
// The result of an element does not depend on its position in the buffer. And each rank's input and output are at most
// one block each, so that a range of elements is one range of each buffer.
bool same_in_segments(const PlanShape& shape);

// Whether a call with this tag may have been divided into segments, as far as the tag alone shows. False: it
// certainly was not. True: perhaps.
bool may_be_segmented(const CallTag& tag);

}  // namespace tutti::detail

#include "engine/segments.h"

#include <algorithm>

#include "base/assert.h"
#include "plan/collective.h"
#include "tutti/types.h"

namespace tutti::detail {
namespace {

constexpr std::size_t kPage = 4096;  // segments begin at multiples of this number of bytes from the start of the block

bool has_one_block(CollectiveKind kind) {
  return row_of(kind).has_data && row_of(kind).output != BlockSet::kNone && !has_blocks(kind);
}

}  // namespace

std::vector<Segment> split_into_segments(std::uint64_t count, std::size_t element_bytes) {
  TUTTI_ASSERT(element_bytes > 0 && kPage % element_bytes == 0);
  const std::uint64_t bytes = count * element_bytes;
  if (bytes < 2 * kSegmentBytes) return {{.first = 0, .count = count}};
  const std::uint64_t pieces = std::min<std::uint64_t>(kMostSegments, (bytes + kSegmentBytes - 1) / kSegmentBytes);
  const std::uint64_t each_bytes = ((bytes + pieces - 1) / pieces + kPage - 1) / kPage * kPage;
  const std::uint64_t each = each_bytes / element_bytes;
  std::vector<Segment> all;
  for (std::uint64_t first = 0; first < count; first += each) {
    all.push_back({.first = first, .count = std::min(each, count - first)});
  }
  return all;
}

// For collectives that reduce: a plan with one chunk treats all elements in the same way. Of the plans with several
// chunks, only two-shot is known to do so: the owner of a chunk adds the values of all ranks in rank order and rounds
// once. Order::kByRank is not sufficient: it defines the order of the ranks but not the grouping of the additions,
// which can differ between chunks, for example in a double tree.
bool same_in_segments(const PlanShape& shape) {
  if (!has_one_block(shape.collective.kind) || shape.algorithm == Algorithm::kUser) return false;
  return !reduces(shape.collective.kind) || shape.chunks == 1 || shape.algorithm == Algorithm::kTwoShot;
}

bool may_be_segmented(const CallTag& tag) {
  const DataType type{tag.type};
  if (!has_one_block(CollectiveKind{tag.kind}) || tag.digest != 0 || tag.type == kUserTag || !is_valid(type)) {
    return false;
  }
  return tag.count >= 2 * kSegmentBytes / size_of(type);
}

}  // namespace tutti::detail

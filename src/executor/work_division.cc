#include "executor/work_division.h"

#include <algorithm>

#include "transports/transport.h"

namespace tutti {
namespace {

constexpr std::uint64_t kSharedLineBytes = 64;  // the length of a cache line
constexpr std::uint64_t kCopyUnitBytes = 4096;  // the length of a page
// Limit for payload buffers, in bytes of input per message of the plan. Up to this, payload buffers are faster than the
// plan. Measured.
constexpr std::uint64_t kBufferBytesPerMessage = 1024;

}  // namespace

WorkDivision::WorkDivision(const Call& call, std::uint32_t rank, std::uint32_t ranks)
    : kind_(static_cast<CollectiveKind>(call.tag.kind)),
      root_(call.tag.root),
      rank_(rank),
      ranks_(ranks),
      block_bytes_(call.lengths.count * call.element_bytes),
      element_bytes_(call.element_bytes) {}

std::uint64_t WorkDivision::input_bytes() const { return block_bytes_ * block_count(row_of(kind_).input, ranks_); }

std::uint64_t WorkDivision::output_bytes() const { return block_bytes_ * block_count(row_of(kind_).output, ranks_); }

bool WorkDivision::input_is_used(std::uint32_t owner) const {
  if (row_of(kind_).root == RootHas::kTheInput) return owner == root_;
  return !root_helps() || owner != root_;
}

bool WorkDivision::output_is_used(std::uint32_t owner) const {
  if (row_of(kind_).root == RootHas::kTheInput) return owner != root_;
  return has_root(kind_) ? owner == root_ : gives_sum_to_all(kind_);
}

bool WorkDivision::uses(std::uint32_t peer) const {
  if (peer == rank_) return false;
  return !root_helps() || rank_ == root_ || peer == root_;
}

// Shares begin at multiples of a cache line from the start of the buffer. So no line is written by two ranks, if the
// buffer itself begins at a line.
std::pair<std::uint64_t, std::uint64_t> WorkDivision::share_of(std::uint32_t owner) const {
  const std::uint64_t line = std::max<std::uint64_t>(kSharedLineBytes, element_bytes_);
  const std::uint64_t lines = (block_bytes_ + line - 1) / line;
  return {std::min(lines * owner / ranks_ * line, block_bytes_),
          std::min(lines * (owner + 1) / ranks_ * line, block_bytes_)};
}

WorkItem WorkDivision::add_share(std::uint32_t owner) const {
  const auto [begin, end] = share_of(owner);
  return {.from = WorkItem::kAllRanks,
          .to = has_root(kind_) ? root_ : WorkItem::kAllRanks,
          .from_offset = begin,
          .to_offset = begin,
          .bytes = end - begin};
}

std::uint64_t WorkDivision::member_bytes() const {
  return block_bytes_ / ranks_ * (ranks_ - 1) / kCopyUnitBytes * kCopyUnitBytes;
}

bool WorkDivision::uses_payload_buffers() const {
  const std::uint64_t bytes = input_bytes();
  return reduces(kind_) && bytes <= kLongPayloadBytes && bytes <= kBufferBytesPerMessage * ranks_ * ranks_;
}

}  // namespace tutti

// WorkDivision: how the ranks divide the work of a single-copy collective (single_copy.h), and which memory they use
// for it. The answers depend only on the call and on the numbers of the ranks, so all ranks come to answers that fit
// together. An object is a value.
#pragma once

#include <cstdint>
#include <utility>

#include "base/collective_table.h"
#include "executor/collective_task.h"

namespace tutti {

// One unit of a rank's work: a range of bytes to copy from one rank to another, or to add from the inputs of all ranks.
struct WorkItem {
  static constexpr std::uint32_t kAllRanks = ~std::uint32_t{0};
  std::uint32_t from = 0;         // the rank to copy from, or kAllRanks: the sum of all inputs
  std::uint32_t to = 0;           // the rank to store to, or kAllRanks
  std::uint64_t from_offset = 0;  // the first byte to read, counted from the start of the input
  std::uint64_t to_offset = 0;    // the first byte to write, counted from the start of the output
  std::uint64_t bytes = 0;
};

class WorkDivision {
 public:
  WorkDivision() = default;
  // `rank`: this rank.
  WorkDivision(const Call& call, std::uint32_t rank, std::uint32_t ranks);

  CollectiveKind kind() const { return kind_; }
  std::uint32_t root() const { return root_; }
  std::uint32_t rank() const { return rank_; }
  std::uint32_t ranks() const { return ranks_; }
  // Length of one rank's block, or of the whole buffer if there are no blocks. In bytes, like all lengths here.
  std::uint64_t block_bytes() const { return block_bytes_; }
  std::uint64_t input_bytes() const;  // length of the input of one rank
  std::uint64_t output_bytes() const;

  // Whether the root copies a part of the block of each other rank whose memory it can use: in broadcast, scatter and
  // gather.
  bool root_helps() const { return has_root(kind_) && !reduces(kind_); }
  // Whether other ranks read the input of `owner`, and whether they write its output.
  bool input_is_used(std::uint32_t owner) const;
  bool output_is_used(std::uint32_t owner) const;
  // Whether this rank uses memory of `peer`, or `peer` uses memory of this rank. False for this rank itself.
  bool uses(std::uint32_t peer) const;

  // Whether the work is divided into shares, one for each rank, that any rank may do: in an all-reduce or reduce.
  bool has_shares() const { return reduces(kind_) && !has_blocks(kind_); }
  // The offsets in bytes at which the share of `owner` begins and ends, in the input and in the output.
  std::pair<std::uint64_t, std::uint64_t> share_of(std::uint32_t owner) const;
  // The addition of the share of `owner`.
  WorkItem add_share(std::uint32_t owner) const;

  // If root_helps(): how many bytes of its block a rank other than the root copies, counted from the start of the
  // block, if the root can use its memory. The root copies the rest, so that all ranks have about the same amount of
  // work if the blocks are long. A rank whose memory the root cannot use copies its whole block.
  std::uint64_t member_bytes() const;

  // Whether payload buffers replace memory that cannot be used. That is the case for reductions with short inputs. For
  // longer inputs the plan is used, because messages move long values faster. The limit grows with the square of the
  // number of ranks, because the number of messages of the plan does, but is never more than kLongPayloadBytes.
  bool uses_payload_buffers() const;

 private:
  CollectiveKind kind_ = CollectiveKind::kAllReduce;
  std::uint32_t root_ = 0;
  std::uint32_t rank_ = 0;
  std::uint32_t ranks_ = 1;
  std::uint64_t block_bytes_ = 0;
  std::uint64_t element_bytes_ = 1;
};

}  // namespace tutti

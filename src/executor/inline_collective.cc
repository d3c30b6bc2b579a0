// InlineCollective: writes this rank's value into its mailbox, reads those of the others, and computes the result.
#include "executor/inline_collective.h"

#include <fmt/format.h>

#include <cstring>

#include "base/assert.h"
#include "plan/collective.h"

namespace tutti {
namespace {

// The maximum number of blocks that a rank writes into its mailbox: the number of blocks of its input.
std::uint64_t blocks_written(CollectiveKind kind, std::uint32_t ranks) {
  return block_count(row_of(kind).input, ranks);
}

}  // namespace

InlineCollective::InlineCollective(MailboxBoard& marks) : marks_(marks) { sources_.reserve(marks.ranks()); }

bool InlineCollective::takes(const Collective& collective, Algorithm algorithm, std::uint64_t bytes) {
  const CollectiveRow& row = row_of(collective.kind);
  if (!has_plan(row.kind) || collective.ranks > kernels::kMaxSources) return false;
  const bool all_reduce = row.reduces && row.output == BlockSet::kOne && row.root == RootHas::kNothing;
  if (algorithm != (all_reduce ? Algorithm::kOneShot : Algorithm::kDirect)) return false;
  return bytes * blocks_written(collective.kind, collective.ranks) <= kMostInlineBytes;
}

void InlineCollective::start(const Call& call) {
  call_ = call;
  kind_ = CollectiveKind{call.tag.kind};
  bytes_ = call.lengths.count * call.element_bytes;
  payload_bytes_ = bytes_ * blocks_written(kind_, marks_.ranks());
  marks_.begin(call.tag);
  next_ = 0;
  bad_.reset();
  phase_ = Phase::kBeforeWriting;
  progress();
}

bool InlineCollective::progress() {
  if (phase_ == Phase::kBeforeWriting) {
    if (!marks_.may_write()) {
      marks_.await(Transport::kAnyRank);
      return false;
    }
    write();
    phase_ = Phase::kReading;
  }
  const std::uint32_t before = next_;
  if (phase_ == Phase::kReading && all_there() && finish()) {
    phase_ = Phase::kDone;
    marks_.fetch_next(payload_bytes_);
  }
  if (phase_ == Phase::kReading) marks_.await(next_);
  return phase_ == Phase::kDone || next_ != before;
}

// Writes this rank's payload and marks its mailbox as written. A rank without a payload, for example a rank other
// than the root of a broadcast, only writes the mark.
void InlineCollective::write() {
  marks_.open();
  const bool rooted_elsewhere = row_of(kind_).root == RootHas::kTheInput && rank() != call_.tag.root;
  if (payload_bytes_ > 0 && !rooted_elsewhere) {
    std::byte* to = payload_of(rank());
    if (call_.op == ReduceOp::kPreMulSum) {
      const kernels::Reduction scaling{.type = call_.type, .op = call_.op, .scaled_source = 0, .scale = call_.scale};
      kernels::reduce(scaling, std::span(&call_.input, 1), std::span(&to, 1), payload_bytes_ / call_.element_bytes);
    } else {
      std::memcpy(to, call_.input, payload_bytes_);
    }
  }
  marks_.close();
}

// Whether this rank reads the value of `peer`.
bool InlineCollective::needs(std::uint32_t peer) const {
  switch (row_of(kind_).root) {
    case RootHas::kTheInput: return peer == call_.tag.root;
    case RootHas::kTheOutput: return rank() == call_.tag.root;
    case RootHas::kNothing: return true;
  }
  return true;
}

// Whether all values that this rank needs have been written. Sets bad_ if a peer has written a value for a call
// with other arguments.
bool InlineCollective::all_there() {
  for (; next_ < ranks(); ++next_) {
    if (next_ == rank() || !needs(next_)) continue;
    const MailboxBoard::MailboxState state = marks_.look(next_);
    if (state == MailboxBoard::MailboxState::kOtherCall) bad_ = BadMessage{.peer = next_, .tag = {}};
    if (state != MailboxBoard::MailboxState::kWritten) return false;
  }
  return true;
}

// Computes the output. Returns false if a mailbox was overwritten during that time, because its owner has given the
// call up. In that case the output is invalid.
bool InlineCollective::finish() {
  if (bytes_ > 0) {
    const CollectiveRow& row = row_of(kind_);
    // The offset of this rank's block in the payload of each rank, in bytes.
    const std::uint64_t offset = row.input == BlockSet::kAll ? rank() * bytes_ : 0;
    if (row.root == RootHas::kTheOutput && rank() != call_.tag.root) {
      // Nothing to compute, because only the root has an output.
    } else if (row.reduces) {
      reduce(offset);
    } else if (row.output == BlockSet::kAll) {
      gather(offset);
    } else {
      copy(value_of(contributor_of(kind_, ranks(), call_.tag.root, rank(), 0)) + offset, call_.output);
    }
  }
  for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
    if (peer != rank() && needs(peer) && !marks_.holds(peer)) return false;
  }
  return true;
}

// The memory that holds the contribution of a rank: its payload or, for this rank itself, its input, which has the
// same contents (but is not scaled yet for kPreMulSum).
const std::byte* InlineCollective::value_of(std::uint32_t owner) const {
  return owner == rank() ? call_.input : payload_of(owner);
}

void InlineCollective::copy(const std::byte* from, std::byte* to) const {
  if (from != to) std::memcpy(to, from, bytes_);
}

// Combines one block of each rank, in rank order. `first_byte`: the offset of the block in the payload of each rank.
void InlineCollective::reduce(std::uint64_t first_byte) {
  const bool scaled = call_.op == ReduceOp::kPreMulSum;
  const kernels::Reduction reduction{.type = call_.type,
                                     .op = call_.op,
                                     .scaled_source = scaled ? static_cast<std::ptrdiff_t>(rank()) : -1,
                                     .scale = call_.scale,
                                     .divisor = call_.op == ReduceOp::kAvg ? ranks() : 1};
  sources_.clear();
  for (std::uint32_t owner = 0; owner < ranks(); ++owner) sources_.push_back(value_of(owner) + first_byte);
  kernels::reduce(reduction, sources_, std::span(&call_.output, 1), bytes_ / call_.element_bytes);
}

// Copies one block of each rank to its position in the output. `first_byte`: the offset of the block in the payload
// of each rank.
void InlineCollective::gather(std::uint64_t first_byte) {
  for (std::uint32_t owner = 0; owner < ranks(); ++owner) {
    copy(value_of(owner) + first_byte, call_.output + owner * bytes_);
  }
}

std::string InlineCollective::waits_for() {
  if (phase_ == Phase::kDone || (phase_ == Phase::kReading && next_ >= ranks())) return "nothing";
  return phase_ == Phase::kReading ? fmt::format("reading, no value from rank {}", next_)
                                   : fmt::format("writing, rank {} may still read the last value", marks_.reader());
}

std::vector<std::uint32_t> InlineCollective::waits_for_ranks() {
  if (phase_ == Phase::kDone || (phase_ == Phase::kReading && next_ >= ranks())) return {};
  return {phase_ == Phase::kReading ? next_ : marks_.reader()};
}

}  // namespace tutti

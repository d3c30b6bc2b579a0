// SingleCopyCollective: the phases of a call.
#include "executor/single_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/reduce.h"
#include "plan/collective.h"

namespace tutti {
namespace {

// If some ranks share a core: after this many polls without success, a rank on another core probably does not run, so
// its share is done here.
constexpr std::uint32_t kPollsBeforeHelp = 16;

// Divides the work of broadcast, scatter and gather: each rank other than the root copies the first part of its own
// block, and the root copies the rest of it and its own block. A rank whose memory the root cannot use copies its whole
// block.
void list_rooted_items(const WorkDivision& work, const PeerBuffers& buffers, std::vector<WorkItem>& items) {
  const std::uint32_t root = work.root();
  const std::uint64_t bytes = work.block_bytes();
  const bool to_root = row_of(work.kind()).root == RootHas::kTheOutput;
  const auto add = [&](std::uint32_t member, std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t at_root = begin + (has_blocks(work.kind()) ? member * bytes : 0);
    items.push_back({.from = to_root ? member : root,
                     .to = to_root ? root : member,
                     .from_offset = to_root ? begin : at_root,
                     .to_offset = to_root ? at_root : begin,
                     .bytes = end - begin});
  };
  if (work.rank() != root) return add(work.rank(), 0, buffers.own_is_offered() ? work.member_bytes() : bytes);
  add(root, 0, bytes);
  for (std::uint32_t i = 1; i < work.ranks(); ++i) {
    const std::uint32_t member = (root + i) % work.ranks();
    const PeerBuffers::Location& location = to_root ? buffers.input(member) : buffers.output(member);
    if (location.found()) add(member, work.member_bytes(), bytes);
  }
}

// The work of this rank in a collective without shares.
void list_items(const WorkDivision& work, const PeerBuffers& buffers, std::vector<WorkItem>& items) {
  const std::uint64_t bytes = work.block_bytes();
  const std::uint64_t own = work.rank() * bytes;
  if (reduces(work.kind())) return items.push_back({WorkItem::kAllRanks, work.rank(), own, 0, bytes});
  if (has_root(work.kind())) return list_rooted_items(work, buffers, items);
  const CollectiveRow& row = row_of(work.kind());
  const std::uint64_t from_offset = row.input == BlockSet::kAll ? own : 0;
  const std::uint32_t blocks = block_count(row.output, work.ranks());
  // Each rank starts with the block of its own number, so that not all ranks read from the same rank at the same time.
  for (std::uint32_t i = 0; i < blocks; ++i) {
    const std::uint32_t block = (work.rank() + i) % blocks;
    const std::uint32_t from = contributor_of(row.kind, work.ranks(), 0, work.rank(), block);
    items.push_back({from, work.rank(), from_offset, block * bytes, bytes});
  }
}

}  // namespace

SingleCopyCollective::SingleCopyCollective(MailboxBoard& marks, Transport& transport, const MachineChoices& choices)
    : marks_(marks),
      buffers_(call_, work_, marks, transport, choices, bad_),
      mover_(call_, work_, buffers_, marks, transport, bad_),
      shares_(marks) {}

bool SingleCopyCollective::takes(const Collective& collective, Algorithm algorithm, ReduceOp op) {
  const CollectiveKind kind = collective.kind;
  if (!has_data(kind) || !has_plan(kind) || collective.ranks < 2) return false;
  if (algorithm != (gives_sum_to_all(kind) ? Algorithm::kTwoShot : Algorithm::kDirect)) return false;
  return !reduces(kind) || (collective.ranks <= kernels::kMaxSources && op != ReduceOp::kPreMulSum);
}

void SingleCopyCollective::start(const Call& call) {
  call_ = call;
  work_ = WorkDivision(call_, marks_.rank(), marks_.ranks());
  marks_.begin(call.tag);
  bad_.reset();
  buffers_.begin();
  shares_.reset();
  next_ = 0;
  item_index_ = 0;
  moved_ = 0;
  items_.clear();
  phase_ = Phase::kBeforeWriting;
}

bool SingleCopyCollective::progress() {
  if (phase_ == Phase::kPlan) return plan_->progress();
  const Phase phase = phase_;
  const std::uint32_t next = next_;
  const std::size_t item = item_index_;
  const std::uint64_t moved = moved_;
  advance();
  if (phase_ != phase || next_ != next || item_index_ != item || moved_ != moved) return true;
  if (phase_ != Phase::kAwaiting) return false;
  const std::uint64_t seen = std::exchange(seen_steps_, marks_.steps_of(next_));
  return seen != seen_steps_;
}

void SingleCopyCollective::advance() {
  if (phase_ == Phase::kBeforeWriting) {
    if (!marks_.may_write(work_.uses_payload_buffers())) return marks_.await(Transport::kAnyRank);
    if (!buffers_.advertise()) return run_plan();
    phase_ = Phase::kReading;
  }
  if (phase_ == Phase::kReading && !read()) return;
  if (phase_ == Phase::kMoving) {
    if (item_index_ < items_.size() && !move_a_part()) return;
    if (item_index_ < items_.size()) return;
    marks_.mark_finished(part_of_);
    if (help(false)) return;
    begin_waiting();
  }
  if (phase_ != Phase::kAwaiting) return;
  if (all_finished()) {
    if (buffers_.own_output_is_fetched()) fetch_output();
    if (buffers_.some_output_is_fetched()) marks_.fetch_next_long(work_.block_bytes());
    phase_ = Phase::kDone;
  } else if (++polls_ >= kPollsBeforeHelp && help(true)) {
    phase_ = Phase::kMoving;
  }
}

void SingleCopyCollective::run_plan() {
  plan_->start(call_);
  phase_ = Phase::kPlan;
}

bool SingleCopyCollective::read() {
  for (; next_ < marks_.ranks(); ++next_) {
    if (!work_.uses(next_)) continue;
    switch (buffers_.look_up(next_)) {
      case PeerBuffers::PeerState::kFound: break;
      case PeerBuffers::PeerState::kRunsPlan: run_plan(); return true;
      case PeerBuffers::PeerState::kPending:
        if (!bad_ && all_shares_finished()) return true;
        buffers_.report_loss(next_);
        // If the peer has not written its mailbox, wait for that. If it has, but its memory is not mapped yet, the
        // mailbox will not change any more, so do not wait for it.
        marks_.await(marks_.look(next_) == MailboxBoard::MailboxState::kNothing ? next_ : Transport::kAnyRank);
        return false;
    }
  }
  buffers_.add_own();
  mover_.begin();
  begin_moving();
  return true;
}

bool SingleCopyCollective::all_shares_finished() {
  if (!work_.has_shares()) return false;
  for (std::uint32_t peer = 0; peer < marks_.ranks(); ++peer) {
    if (!marks_.has_finished(peer)) return false;
  }
  begin_waiting();
  return true;
}

void SingleCopyCollective::begin_moving() {
  phase_ = Phase::kMoving;
  part_of_ = marks_.rank();
  if (!work_.has_shares()) return list_items(work_, buffers_, items_);
  shares_.begin(buffers_.cpus());  // the same on all ranks, which have read the same mailboxes
  if (shares_.take(part_of_)) return begin_share(part_of_);
  if (!help(false)) begin_waiting();
}

void SingleCopyCollective::begin_waiting() {
  next_ = polls_ = 0;
  phase_ = Phase::kAwaiting;
}

void SingleCopyCollective::begin_share(std::uint32_t of) {
  items_.assign(1, work_.add_share(of));
  item_index_ = 0;
  moved_ = 0;
  part_of_ = of;
}

bool SingleCopyCollective::help(bool on_other_cores) {
  const std::optional<std::uint32_t> owner = shares_.take_of_others(on_other_cores);
  if (owner) begin_share(*owner);
  return owner.has_value();
}

bool SingleCopyCollective::all_hold() {
  for (std::uint32_t peer = 0; peer < marks_.ranks(); ++peer) {
    if (!work_.uses(peer) || marks_.holds(peer)) continue;
    bad_ = BadMessage{.peer = peer, .kind = Arrival::kWithdrawn, .tag = {}};
    return false;
  }
  return true;
}

bool SingleCopyCollective::move_a_part() {
  if (mover_.peer_exited() || !all_hold()) return false;
  const WorkItem& item = items_[item_index_];
  WorkItem part = item;
  part.from_offset += moved_;
  part.to_offset += moved_;
  part.bytes = std::min(item.bytes - moved_, mover_.most_bytes(item));
  if (part.bytes > 0 && !mover_.move(part, part_of_)) return false;
  moved_ += part.bytes;
  if (moved_ == item.bytes) {
    ++item_index_;
    moved_ = 0;
  } else {
    marks_.note_step(part_of_);
  }
  return all_hold();
}

void SingleCopyCollective::fetch_output() {
  for (std::uint32_t peer = 0; peer < marks_.ranks(); ++peer) {
    const auto [begin, end] = work_.share_of(peer);
    if (!shares_.took(peer) && begin < end)
      std::memcpy(call_.output + begin, marks_.long_payload_buffer(peer) + begin, end - begin);
  }
}

// Whether all parts are finished that use this rank's memory or produce results for it. Always true if this rank has
// offered no memory and fetches no results.
bool SingleCopyCollective::all_finished() {
  const bool waits = buffers_.own_is_offered() || buffers_.own_output_is_fetched();
  for (; waits && next_ < marks_.ranks(); ++next_) {
    if ((!work_.uses(next_) && next_ != marks_.rank()) || marks_.has_finished(next_)) continue;
    marks_.await(next_);
    return false;
  }
  return true;
}

std::string SingleCopyCollective::waits_for() {
  switch (phase_) {
    case Phase::kBeforeWriting: return fmt::format("writing, rank {} may still read the last value", marks_.reader());
    case Phase::kReading: return fmt::format("reading, no memory address from rank {}", next_);
    case Phase::kAwaiting: return fmt::format("the share of rank {}, which rank {} does", next_, marks_.claimer(next_));
    case Phase::kPlan: return plan_->waits_for();
    case Phase::kMoving:
    case Phase::kDone: break;
  }
  return "nothing";
}

std::vector<std::uint32_t> SingleCopyCollective::waits_for_ranks() {
  if (phase_ == Phase::kBeforeWriting) return {marks_.reader()};
  if (phase_ == Phase::kReading) return {next_};
  if (phase_ == Phase::kAwaiting) return {marks_.claimer(next_)};
  return phase_ == Phase::kPlan ? plan_->waits_for_ranks() : std::vector<std::uint32_t>();
}

}  // namespace tutti

// SingleCopyCollective: the phases of a call, and the division of the work among the ranks.
#include "executor/single_copy.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/reduce.h"
#include "plan/collective.h"

namespace tutti {
namespace {

using Kind = CollectiveKind;
// The most bytes that are moved between two checks of the marks. Moving them takes much less time than a rank that
// gives up waits for the others, so the others notice in time.
constexpr std::uint64_t kPartBytes = 1 << 20;
constexpr std::uint64_t kLineBytes = 64;
constexpr std::uint64_t kPageBytes = 4096;
// Operands that system calls have fetched, and the sum, must stay in a core's cache until they are used. Measured.
constexpr std::uint64_t kScratchBytes = 1 << 20;
constexpr std::uint64_t kLongestTile = 256 * 1024;
constexpr std::uint64_t kShortestTile = 16 * 1024;
constexpr std::uint32_t kPollsBeforeHelp = 16;          // before that, a rank on another core is probably running
constexpr std::uint64_t kBufferBytesPerMessage = 1024;  // below this, payload buffers are faster. Measured.

// The number of blocks in the input, and in the output, of a rank.
std::uint64_t blocks_in(Kind kind, std::uint32_t ranks) { return block_count(row_of(kind).input, ranks); }
std::uint64_t blocks_out(Kind kind, std::uint32_t ranks) { return block_count(row_of(kind).output, ranks); }

}  // namespace

SingleCopyCollective::SingleCopyCollective(MailboxBoard& marks, Transport& transport, std::uint32_t cores)
    : marks_(marks), transport_(transport), cores_(cores) {
  inputs_.resize(marks.ranks());
  outputs_.resize(marks.ranks());
  sources_.resize(marks.ranks());
  cpus_.resize(marks.ranks());
}

bool SingleCopyCollective::takes(const Collective& collective, Algorithm algorithm, ReduceOp op) {
  const Kind kind = collective.kind;
  if (!has_data(kind) || !has_plan(kind) || collective.ranks < 2) return false;
  if (algorithm != (gives_sum_to_all(kind) ? Algorithm::kTwoShot : Algorithm::kDirect)) return false;
  return !reduces(kind) || (collective.ranks <= kernels::kMaxSources && op != ReduceOp::kPreMulSum);
}

void SingleCopyCollective::start(const Call& call) {
  call_ = call;
  kind_ = static_cast<Kind>(call.tag.kind);
  block_bytes_ = call.lengths.count * call.element_bytes;
  marks_.begin(call.tag);
  bad_.reset();
  crowded_ = by_calls_ = peer_exited_ = offered_ = fetches_ = to_payload_buffers_ = false;
  next_ = 0;
  item_index_ = 0;
  moved_ = 0;
  work_items_.clear();
  phase_ = Phase::kBeforeWriting;
}

bool SingleCopyCollective::root_helps() const { return has_root(kind_) && !reduces(kind_); }

bool SingleCopyCollective::input_is_used(std::uint32_t owner) const {
  const bool at_root = owner == call_.tag.root;
  if (row_of(kind_).root == RootHas::kTheInput) return at_root;
  return !root_helps() || !at_root;
}

bool SingleCopyCollective::output_is_used(std::uint32_t owner) const {
  const bool at_root = owner == call_.tag.root;
  if (row_of(kind_).root == RootHas::kTheInput) return !at_root;
  return has_root(kind_) ? at_root : gives_sum_to_all(kind_);
}

bool SingleCopyCollective::uses(std::uint32_t peer) const {
  if (peer == rank()) return false;
  return !root_helps() || rank() == call_.tag.root || peer == call_.tag.root;
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
    if (!marks_.may_write(uses_payload_buffers())) return marks_.await(Transport::kAnyRank);
    if (!write()) return run_plan();
    phase_ = Phase::kReading;
  }
  if (phase_ == Phase::kReading && !read()) return;
  if (phase_ == Phase::kMoving) {
    if (item_index_ < work_items_.size() && !move_a_part()) return;
    if (item_index_ < work_items_.size()) return;
    marks_.mark_finished(part_of_);
    if (help(false)) return;
    next_ = polls_ = 0;
    phase_ = Phase::kAwaiting;
  }
  if (phase_ != Phase::kAwaiting) return;
  if (all_finished()) {
    if (fetches_) fetch_output();
    if (to_payload_buffers_) marks_.fetch_next_long(block_bytes_);
    phase_ = Phase::kDone;
  } else if (++polls_ >= kPollsBeforeHelp && help(true)) {
    phase_ = Phase::kMoving;
  }
}

bool SingleCopyCollective::write() {
  MemoryAdvert advert{};
  const bool possible = block_bytes_ > 0 && !(replaces_input_in_place(kind_) && call_.in_place);
  const bool usable =
      possible &&
      (!input_is_used(rank()) || show(call_.input_window, call_.input, advert.input_window, advert.input_offset)) &&
      (!output_is_used(rank()) || show(call_.output_window, call_.output, advert.output_window, advert.output_offset));
  const bool direct = usable || (possible && root_helps() && rank() != call_.tag.root);
  const auto is_own = [](std::uint32_t window) { return window != 0 && window != kInPayloadBuffer; };
  offered_ = usable && (is_own(advert.input_window) || is_own(advert.output_window));
  fetches_ = to_payload_buffers_ = usable && advert.output_window == kInPayloadBuffer;
  advert.by_plan = direct ? 0 : 1;
  advert.cpu = cpus_[rank()] = shares_out() ? sched_getcpu() : 0;
  static_assert(sizeof(MemoryAdvert) <= sizeof(MailboxMark::payload));
  marks_.open(uses_payload_buffers());
  std::memcpy(marks_.mark(rank()).payload.data(), &advert, sizeof advert);
  if (usable && advert.input_window == kInPayloadBuffer) {
    std::memcpy(marks_.long_payload_buffer(rank()), call_.input, block_bytes_ * blocks_in(kind_, ranks()));
  }
  marks_.close();
  return direct;
}

void SingleCopyCollective::run_plan() {
  plan_->start(call_);
  phase_ = Phase::kPlan;
}

bool SingleCopyCollective::uses_payload_buffers() const {
  const std::uint64_t bytes = block_bytes_ * blocks_in(kind_, ranks());
  return reduces(kind_) && bytes <= kLongPayloadBytes && bytes <= kBufferBytesPerMessage * ranks() * ranks();
}

bool SingleCopyCollective::show(const WindowRef& window, const std::byte* data, std::uint32_t& shown_window,
                                std::uint64_t& shown_offset) const {
  if (window.window != 0) {
    shown_window = window.window;
    shown_offset = window.offset;
    return true;
  }
  if (uses_attached_memory({.kind = kind_, .ranks = ranks()}, block_bytes_, transport_.attachment(), cores_)) {
    shown_window = kAttached;
    shown_offset = reinterpret_cast<std::uintptr_t>(data);
    return true;
  }
  if (uses_payload_buffers()) shown_window = kInPayloadBuffer;
  return uses_payload_buffers();
}

bool SingleCopyCollective::read() {
  for (; next_ < ranks(); ++next_) {
    if (!uses(next_)) continue;
    if (!read_of(next_)) {
      if (!bad_ && all_shares_finished()) return true;
      note_loss(next_);
      // If a peer has written its mailbox, but its memory was not found yet, its mailbox will not change any more.
      marks_.await(marks_.look(next_) == MailboxBoard::MailboxState::kNothing ? next_ : Transport::kAnyRank);
      return false;
    }
    if (phase_ == Phase::kPlan) return true;
  }
  inputs_[rank()] = {.data = const_cast<std::byte*>(call_.input)};  // NOLINT: only read
  outputs_[rank()] = {.data = call_.output};
  if (by_calls_ && scratch_.empty()) prepare_scratch();
  begin_moving();
  return true;
}

void SingleCopyCollective::note_loss(std::uint32_t peer) {
  auto loss = bad_ || missing_ == 0 ? std::nullopt : transport_.take_memory_loss(peer, missing_);
  if (loss) bad_ = BadMessage{.peer = peer, .kind = Arrival::kUnmapped, .tag = {}, .loss = *std::move(loss)};
}

bool SingleCopyCollective::all_shares_finished() {
  if (!shares_out()) return false;
  for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
    if (!marks_.has_finished(peer)) return false;
  }
  summed_.assign(ranks(), false);
  next_ = 0;
  phase_ = Phase::kAwaiting;
  return true;
}

void SingleCopyCollective::begin_moving() {
  phase_ = Phase::kMoving;
  part_of_ = rank();
  if (!shares_out()) return plan_work();
  // All ranks have read the same values, and reach the same result.
  crowded_ = false;
  for (std::uint32_t i = 0; i < ranks(); ++i) {
    crowded_ |= std::find(cpus_.begin(), cpus_.begin() + i, cpus_[i]) != cpus_.begin() + i;
  }
  summed_.assign(ranks(), false);
  if (take_share(rank()) || help(false)) return;
  next_ = polls_ = 0;
  phase_ = Phase::kAwaiting;
}

bool SingleCopyCollective::take_share(std::uint32_t of) {
  if (crowded_ && !marks_.claim(of)) return false;
  const auto [begin, end] = share_of(of);
  const std::uint32_t to = has_root(kind_) ? call_.tag.root : kAll;
  work_items_.assign(1, {.from = kAll, .to = to, .from_offset = begin, .to_offset = begin, .bytes = end - begin});
  item_index_ = 0;
  moved_ = 0;
  part_of_ = of;
  summed_[of] = true;
  return true;
}

bool SingleCopyCollective::help(bool on_other_cores) {
  if (!crowded_) return false;
  for (std::uint32_t i = 1; i < ranks(); ++i) {
    const std::uint32_t other = (rank() + i) % ranks();
    if ((on_other_cores || cpus_[other] == cpus_[rank()]) && take_share(other)) return true;
  }
  return false;
}

bool SingleCopyCollective::read_of(std::uint32_t peer) {
  missing_ = 0;
  const MailboxBoard::MailboxState state = marks_.look(peer);
  if (state == MailboxBoard::MailboxState::kOtherCall) bad_ = BadMessage{.peer = peer, .tag = {}};
  if (state != MailboxBoard::MailboxState::kWritten) return false;
  MemoryAdvert advert;
  std::memcpy(&advert, marks_.mark(peer).payload.data(), sizeof advert);
  if (!marks_.holds(peer)) return false;
  if (advert.by_plan != 0) {
    run_plan();
    return true;
  }
  inputs_[peer] = outputs_[peer] = {};
  cpus_[peer] = advert.cpu;
  if (root_helps() && peer != call_.tag.root && advert.input_window == 0 && advert.output_window == 0) return true;
  const WindowRef input{advert.input_window, advert.input_offset};
  const WindowRef output{advert.output_window, advert.output_offset};
  return (!input_is_used(peer) || find(peer, 0, input, block_bytes_ * blocks_in(kind_, ranks()), inputs_[peer])) &&
         (!output_is_used(peer) || find(peer, 1, output, block_bytes_ * blocks_out(kind_, ranks()), outputs_[peer]));
}

bool SingleCopyCollective::find(std::uint32_t peer, std::size_t which, const WindowRef& advert, std::uint64_t bytes,
                                BufferLocation& location) {
  const auto corrupt = [&] {
    bad_ = BadMessage{.peer = peer, .kind = Arrival::kCorrupt, .tag = {}};
    return false;
  };
  if (advert.window == 0 || advert.offset % call_.element_bytes != 0) return corrupt();
  if (advert.window == kInPayloadBuffer) {
    if (!uses_payload_buffers()) return corrupt();
    location = {.data = which == 0 ? marks_.long_payload_buffer(peer) : nullptr};  // the peer copies its output itself
    to_payload_buffers_ |= which != 0;
    return true;
  }
  if (advert.window != kAttached) {
    missing_ = advert.window;
    const auto data = transport_.peer_memory(peer, which, advert, bytes);
    if (!data) return false;
    location = {.data = *data};
    return *data != nullptr || corrupt();
  }
  if (transport_.attachment() == Attachment::kNone || advert.offset == 0) return corrupt();
  const bool pointer = transport_.attachment() == Attachment::kPointers;
  location = {
      .data = pointer ? reinterpret_cast<std::byte*>(advert.offset) : nullptr,  // NOLINT: a thread of this process
      .address = advert.offset};
  by_calls_ |= !pointer;
  return true;
}

// Shares consist of whole cache lines, so that no line is written by two ranks.
std::pair<std::uint64_t, std::uint64_t> SingleCopyCollective::share_of(std::uint32_t owner) const {
  const std::uint64_t line = std::max<std::uint64_t>(kLineBytes, call_.element_bytes);
  const std::uint64_t lines = (block_bytes_ + line - 1) / line;
  return {std::min(lines * owner / ranks() * line, block_bytes_),
          std::min(lines * (owner + 1) / ranks() * line, block_bytes_)};
}

void SingleCopyCollective::plan_work() {
  const std::uint64_t bytes = block_bytes_;
  const std::uint64_t own = rank() * bytes;
  if (reduces(kind_)) return work_items_.push_back({kAll, rank(), own, 0, bytes});
  if (has_root(kind_)) return plan_rooted_work();
  const CollectiveRow& row = row_of(kind_);
  const std::uint64_t from_offset = row.input == BlockSet::kAll ? own : 0;
  const std::uint32_t blocks = block_count(row.output, ranks());
  // Start at the next rank, so that not all ranks read from the same one.
  for (std::uint32_t i = 0; i < blocks; ++i) {
    const std::uint32_t block = (rank() + i) % blocks;
    work_items_.push_back(
        {contributor_of(kind_, ranks(), 0, rank(), block), rank(), from_offset, block * bytes, bytes});
  }
}

// The root does the end of the block of each other rank.
void SingleCopyCollective::plan_rooted_work() {
  const std::uint32_t root = call_.tag.root;
  const std::uint64_t bytes = block_bytes_;
  const std::uint64_t shared = bytes / ranks() * (ranks() - 1) / kPageBytes * kPageBytes;
  const bool to_root = row_of(kind_).root == RootHas::kTheOutput;
  const auto item = [&](std::uint32_t member, std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t at_root = begin + (has_blocks(kind_) ? member * bytes : 0);
    work_items_.push_back({.from = to_root ? member : root,
                           .to = to_root ? root : member,
                           .from_offset = to_root ? begin : at_root,
                           .to_offset = to_root ? at_root : begin,
                           .bytes = end - begin});
  };
  if (rank() != root) return item(rank(), 0, offered_ ? shared : bytes);
  item(root, 0, bytes);
  for (std::uint32_t i = 1; i < ranks(); ++i) {
    const std::uint32_t member = (root + i) % ranks();
    const BufferLocation& location = to_root ? inputs_[member] : outputs_[member];
    if (location.data != nullptr || location.address != 0) item(member, shared, bytes);
  }
}

bool SingleCopyCollective::all_hold() {
  for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
    if (!uses(peer) || marks_.holds(peer)) continue;
    bad_ = BadMessage{.peer = peer, .kind = Arrival::kWithdrawn, .tag = {}};
    return false;
  }
  return true;
}

bool SingleCopyCollective::move_a_part() {
  if (peer_exited_ || !all_hold()) return false;
  const WorkItem& item = work_items_[item_index_];
  const bool sum = item.from == kAll;
  WorkItem part = item;
  part.from_offset += moved_;
  part.to_offset += moved_;
  part.bytes = std::min(item.bytes - moved_, sum && by_calls_ ? tile_bytes_ : kPartBytes);
  if (part.bytes > 0 && !(sum ? add_part(part) : copy_part(part))) return false;
  moved_ += part.bytes;
  if (moved_ == item.bytes) {
    ++item_index_;
    moved_ = 0;
  } else {
    marks_.note_step(part_of_);
  }
  return all_hold();
}

bool SingleCopyCollective::copy_part(const WorkItem& part) {
  const std::byte* from = inputs_[part.from].data;
  std::byte* to = outputs_[part.to].data;
  if (from == nullptr) return fetch(part.from, part.from_offset, to + part.to_offset, part.bytes);
  from += part.from_offset;
  if (to == nullptr) return store(part.to, part.to_offset, from, part.bytes);
  to += part.to_offset;
  if (from == to) return true;
  kernels::Reduction copy;
  copy.type = DataType::kUint8;
  copy.bytes_until_reuse = block_bytes_ * ranks();
  kernels::reduce(copy, std::span(&from, 1), std::span(&to, 1), part.bytes);
  return true;
}

bool SingleCopyCollective::add_part(const WorkItem& part) {
  const std::uint64_t bytes = part.bytes;
  for (std::uint32_t owner = 0; owner < ranks(); ++owner) {
    sources_[owner] = inputs_[owner].data == nullptr ? scratch(owner) : inputs_[owner].data + part.from_offset;
    if (inputs_[owner].data == nullptr && !fetch(owner, part.from_offset, scratch(owner), bytes)) return false;
  }
  destinations_.clear();
  const std::uint32_t first = part.to == kAll ? 0 : part.to;
  const std::uint32_t end = part.to == kAll ? ranks() : part.to + 1;
  const bool own = first <= rank() && rank() < end;
  // System calls store it from here.
  std::byte* sum = own ? outputs_[rank()].data + part.to_offset : scratch(ranks());
  bool stored_by_calls = false;
  for (std::uint32_t owner = first; owner < end; ++owner) {
    if (outputs_[owner].data != nullptr) destinations_.push_back(outputs_[owner].data + part.to_offset);
    stored_by_calls |= outputs_[owner].address != 0 && outputs_[owner].data == nullptr;
  }
  if (to_payload_buffers_) destinations_.push_back(marks_.long_payload_buffer(part_of_) + part.to_offset);
  if (stored_by_calls && !own) destinations_.push_back(sum);
  kernels::Reduction how;
  how.type = call_.type;
  how.op = call_.op;
  how.divisor = call_.op == ReduceOp::kAvg ? ranks() : 1;
  how.bytes_until_reuse = by_calls_ ? bytes : block_bytes_ * ranks();
  kernels::reduce(how, sources_, destinations_, bytes / call_.element_bytes);
  for (std::uint32_t owner = first; stored_by_calls && owner < end; ++owner) {
    if (outputs_[owner].address != 0 && outputs_[owner].data == nullptr && !store(owner, part.to_offset, sum, bytes))
      return false;
  }
  return true;
}

bool SingleCopyCollective::fetch(std::uint32_t peer, std::uint64_t offset, std::byte* to, std::uint64_t bytes) {
  return check_access(peer, transport_.read_memory(peer, inputs_[peer].address + offset, to, bytes));
}

bool SingleCopyCollective::store(std::uint32_t peer, std::uint64_t offset, const std::byte* from, std::uint64_t bytes) {
  return check_access(peer, transport_.write_memory(peer, outputs_[peer].address + offset, from, bytes));
}

bool SingleCopyCollective::check_access(std::uint32_t peer, MemoryAccess access) {
  switch (access) {
    case MemoryAccess::kDone: return true;
    case MemoryAccess::kGone: peer_exited_ = true; break;
    case MemoryAccess::kOwnRefused: bad_ = BadMessage{.peer = rank(), .kind = Arrival::kUnreachable, .tag = {}}; break;
    case MemoryAccess::kRefused:
    case MemoryAccess::kForbidden:
      const Arrival why = access == MemoryAccess::kRefused ? Arrival::kUnreachable : Arrival::kForbidden;
      bad_ = BadMessage{.peer = peer, .kind = marks_.holds(peer) ? why : Arrival::kWithdrawn, .tag = {}};
      break;
  }
  return false;
}

void SingleCopyCollective::prepare_scratch() {
  const std::uint64_t wanted = std::clamp(kScratchBytes / (ranks() + 1), kShortestTile, kLongestTile);
  tile_bytes_ = wanted / kPageBytes * kPageBytes;
  scratch_.resize((ranks() + 1) * tile_bytes_ + kPageBytes);
  const auto start = reinterpret_cast<std::uintptr_t>(scratch_.data());
  scratch_begin_ = scratch_.data() + (kPageBytes - start % kPageBytes) % kPageBytes;
}

void SingleCopyCollective::fetch_output() {
  for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
    const auto [begin, end] = share_of(peer);
    if (!summed_[peer] && begin < end)
      std::memcpy(call_.output + begin, marks_.long_payload_buffer(peer) + begin, end - begin);
  }
}

// Whether all ranks have finished that use this rank's memory or leave results for it.
bool SingleCopyCollective::all_finished() {
  for (; (offered_ || fetches_) && next_ < ranks(); ++next_) {
    if ((!uses(next_) && next_ != rank()) || marks_.has_finished(next_)) continue;
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

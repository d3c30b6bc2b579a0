#include "executor/slate.h"

#include <fmt/format.h>

#include <cstring>

#include "base/assert.h"
#include "plan/collective.h"

namespace tutti {
namespace {

using Kind = CollectiveKind;

// Up to here a value goes through slates where all ranks read all of them, or through as many bytes of one slate.
// Measured, see docs/decisions/0010.
constexpr std::uint64_t kMostBytes = kSlateBytes;

// The stores that follow are seen after those before, as far as the peers' loads go.
void order_stores(std::atomic<std::uint64_t>& number) {
#if defined(__SANITIZE_THREAD__)  // which does not know fences
  number.exchange(0, std::memory_order_acq_rel);
#else
  static_cast<void>(number);
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

void order_loads() {
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
  return hash ^ hash >> 32;
}

std::uint64_t digest_of(const CallTag& tag) {
  std::uint64_t hash = mixed(tag.sequence, tag.count);
  hash = mixed(hash, std::uint64_t{tag.kind} | std::uint64_t{tag.type} << 8 | std::uint64_t{tag.op} << 16 |
                         std::uint64_t{tag.algorithm} << 24 | std::uint64_t{tag.tile_bytes} << 32);
  return mixed(hash, std::uint64_t{tag.root} | std::uint64_t{tag.digest} << 32);
}

// Blocks that a rank of this collective writes at most.
std::uint64_t blocks_shown(Kind kind, std::uint32_t ranks) {
  return kind == Kind::kReduceScatter || kind == Kind::kAllToAll || kind == Kind::kScatter ? ranks : 1;
}

}  // namespace

SlateRun::SlateRun(std::uint32_t rank, Transport& transport)
    : rank_(rank), transport_(transport), slates_(*transport.slates()) {
  TUTTI_ASSERT(rank < ranks());
  sources_.reserve(ranks());
}

bool SlateRun::takes(const Collective& collective, Algorithm algorithm, std::uint64_t bytes) {
  if (collective.kind == Kind::kSendReceive || collective.ranks > kernels::kMaxSources) return false;
  const bool all_reduce = collective.kind == Kind::kAllReduce || collective.kind == Kind::kBarrier;
  if (algorithm != (all_reduce ? Algorithm::kOneShot : Algorithm::kDirect)) return false;
  return bytes * blocks_shown(collective.kind, collective.ranks) <= kMostBytes;
}

void SlateRun::start(const Call& call) {
  call_ = call;
  kind_ = static_cast<Kind>(call.tag.kind);
  bytes_ = call.lengths.count * call.element_bytes;
  shown_bytes_ = bytes_ * blocks_shown(kind_, ranks());
  turn_ = call.tag.sequence % kSlates;
  digest_ = digest_of(call.tag);
  next_ = 0;
  bad_.reset();
  phase_ = Phase::kBeforeWriting;
  progress();
}

bool SlateRun::progress() {
  if (phase_ == Phase::kBeforeWriting) {
    if (!others_have_read()) {
      if (awaited_ != Transport::kAnyRank) transport_.await_slate(awaited_ = Transport::kAnyRank);
      return false;
    }
    write();
    next_ = 0;
    phase_ = Phase::kReading;
  }
  const std::uint32_t before = next_;
  if (phase_ == Phase::kReading && all_there() && finish()) phase_ = Phase::kDone;
  if (phase_ == Phase::kReading && awaited_ != next_) transport_.await_slate(awaited_ = next_);
  return phase_ == Phase::kDone || next_ != before;
}

// That call in which this slate was used last. Who has come to a later one has finished it.
bool SlateRun::others_have_read() {
  const std::uint64_t used = used_[turn_];
  if (used == 0 || used < all_seen_) return true;
  for (; next_ < ranks(); ++next_) {
    if (next_ == rank_) continue;
    bool later = false;
    for (const SlateMark* marks : slates_.marks) later |= marks[next_].number.load(std::memory_order_acquire) > used;
    if (!later && !transport_.peer_has_left(next_, used)) return false;
  }
  return true;
}

void SlateRun::write() {
  SlateMark& mark = mark_of(rank_);
  used_[turn_] = call_.tag.sequence;
  mark.number.store(0, std::memory_order_relaxed);
  order_stores(mark.number);
  mark.digest.store(digest_, std::memory_order_relaxed);
  const bool rooted_elsewhere = (kind_ == Kind::kBroadcast || kind_ == Kind::kScatter) && rank_ != call_.tag.root;
  if (shown_bytes_ > 0 && !rooted_elsewhere) {
    std::byte* to = payload_of(rank_);
    if (call_.op == ReduceOp::kPreMulSum) {
      const kernels::Reduction scaling{.type = call_.type, .op = call_.op, .scaled_source = 0, .scale = call_.scale};
      kernels::reduce(scaling, std::span(&call_.input, 1), std::span(&to, 1), shown_bytes_ / call_.element_bytes);
    } else {
      std::memcpy(to, call_.input, shown_bytes_);
    }
  }
  mark.number.store(call_.tag.sequence, std::memory_order_seq_cst);  // hands over all of the above; pairs with arm()
  transport_.ring_sleepers();
}

bool SlateRun::needs(std::uint32_t peer) const {
  switch (kind_) {
    case Kind::kBroadcast:
    case Kind::kScatter: return peer == call_.tag.root;
    case Kind::kReduce:
    case Kind::kGather: return rank_ == call_.tag.root;
    default: return true;
  }
}

bool SlateRun::all_there() {
  for (; next_ < ranks(); ++next_) {
    if (next_ == rank_ || !needs(next_)) continue;
    const SlateMark& mark = mark_of(next_);
    if (mark.number.load(std::memory_order_seq_cst) != call_.tag.sequence) return false;
    if (mark.digest.load(std::memory_order_relaxed) != digest_) {
      order_loads();
      if (mark.number.load(std::memory_order_acquire) == call_.tag.sequence)
        bad_ = BadMessage{.peer = next_, .tag = {}};
      return false;
    }
  }
  return true;
}

bool SlateRun::finish() {
  if (bytes_ > 0) {
    const bool at_root = rank_ == call_.tag.root;
    const std::uint64_t own = rank_ * bytes_;
    switch (kind_) {
      case Kind::kAllReduce: reduce(0); break;
      case Kind::kReduceScatter: reduce(own); break;
      case Kind::kReduce:
        if (at_root) reduce(0);
        break;
      case Kind::kAllGather: gather(0); break;
      case Kind::kAllToAll: gather(own); break;
      case Kind::kGather:
        if (at_root) gather(0);
        break;
      case Kind::kBroadcast: copy(shown_by(call_.tag.root), call_.output); break;
      case Kind::kScatter: copy(shown_by(call_.tag.root) + own, call_.output); break;
      case Kind::kBarrier:
      case Kind::kSendReceive: break;
    }
  }
  order_loads();
  for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
    if (peer == rank_ || !needs(peer)) continue;
    // It has given this call up, as its board says, and written the next value while we read.
    if (mark_of(peer).number.load(std::memory_order_acquire) != call_.tag.sequence) return false;
  }
  if (!has_root(kind_)) all_seen_ = call_.tag.sequence;
  return true;
}

// What a rank has shown; this rank's own stands in its input, too.
const std::byte* SlateRun::shown_by(std::uint32_t rank) const { return rank == rank_ ? call_.input : payload_of(rank); }

void SlateRun::copy(const std::byte* from, std::byte* to) const {
  if (from != to) std::memcpy(to, from, bytes_);
}

// Sums what all have shown from that byte on, in rank order.
void SlateRun::reduce(std::uint64_t first_byte) {
  const bool scaled = call_.op == ReduceOp::kPreMulSum;
  const kernels::Reduction reduction{.type = call_.type,
                                     .op = call_.op,
                                     .scaled_source = scaled ? static_cast<std::ptrdiff_t>(rank_) : -1,
                                     .scale = call_.scale,
                                     .divisor = call_.op == ReduceOp::kAvg ? ranks() : 1};
  sources_.clear();
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) sources_.push_back(shown_by(rank) + first_byte);
  kernels::reduce(reduction, sources_, std::span(&call_.output, 1), bytes_ / call_.element_bytes);
}

// Copies one block of each rank, from that byte of what it has shown, to its place in the output.
void SlateRun::gather(std::uint64_t first_byte) {
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    copy(shown_by(rank) + first_byte, call_.output + rank * bytes_);
  }
}

std::string SlateRun::waits_for() {
  if (phase_ == Phase::kDone || next_ >= ranks()) return "nothing";
  return phase_ == Phase::kReading ? fmt::format("reading, no value from rank {}", next_)
                                   : fmt::format("writing, rank {} may still read the last value", next_);
}

}  // namespace tutti

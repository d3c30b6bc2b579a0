// MailboxBoard: implements the following protocol of marks and payloads (a seqlock). A writer sets `number` of its
// mark to 0, writes the payload, and sets `number` to the sequence number of the call. A reader checks that
// `number` is that of the call, reads the payload, and checks `number` again (holds()).
#include "executor/mailbox_board.h"

#include <algorithm>

#include "base/assert.h"

namespace tutti {
namespace {

// Makes sure that other ranks see the stores before this call earlier than the stores after it.
void order_stores(std::atomic<std::uint64_t>& number) {
#if defined(__SANITIZE_THREAD__)  // ThreadSanitizer does not support fences, so use an atomic
  number.exchange(0, std::memory_order_acq_rel);
#else
  static_cast<void>(number);
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

constexpr std::uint64_t kLineBytes = 64;

void fetch_for_writing(const void* line) {
// Uses inline assembly, because the builtin emits prefetchw only if the compiler's options name a processor that has
// it.
#if defined(__x86_64__)
  asm volatile("prefetchw %0" ::"m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

void fetch_all_for_writing(const std::byte* payload_buffer, std::uint64_t bytes) {
  for (std::uint64_t line = 0; line < bytes; line += kLineBytes) fetch_for_writing(payload_buffer + line);
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

}  // namespace

MailboxBoard::MailboxBoard(std::uint32_t rank, Transport& transport)
    : rank_(rank), transport_(transport), mailboxes_(*transport.mailboxes()), seen_(mailboxes_.ranks, 0) {
  TUTTI_ASSERT(rank < mailboxes_.ranks);
}

void MailboxBoard::begin(const CallTag& tag) {
  sequence_ = tag.sequence;
  digest_ = digest_of(tag);
  turn_ = sequence_ % kMailboxes;
  reader_ = 0;
}

bool MailboxBoard::may_write(bool long_payload_buffer) {
  return all_past(used_[turn_]) && (!long_payload_buffer || all_past(long_used_[sequence_ % kLongPayloadBuffers]));
}

// Whether all other ranks are known to have finished the call with the number `used` (0: no call). If not, reader_ is
// the lowest rank that may not have finished it.
bool MailboxBoard::all_past(std::uint64_t used) {
  if (used == 0 || used < all_entered_) return true;
  for (reader_ = 0; reader_ < ranks(); ++reader_) {
    if (reader_ == rank_ || seen_[reader_] > used) continue;
    seen_[reader_] = newest_of(reader_);
    if (seen_[reader_] <= used && !transport_.peer_has_left(reader_, used)) return false;
  }
  return true;
}

// The number of the last call for which `peer` has written a mailbox, as far as its marks show, or 0.
std::uint64_t MailboxBoard::newest_of(std::uint32_t peer) const {
  std::uint64_t newest = 0;
  for (const MailboxMark* marks : mailboxes_.marks) {
    newest = std::max(newest, marks[peer].number.load(std::memory_order_acquire));
  }
  return newest;
}

void MailboxBoard::open(bool long_payload_buffer) {
  used_[turn_] = sequence_;
  if (long_payload_buffer) long_used_[sequence_ % kLongPayloadBuffers] = sequence_;
  MailboxMark& own = mark(rank_);
  own.number.store(0, std::memory_order_relaxed);
  order_stores(own.number);
  own.digest.store(digest_, std::memory_order_relaxed);
}

void MailboxBoard::close() {
  // Publishes the payload. The order must be seq_cst: a rank arms its doorbell, looks at the mailbox once more, and
  // then sleeps. So either it sees this store, or ring_sleepers() sees that its doorbell is armed.
  mark(rank_).number.store(sequence_, std::memory_order_seq_cst);
  transport_.ring_sleepers(rank_);
}

void MailboxBoard::take_back(std::uint64_t sequence) {
  const std::size_t turn = sequence % kMailboxes;
  if (used_[turn] == sequence) mailboxes_.marks[turn][rank_].number.store(0, std::memory_order_seq_cst);
}

void MailboxBoard::fetch_next(std::uint64_t bytes) const {
  const std::size_t next = (turn_ + 1) % kMailboxes;
  fetch_for_writing(&mailboxes_.marks[next][rank_]);
  if (bytes > sizeof(MailboxMark::payload)) fetch_all_for_writing(mailboxes_.payload_buffers[next][rank_], bytes);
}

void MailboxBoard::fetch_next_long(std::uint64_t bytes) const {
  fetch_next(0);
  fetch_all_for_writing(mailboxes_.long_payload_buffers[(sequence_ + 1) % kLongPayloadBuffers][rank_], bytes);
}

MailboxBoard::MailboxState MailboxBoard::look(std::uint32_t peer) const {
  const MailboxMark& its = mark(peer);
  if (its.number.load(std::memory_order_seq_cst) != sequence_) return MailboxState::kNothing;
  if (its.digest.load(std::memory_order_relaxed) == digest_) return MailboxState::kWritten;
  return holds(peer) ? MailboxState::kOtherCall : MailboxState::kNothing;
}

std::optional<std::uint32_t> MailboxBoard::disagreement() const {
  for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
    if (peer != rank_ && look(peer) == MailboxState::kOtherCall) return peer;
  }
  return std::nullopt;
}

void MailboxBoard::show_tag(const CallTag& tag) {
  begin(tag);
  if (!may_write()) return;
  open();
  close();
}

bool MailboxBoard::holds(std::uint32_t peer) const {
  order_loads();
  return mark(peer).number.load(std::memory_order_seq_cst) == sequence_;
}

// `claimed` holds the number of the last call in which the part was claimed, and only grows. The reason: a rank may
// have been suspended during a call that has failed since, and when it continues, it must not overwrite the number
// of a later call.
bool MailboxBoard::claim(std::uint32_t part_of) {
  std::atomic<std::uint64_t>& claimed = mark(part_of).claimed;
  std::uint64_t seen = claimed.load(std::memory_order_relaxed);
  if (seen >= sequence_ || !claimed.compare_exchange_strong(seen, sequence_, std::memory_order_acq_rel)) return false;
  mark(part_of).claimer.store(rank_, std::memory_order_relaxed);
  return true;
}

void MailboxBoard::mark_finished(std::uint32_t part_of) {
  std::atomic<std::uint64_t>& finished = mark(part_of).finished;
  std::uint64_t seen = finished.load(std::memory_order_relaxed);
  if (seen < sequence_) finished.compare_exchange_strong(seen, sequence_, std::memory_order_seq_cst);
  transport_.ring_sleepers(part_of);
}

void MailboxBoard::note_step(std::uint32_t part_of) { mark(part_of).steps.fetch_add(1, std::memory_order_relaxed); }

std::uint64_t MailboxBoard::steps_of(std::uint32_t part_of) const {
  return mark(part_of).steps.load(std::memory_order_relaxed);
}

// A value of an earlier call is ignored. Other ranks write the value, so it is not trusted: an invalid rank is ignored,
// because callers use the result as an index.
std::uint32_t MailboxBoard::claimer(std::uint32_t part_of) const {
  if (mark(part_of).claimed.load(std::memory_order_acquire) != sequence_) return part_of;
  const std::uint32_t claimer = mark(part_of).claimer.load(std::memory_order_relaxed);
  return claimer < ranks() ? claimer : part_of;
}

bool MailboxBoard::has_finished(std::uint32_t peer) const {
  return mark(peer).finished.load(std::memory_order_seq_cst) == sequence_;
}

}  // namespace tutti

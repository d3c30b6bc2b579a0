// MailboxBoard: coordinates the use of the shared-memory mailboxes (ShmMailboxes in transport.h) by one call after
// another. Shared by the tasks that use mailboxes, InlineCollective and SingleCopyCollective. Only the engine's
// driver uses it.
//
// Each rank has several mailboxes. A call uses the one that its sequence number selects, so that calls take turns.
// The owner of a mailbox may write it again only when all other ranks have finished the call for which it was
// written last. They have finished it if they have reached a later call. After a call in which all ranks wait for
// all, this is known without a check. Otherwise (for example at the root of a broadcast) the owner checks before it
// writes. The same holds for the long payload buffers, of which there are fewer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/call_tag.h"
#include "transports/transport.h"

namespace tutti {

class MailboxBoard {
 public:
  // transport.mailboxes() must not be null. `transport` must outlive this object.
  MailboxBoard(std::uint32_t rank, Transport& transport);

  std::uint32_t rank() const { return rank_; }
  std::uint32_t ranks() const { return mailboxes_.ranks; }
  // Starts the next call that uses mailboxes.
  void begin(const CallTag& tag);
  // Records that all ranks have entered that call.
  void note_all_entered(std::uint64_t sequence) { all_entered_ = sequence; }

  // Whether this rank may write its mailbox now and, with `long_payload_buffer`, its long payload buffer as well. If
  // not, other ranks may still read the previous contents.
  bool may_write(bool long_payload_buffer = false);
  // After may_write() has returned false: the first rank that may still read.
  std::uint32_t reader() const { return reader_; }
  void open(bool long_payload_buffer = false);  // call before the payload is written
  void close();  // call after that; publishes the payload and wakes ranks that wait for it
  // Withdraws the mark of that call, if it was written: ranks that look from now on see nothing. The store is
  // seq_cst, so a peer that still saw the mark has stored its `entered` counter before this store.
  void take_back(std::uint64_t sequence);
  std::byte* payload_buffer(std::uint32_t of) const { return mailboxes_.payload_buffers[turn_][of]; }
  std::byte* long_payload_buffer(std::uint32_t of) const {
    return mailboxes_.long_payload_buffers[sequence_ % kLongPayloadBuffers][of];
  }
  MailboxMark& mark(std::uint32_t of) const { return mailboxes_.marks[turn_][of]; }

  // Called after a call: prefetches the cache lines of the next mailbox for writing, for a payload of `bytes` bytes.
  // At this time no rank waits for this one, and the other ranks have read the old contents.
  void fetch_next(std::uint64_t bytes) const;
  void fetch_next_long(std::uint64_t bytes) const;  // the same for the long payload buffer

  // The state of a peer's mailbox: not written for this call yet, written for it, or written for a call with the
  // same number but other arguments.
  enum class MailboxState : std::uint8_t { kNothing, kWritten, kOtherCall };
  MailboxState look(std::uint32_t peer) const;
  // Returns the first peer that has written its mailbox for a call with other arguments. Peers that have not reached
  // this call yet are not counted.
  std::optional<std::uint32_t> disagreement() const;
  // For a call that runs by messages: writes only the mark of the call, so that ranks that look only at mailboxes
  // see its arguments. Does nothing if other ranks may still read the previous contents.
  void show_tag(const CallTag& tag);
  // Whether the peer's mailbox still belongs to this call. Check it after reading, and before using memory of the
  // peer. If it is false, the peer has given the call up, and its status board contains the reason.
  bool holds(std::uint32_t peer) const;

  // Each rank has a part of the call that it does for all ranks, and another rank may do that part in its place. The
  // rank that claims a part does it, and then calls mark_finished(). `part_of`: the rank to which the part belongs.
  bool claim(std::uint32_t part_of);  // false: another rank has claimed it
  void mark_finished(std::uint32_t part_of);
  bool has_finished(std::uint32_t peer) const;
  std::uint32_t claimer(std::uint32_t part_of) const;
  // Counts a step of a long part. Ranks that wait for the end of the part take this as progress.
  void note_step(std::uint32_t part_of);
  std::uint64_t steps_of(std::uint32_t part_of) const;

  // Tells the transport which rank's mailbox this rank waits for, so that no other mailbox wakes it.
  void await(std::uint32_t peer) {
    if (peer != awaited_) transport_.await_mailbox(awaited_ = peer);
  }

 private:
  bool all_past(std::uint64_t used);
  std::uint64_t newest_of(std::uint32_t peer) const;

  const std::uint32_t rank_;
  Transport& transport_;
  const ShmMailboxes& mailboxes_;
  std::uint64_t sequence_ = 0;
  std::uint64_t digest_ = 0;                      // digest of the call's tag
  std::size_t turn_ = 0;                          // index of the current mailbox
  std::array<std::uint64_t, kMailboxes> used_{};  // indexed by mailbox: the call for which it was written last
  std::array<std::uint64_t, kLongPayloadBuffers> long_used_{};  // the same, indexed by long payload buffer
  std::vector<std::uint64_t> seen_;  // indexed by rank: the last call that it is known to have reached
  std::uint64_t all_entered_ = 0;    // the last call that all ranks are known to have entered
  std::uint32_t reader_ = 0;
  std::uint32_t awaited_ = Transport::kAnyRank;  // the argument of the last await_mailbox()
};

}  // namespace tutti

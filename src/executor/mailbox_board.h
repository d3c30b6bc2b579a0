// MailboxBoard: coordinates the use of the shared-memory mailboxes (ShmMailboxes in transport.h) by consecutive
// calls. The two tasks that use mailboxes, InlineCollective and SingleCopyCollective, share the board of their
// communicator. One thread at a time uses a board: the engine's driver or, at the start of a short call
// (engine/short_calls.h), the calling thread, which then holds the engine's mutex.
//
// Each rank has kMailboxes mailboxes. A call uses the mailbox with the index `sequence number % kMailboxes`, so that
// consecutive calls use different ones. The owner of a mailbox may write it again only when all other ranks have
// finished the call for which it was written last. A rank has finished a call if it has reached a later call, or if its
// status board shows that it has left the call. After a call in which every rank waits for every other rank (for
// example an all-reduce), all earlier calls are known to be finished, and no check is needed. After other calls (for
// example at the root of a broadcast) the owner checks it before it writes. The same rules hold for the long payload
// buffers, of which each rank has only kLongPayloadBuffers.
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
  // Starts the next call that uses mailboxes. The functions below refer to this call, except for those with a sequence
  // number or tag as argument.
  void begin(const CallTag& tag);
  // Records that all ranks have entered the call with this number, and so have finished all earlier calls.
  void note_all_entered(std::uint64_t sequence) { all_entered_ = sequence; }

  // Whether this rank may write its mailbox now and, if `long_payload_buffer` is true, its long payload buffer as
  // well. If the result is false, other ranks may still be reading the previous contents.
  bool may_write(bool long_payload_buffer = false);
  // After may_write() has returned false: the lowest rank that may still be reading the previous contents.
  std::uint32_t reader() const { return reader_; }
  // Call this before the payload is written: it withdraws the previous mark.
  void open(bool long_payload_buffer = false);
  // Call this after the payload was written: it publishes the payload and wakes the ranks that wait for it.
  void close();
  // Withdraws the mark of the call with this number, if it was written and not replaced since: ranks that look from now
  // on see nothing. The store is seq_cst. A peer stores on its status board that it has entered the call before it
  // looks at marks. So if a peer has still seen the mark, this rank sees afterwards that the peer has entered the call,
  // and can wait until the peer has left it (engine/failed_operations.h).
  void take_back(std::uint64_t sequence);
  std::byte* payload_buffer(std::uint32_t of) const { return mailboxes_.payload_buffers[turn_][of]; }
  std::byte* long_payload_buffer(std::uint32_t of) const {
    return mailboxes_.long_payload_buffers[sequence_ % kLongPayloadBuffers][of];
  }
  MailboxMark& mark(std::uint32_t of) const { return mailboxes_.marks[turn_][of]; }

  // Called at the end of a call: prefetches the cache lines of this rank's next mailbox for writing, for a payload
  // of `bytes` bytes. This is a good time, because no rank waits for this one, and the other ranks have usually
  // read the old contents.
  void fetch_next(std::uint64_t bytes) const;
  // The same for the next mailbox and the next long payload buffer.
  void fetch_next_long(std::uint64_t bytes) const;

  // The state of a peer's mailbox. kWritten: written for this call. kOtherCall: written for a call with the same number
  // but other arguments. kNothing: neither, for example because the peer has not written it yet or has withdrawn it.
  enum class MailboxState : std::uint8_t { kNothing, kWritten, kOtherCall };
  MailboxState look(std::uint32_t peer) const;
  // Returns the lowest peer whose mailbox was written for a call with the same number but other arguments. Returns
  // nothing if there is none. Ignores peers whose mailboxes do not have this number, for example because they have not
  // reached this call yet.
  std::optional<std::uint32_t> disagreement() const;
  // For a call that runs a plan over messages: writes only the mark of the call. If another rank passes other
  // arguments, its call may look only at mailboxes, and it detects the difference by this mark. Writes nothing if other
  // ranks may still be reading the previous contents.
  void show_tag(const CallTag& tag);
  // Whether the peer's mailbox still belongs to this call. Call it after reading the payload, and before using
  // memory of the peer. If the result is false, the peer has given the call up, and its status board contains the
  // reason.
  bool holds(std::uint32_t peer) const;

  // For SingleCopyCollective: each rank has a part of the work of a call that it does for all ranks. Another rank
  // may claim that part and do it instead. The rank that has done a part calls mark_finished(). `part_of`: the rank
  // to which the part belongs.
  bool claim(std::uint32_t part_of);  // true: this rank does the part; false: it was claimed before
  void mark_finished(std::uint32_t part_of);
  bool has_finished(std::uint32_t peer) const;
  // The rank that does the part: the rank that has claimed it for this call, or `part_of` if no rank has.
  std::uint32_t claimer(std::uint32_t part_of) const;
  // Counts a step of a long part. Ranks that wait for the end of the part see by steps_of() that there is progress.
  void note_step(std::uint32_t part_of);
  std::uint64_t steps_of(std::uint32_t part_of) const;

  // Informs the transport that this rank waits for the mailbox of `peer`, so that writes to other mailboxes do not
  // wake it. Transport::kAnyRank: this rank waits for any mailbox.
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
  std::size_t turn_ = 0;                          // index of the mailbox that the current call uses
  std::array<std::uint64_t, kMailboxes> used_{};  // indexed by mailbox: the call for which it was written last
  // indexed by long payload buffer: the call of the last write
  std::array<std::uint64_t, kLongPayloadBuffers> long_used_{};
  // indexed by rank: the last call for which the rank is known to have written a mailbox
  std::vector<std::uint64_t> seen_;
  std::uint64_t all_entered_ = 0;  // the last call that all ranks are known to have entered
  std::uint32_t reader_ = 0;
  std::uint32_t awaited_ = Transport::kAnyRank;  // the argument of the last await_mailbox()
};

}  // namespace tutti

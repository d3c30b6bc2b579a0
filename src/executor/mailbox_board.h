// MailboxBoard: whose turn it is with the mailboxes of transport.h. Shared by the runs that use them (mailbox.h,
// direct.h), one call after another; belongs to the driver.
//
// Calls take the mailboxes in turn, by sequence number. A mailbox's owner may write it again only when all others have
// finished the call that it was written for before: they have if they have come to a later one. Whoever has finished a
// call in which all ranks wait for all has seen that; otherwise (a broadcast's root) it looks before it writes. The
// same holds for the long rooms, of which there are fewer.
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
  // transport.mailboxes() is not null. `transport` outlives it.
  MailboxBoard(std::uint32_t rank, Transport& transport);

  std::uint32_t rank() const { return rank_; }
  std::uint32_t ranks() const { return mailboxes_.ranks; }
  // The next call that uses mailboxes.
  void begin(const CallTag& tag);
  // All ranks have entered that call.
  void note_all_entered(std::uint64_t sequence) { all_entered_ = sequence; }

  // Whether this rank may write, with `long_room` in its long room, too. If not, others may still read what stands
  // there.
  bool may_write(bool long_room = false);
  std::uint32_t reader() const { return reader_; }  // the first of those
  void open(bool long_room = false);                // before own payload is written
  void close();                                     // after it; wakes who awaits it
  // The mark of that call, if it was written. Whoever looks from now on sees nothing; seq_cst, so a peer that has not
  // seen it stored its `entered` before.
  void take_back(std::uint64_t sequence);
  std::byte* room(std::uint32_t of) const { return mailboxes_.rooms[turn_][of]; }
  std::byte* long_room(std::uint32_t of) const { return mailboxes_.long_rooms[sequence_ % kLongRooms][of]; }
  MailboxMark& mark(std::uint32_t of) const { return mailboxes_.marks[turn_][of]; }

  // After a call: the lines of the next one, with a value as long, are fetched for writing while nobody waits for
  // them. The others have read what stands there.
  void fetch_next(std::uint64_t bytes) const;
  void fetch_next_long(std::uint64_t bytes) const;  // of the long room

  // What a peer shows: nothing for this call yet, the value for it, or one for a call with other arguments.
  enum class Sight : std::uint8_t { kNothing, kThere, kOther };
  Sight look(std::uint32_t peer) const;
  // The first peer that shows one for a call with other arguments, as far as peers have come to this one.
  std::optional<std::uint32_t> disagreement() const;
  // For a call that goes by messages: its mark alone, for ranks that look at nothing else, unless others may still read
  // what stands there.
  void show_tag(const CallTag& tag);
  // It is still this call's: after reading, or before a peer's memory is used. If not, the peer has given the call up,
  // as its board says.
  bool holds(std::uint32_t peer) const;

  // Each rank has a part of the same call to do for all. Whoever has claimed it does it, and says when it is done.
  bool claim(std::uint32_t part_of);  // false: somebody has
  void say_finished(std::uint32_t part_of);
  bool has_finished(std::uint32_t peer) const;
  std::uint32_t claimer(std::uint32_t part_of) const;
  // A long part comes on: for those that wait for its end, as progress.
  void note_step(std::uint32_t part_of);
  std::uint64_t steps_of(std::uint32_t part_of) const;

  // Whom this rank waits for: nobody else's mailbox wakes it.
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
  std::uint64_t digest_ = 0;                           // of the call's tag
  std::size_t turn_ = 0;                               // which of the mailboxes
  std::array<std::uint64_t, kMailboxes> used_{};       // by mailbox: the call that it was written for last
  std::array<std::uint64_t, kLongRooms> long_used_{};  // likewise
  std::vector<std::uint64_t> seen_;                    // by rank: the last call that it is known to have come to
  std::uint64_t all_entered_ = 0;                      // the last call that all ranks are known to have entered
  std::uint32_t reader_ = 0;
  std::uint32_t awaited_ = Transport::kAnyRank;  // as the transport knows it
};

}  // namespace tutti

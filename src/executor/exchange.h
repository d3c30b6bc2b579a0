// Exchange: a group of sends and receives of one rank that are in progress at the same time. all_to_all_v, gather_v
// and scatter_v are implemented as such groups, too.
//
// Every ordered pair of ranks has one connection for exchanges (lane kPointToPointLane). Transfers follow each
// other on it in the order of the calls. The transfers of each ordered pair are numbered (CallTag::sequence), by
// the sender and by the receiver in the same way. A transfer is divided into messages of slot_bytes (the last one
// may be shorter), or of any length if the network writes them directly into the receiver's memory
// (SendConnection::send_aimed()).
//
// Transfers of started exchanges to different peers, or in different directions, never wait for each other. So if each
// send has its receive, a group ends on every rank, in whatever order its calls were made: a transfer waits only for
// earlier transfers of the same pair and direction.
//
// A transfer that fails before any of its messages has moved does not count: its number is given back, and the later
// transfers of that pair and direction take the numbers before theirs. So there is never a gap between two numbers,
// for which the peer would wait in vain. The later numbers are free to change, because transfers move in the order of
// their numbers, so no message with one of them has moved either.
//
// A transfer that fails after some of its messages have moved keeps its number on both ranks. But a rank that repeats
// it cannot know whether its peer still waits for the rest of the old transfer, or has gone on to the next one. The
// data of two transfers could be confused without an error, so such a failure breaks the connection
// (ErrorScope::kConnection), unless a bad message to this transfer has stopped the exchange (see half_moved()).
//
// A probe is an exchange that only looks for a message: it ends when the next message of one of its receives has
// arrived and belongs to a send (not to a collective that runs as an exchange), and leaves the message in place. A
// probe uses the numbers that the next receives will get, but does not take them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "executor/bind.h"
#include "executor/plan_execution.h"
#include "transports/transport.h"

namespace tutti {

// The numbers of one rank's transfers, for each peer and direction. next(), upcoming() and give_back() require the
// engine's lock, because all threads that submit calls use the same counters. Only the driver calls the other
// functions.
class PairNumbers {
 public:
  explicit PairNumbers(std::uint32_t ranks)
      : made_(2 * std::size_t{ranks}, 0), moves_(2 * std::size_t{ranks}, 0), active_(2 * std::size_t{ranks}) {}
  // Takes the next number, for a transfer that is being submitted. Numbers begin with 1.
  std::uint64_t next(std::uint32_t peer, Direction direction) { return ++made_[index(peer, direction)]; }
  // The number that next() would return, without taking it.
  std::uint64_t upcoming(std::uint32_t peer, Direction direction) const { return made_[index(peer, direction)] + 1; }
  // Adds a transfer to the unfinished ones. Transfers begin in the order of their numbers, and may end in any
  // order. A probe may have begun before transfers with smaller numbers, so the number is inserted at its sorted
  // position.
  void begin(std::uint32_t peer, Direction direction, std::uint64_t number) {
    std::deque<std::uint64_t>& active = active_[index(peer, direction)];
    active.insert(std::upper_bound(active.begin(), active.end(), number), number);
  }
  // Gives back the number of a failed transfer of which no message has moved. This keeps the numbers of both ranks
  // equal, because the peer's transfer with that number has not received or sent any message either. All later numbers
  // become smaller by one; OperationQueue::give_back_numbers() changes the transfers that have them.
  void give_back(std::uint32_t peer, Direction direction, std::uint64_t number) noexcept {
    --made_[index(peer, direction)];
    for (std::uint64_t& later : active_[index(peer, direction)]) {
      if (later > number) --later;
    }
  }
  // Whether the transfer with this number has its turn: all earlier transfers with that peer in that direction have
  // ended.
  bool turn(std::uint32_t peer, Direction direction, std::uint64_t number) const {
    return active_[index(peer, direction)].front() == number;
  }
  void end(std::uint32_t peer, Direction direction, std::uint64_t number) {
    std::deque<std::uint64_t>& active = active_[index(peer, direction)];
    // A probe may have the same number as a receive, so erase only one entry.
    const auto one = std::find(active.begin(), active.end(), number);
    if (one != active.end()) active.erase(one);
  }
  // Counts progress between this rank and the peer in one direction. So a transfer that waits for its turn can see
  // that the transfers before it make progress.
  void note_move(std::uint32_t peer, Direction direction) { ++moves_[index(peer, direction)]; }
  std::uint64_t moves(std::uint32_t peer, Direction direction) const { return moves_[index(peer, direction)]; }
  // Index of the transfer with which the next probe begins to look. It advances after each message found, so that
  // every peer gets its turn.
  std::uint32_t first_probed = 0;

 private:
  static std::size_t index(std::uint32_t peer, Direction direction) {
    return 2 * std::size_t{peer} + static_cast<std::size_t>(direction);
  }
  // The last number that was taken; indexed by index().
  std::vector<std::uint64_t> made_;
  // The count of note_move(); indexed by index().
  std::vector<std::uint64_t> moves_;
  // Indexed by index(): the numbers of unfinished transfers, ascending.
  std::vector<std::deque<std::uint64_t>> active_;
};

// One send or receive of a user's buffer. An Exchange divides the buffer into messages.
struct Transfer {
  Direction direction = Direction::kSend;
  std::uint32_t peer = 0;     // in an Exchange never this rank itself
  std::byte* data = nullptr;  // the buffer; only read if this is a send
  std::uint64_t bytes = 0;
  CallTag tag;
  SendConnection* send = nullptr;  // open() sets `send` for a send, and `receive` for a receive
  ReceiveConnection* receive = nullptr;
};

// Opens the connection of a transfer, if it is not open yet, and stores it in the transfer. Called by the driver.
// Errors: those of the transport.
Status open(Transfer& transfer, Connections& connections);

// Data that a rank sends to itself. An Exchange copies it when the Exchange is created.
struct OwnCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
};

class Exchange {
 public:
  enum class Purpose : std::uint8_t { kTransfer, kProbe };
  // `transport` and `numbers` must outlive the exchange. open() must have succeeded for all transfers. Transfers of
  // the same pair and direction must be in the order of their numbers. A probe has only receives, at most one from
  // each peer.
  Exchange(std::vector<Transfer> transfers, std::span<const OwnCopy> own, Transport& transport, PairNumbers& numbers,
           Purpose purpose = Purpose::kTransfer);
  // Moves messages that can move now, a limited number of each transfer. Returns true if there was any progress. If the
  // peer sends a transfer with other arguments than this rank's receive, the receive reads the data and drops it, so
  // that the peer and all other transfers can finish, and fails at the end. A message that a correct peer cannot send,
  // that is damaged, or that this rank cannot map stops the whole exchange. A probe looks for a message instead.
  bool progress();
  bool done();
  // Describes a message that did not fit its receive: the one that has stopped the exchange or, if none has, the first
  // one. Returns nothing if all messages fit, and also while transfers are unfinished and no message has stopped the
  // exchange.
  std::optional<BadMessage> bad_message() const { return unfinished_ == 0 || broken_ ? bad_ : std::nullopt; }
  std::span<const Transfer> transfers() const { return transfers_; }
  // Returns true if a transfer of this exchange waits for its turn, and an earlier transfer in front of it has made
  // progress since the last call of this function. Always false for a probe. If it is true, the engine extends the
  // deadline, because the timeout counts from the last progress.
  bool queue_has_moved();
  // The transfers that have not ended. The pointers stay valid as long as the exchange.
  std::vector<const Transfer*> unfinished() const;
  // Call this for a transfer whose peer no longer takes part. True if the transfer has its turn but can never go on:
  // for a receive, no message is there or in transit; for a send, there is no credit, or the messages have not been
  // handed over.
  bool stalled(const Transfer& transfer) const;
  // Describes the first transfers that have not ended, at most kMostListed, for example "a message from rank 2 (0 of 8
  // bytes received)". If all have ended, the text is "sent messages to leave this process".
  std::string waits_for() const;
  // Call this repeatedly before give_up(): asks `peer` to stop writing directly into this rank's receive buffers over
  // the network. Returns true if two conditions hold: the peer has confirmed that, or no buffer is advertised to it;
  // and no device reads the buffers of unfinished sends to it any more.
  bool release_buffers(std::uint32_t peer);
  // After a failure, and before give_up(): a transfer that has begun and has not ended. Null if there is none. If a
  // message has stopped the exchange, bad_transfer() does not count, because its error says that its data is lost.
  const Transfer* half_moved() const;
  // After a failure, and at the end of a probe: ends all transfers, so that later transfers get their turn. When it
  // returns, no device reads the buffers any more, and the network rejects writes of peers into them (exception: see
  // ReceiveConnection::withdraw_output()). If release_buffers() has not returned true, that may end the connection to
  // the peer.
  void give_up();
  // After give_up(): true if no message of the transfer had moved, so that its number must be given back.
  bool untouched(const Transfer& transfer) const noexcept;
  // Called after `number` was given back: each unfinished transfer with that peer in that direction that has a greater
  // number takes the number before its own. Called by the driver, with the engine's lock held. Allocates nothing.
  void close_gap(std::uint32_t peer, Direction direction, std::uint64_t number) noexcept;
  const Transfer* bad_transfer() const { return bad_transfer_; }
  bool probes() const { return purpose_ == Purpose::kProbe; }
  // For a probe: sets its numbers to those that the next receives will get, because receives have taken numbers or
  // given them back. Called by the driver, with the engine's lock held.
  void renumber();
  // For a probe that has found a message: found() is the peer that sent it. If the number of the next receive from that
  // peer has changed since then, is_stale() is true, for example because a new receive will get the message.
  // look_again() then restarts the probe. is_stale() and look_again() are called by the driver, with the engine's lock
  // held.
  std::uint32_t found() const { return found_; }
  bool is_stale() const;
  void look_again();

 private:
  struct State {
    std::uint64_t moved = 0;  // bytes that were sent or received so far
    bool begun = false;       // a message of the transfer was sent or has arrived
    bool posted = false;      // for a send: all messages were passed to the connection
    bool ended = false;
    bool untouched = false;  // the transfer was given up before any message moved
    // The peer sends a transfer with other arguments than this receive, so its data is read and dropped.
    bool discards = false;
    bool asked = false;            // advertise_output() was called, which happens at most once per receive
    bool shown = false;            // advertise_output() has advertised the receive buffer to the peer
    std::uint64_t moves_seen = 0;  // the value of PairNumbers::moves() that queue_has_moved() saw last
    // The tag and total length of the messages. They differ from those of the Transfer if the receive discards.
    CallTag tag;
    std::uint64_t bytes = 0;
  };
  bool advance(Transfer& transfer, State& state);
  bool send_next(Transfer& transfer, State& state);
  std::uint64_t send_message(const Transfer& transfer, std::uint64_t moved);
  static bool fits(const Message& message, const State& state, std::uint64_t slot_bytes);
  bool receive_next(Transfer& transfer, State& state);
  bool discard(Transfer& transfer, State& state);
  bool probe();

  std::vector<Transfer> transfers_;
  std::vector<State> states_;
  std::size_t unfinished_ = 0;
  Transport& transport_;
  PairNumbers& numbers_;
  const Purpose purpose_;
  std::uint32_t found_ = 0;
  bool broken_ = false;  // a message has stopped the exchange, see progress()
  std::optional<BadMessage> bad_;
  const Transfer* bad_transfer_ = nullptr;
};

}  // namespace tutti

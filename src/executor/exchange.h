// Exchange: a group of sends and receives of one rank that are in progress at the same time. all_to_all_v, gather_v
// and scatter_v are implemented as such groups, too.
//
// Every ordered pair of ranks has one connection for exchanges (lane kPointToPointLane). Transfers follow each other
// on it in the order of the calls. Each transfer has a number (CallTag::sequence) that counts per pair and
// direction; both ranks count in the same way. A transfer is cut into messages of slot_bytes, or of any length if
// the network writes them directly into the receiver's memory (SendConnection::send_aimed).
//
// Transfers to different peers, or in different directions, never wait for each other. A group therefore ends on
// every rank, whatever the order of its calls, as long as each send has its receive: the wait-for graph only has
// edges between messages of one pair.
//
// A probe is an exchange that only looks for a message: it ends when the next message of one of its receives has
// arrived, and leaves the message in place. It takes no numbers. It uses the numbers that the next receives will
// get.
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

// The numbers of one rank's transfers with each peer. next(), upcoming() and give_back() require the engine's lock,
// because all threads that submit calls use the same counters. The other functions are for the driver only.
class PairNumbers {
 public:
  explicit PairNumbers(std::uint32_t ranks)
      : made_(2 * std::size_t{ranks}, 0), moves_(2 * std::size_t{ranks}, 0), active_(2 * std::size_t{ranks}) {}
  std::uint64_t next(std::uint32_t peer, Direction direction) { return ++made_[index(peer, direction)]; }
  // The number that next() would return. Requires the engine's lock.
  std::uint64_t upcoming(std::uint32_t peer, Direction direction) const { return made_[index(peer, direction)] + 1; }
  // Transfers begin in the order of their numbers, and may end in any order. A probe may have begun before transfers
  // with smaller numbers; the insertion keeps the list sorted.
  void begin(std::uint32_t peer, Direction direction, std::uint64_t number) {
    std::deque<std::uint64_t>& active = active_[index(peer, direction)];
    active.insert(std::upper_bound(active.begin(), active.end(), number), number);
  }
  // Returns the number of a transfer of which no message has moved, so that the next transfer gets it. Has an effect
  // only if no later number was taken. The peer's counterpart has not met the transfer, so both ranks still count
  // alike. Requires the engine's lock.
  void give_back(std::uint32_t peer, Direction direction, std::uint64_t number) {
    if (made_[index(peer, direction)] == number) --made_[index(peer, direction)];
  }
  // Whether the transfer with this number is the first that has not ended.
  bool turn(std::uint32_t peer, Direction direction, std::uint64_t number) const {
    return active_[index(peer, direction)].front() == number;
  }
  void end(std::uint32_t peer, Direction direction, std::uint64_t number) {
    std::deque<std::uint64_t>& active = active_[index(peer, direction)];
    // Probes may share a number with a receive, so erase only one.
    const auto one = std::find(active.begin(), active.end(), number);
    if (one != active.end()) active.erase(one);
  }
  // Counts the messages that move between this rank and the peer in one direction. A transfer that waits for its
  // turn can thus see that those before it make progress.
  void note_move(std::uint32_t peer, Direction direction) { ++moves_[index(peer, direction)]; }
  std::uint64_t moves(std::uint32_t peer, Direction direction) const { return moves_[index(peer, direction)]; }
  // Index at which the next probe begins to look. It rotates, so that every peer gets its turn.
  std::uint32_t first_probed = 0;

 private:
  static std::size_t index(std::uint32_t peer, Direction direction) {
    return 2 * std::size_t{peer} + static_cast<std::size_t>(direction);
  }
  std::vector<std::uint64_t> made_;
  std::vector<std::uint64_t> moves_;
  // Indexed by index(): the numbers of unfinished transfers, ascending.
  std::vector<std::deque<std::uint64_t>> active_;
};

// One send or receive.
struct Transfer {
  Direction direction = Direction::kSend;
  std::uint32_t peer = 0;     // never this rank itself
  std::byte* data = nullptr;  // of a send it is only read
  std::uint64_t bytes = 0;
  CallTag tag;
  SendConnection* send = nullptr;  // exactly one of the two is set, by open()
  ReceiveConnection* receive = nullptr;
};

// Opens the connection of a transfer. Called by the driver. Errors: those of the transport.
Status open(Transfer& transfer, Connections& connections);

// Data that a rank sends to itself.
struct OwnCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
};

class Exchange {
 public:
  // `transport` and `numbers` must outlive the exchange. The transfers must be open. Transfers of the same pair and
  // direction must be in the order of their numbers. A probe has only receives, at most one from each peer.
  enum class Purpose : std::uint8_t { kTransfer, kProbe };
  Exchange(std::vector<Transfer> transfers, std::span<const OwnCopy> own, Transport& transport, PairNumbers& numbers,
           Purpose purpose = Purpose::kTransfer);
  // Moves the messages that can move now; returns true if there were any. If the peer's transfer has other arguments
  // than a receive, the receive reads the data and drops it, so that the peer and all other transfers can finish. A
  // message that a correct peer cannot send stops the whole exchange.
  bool progress();
  bool done();
  // Describes the first message that did not fit. Returns nothing while the exchange can still make progress.
  std::optional<BadMessage> bad_message() const { return unfinished_ == 0 || broken_ ? bad_ : std::nullopt; }
  std::span<const Transfer> transfers() const { return transfers_; }
  // Returns true if, since the last call of this function, a message has moved on a connection on which a transfer
  // of this exchange waits for its turn. The engine extends the deadline then: the timeout counts from the last
  // progress of the transfers in front, too.
  bool queue_has_moved();
  // The transfers that have not ended. The pointers stay valid as long as the exchange.
  std::vector<const Transfer*> unfinished() const;
  // True if it is this transfer's turn, but nothing can move now and, if the peer is gone, never will: there is no
  // message and none can still arrive, or there is no credit.
  bool stalled(const Transfer& transfer) const;
  // Describes the first few transfers that have not ended, for example "a message from rank 2 (0 of 8 bytes
  // received)". If all have ended, the text says that sent messages have not left this process yet.
  std::string waits_for() const;
  // Call this before give_up(): asks `peer` to stop writing directly into this rank's receive buffers. Returns true
  // when the peer has agreed, or if no buffer was advertised to it.
  bool revoke_output(std::uint32_t peer);
  // After a failure: ends all transfers, so that it is the turn of later ones.
  void give_up();
  // After give_up(): returns the numbers of transfers of which no message had moved, so that later transfers get
  // them. Called by the driver, under the engine's lock. Allocates nothing, because it may follow a failed
  // allocation.
  void give_back_numbers() noexcept;
  const Transfer* bad_transfer() const { return bad_transfer_; }
  bool probes() const { return purpose_ == Purpose::kProbe; }
  // For a probe: adapts its numbers after receives have taken or returned numbers. Called by the driver, under the
  // engine's lock.
  void renumber();
  // For a probe that ended successfully: found() is the peer that has sent a message. If a receive has taken the
  // number of that message meanwhile, is_stale() is true, and look_again() restarts the probe. Called by the driver,
  // under the engine's lock.
  std::uint32_t found() const { return found_; }
  bool is_stale() const;
  void look_again();

 private:
  struct State {
    std::uint64_t moved = 0;  // bytes
    bool begun = false;       // a message was sent or has arrived
    bool posted = false;      // all messages of a send were posted
    bool ended = false;
    bool untouched = false;  // it was given up before any message moved
    // The peer sends another transfer than this receive expects; its data is read and dropped.
    bool discards = false;
    bool asked = false;            // advertise_output() was called, once per receive
    bool shown = false;            // advertise_output() has advertised the receive buffer to the peer
    std::uint64_t moves_seen = 0;  // the value of PairNumbers::moves() that queue_has_moved() saw last
    CallTag tag;  // the tag that the messages carry; differs from Transfer::tag if the receive discards
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
  bool broken_ = false;  // a message arrived that a correct peer cannot send
  std::optional<BadMessage> bad_;
  const Transfer* bad_transfer_ = nullptr;
};

}  // namespace tutti

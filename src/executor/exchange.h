// Exchange: a group of sends and receives of one rank, carried out at once. all_to_all_v, gather_v and scatter_v are
// such groups too.
//
// Every ordered pair of ranks has one connection for this (lane kPointToPointLane), on which transfers follow each
// other in the order of the calls; each is numbered (CallTag::sequence) per pair and direction, on both sides alike. A
// transfer is cut into messages of slot_bytes, or of any length where the network writes them into the receiver's
// memory (SendConnection::send_aimed). Transfers to different peers and in different directions wait
// for each other never, so a group ends whatever the order of its calls is, on every rank, as long as each send has its
// receive: the graph of what waits for what has no edge but those between messages of one pair.
//
// A probe is an exchange that only looks: it ends when the next message of one of its receives is there, and leaves it
// where it is. It takes no numbers: its own are those that the next receives will have.
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

// The numbers of one rank's transfers with each peer. next() is called at submission, under the engine's lock; what
// does not say so belongs to the driver.
class PairNumbers {
 public:
  explicit PairNumbers(std::uint32_t ranks)
      : made_(2 * std::size_t{ranks}, 0), moves_(2 * std::size_t{ranks}, 0), active_(2 * std::size_t{ranks}) {}
  std::uint64_t next(std::uint32_t peer, Direction direction) { return ++made_[index(peer, direction)]; }
  // What next() would give. Under the engine's lock.
  std::uint64_t upcoming(std::uint32_t peer, Direction direction) const { return made_[index(peer, direction)] + 1; }
  // Transfers begin in the order of their numbers, and may end in any. A probe may have begun ahead of them.
  void begin(std::uint32_t peer, Direction direction, std::uint64_t number) {
    std::deque<std::uint64_t>& active = active_[index(peer, direction)];
    active.insert(std::upper_bound(active.begin(), active.end(), number), number);
  }
  // The number of a transfer of which nothing has moved serves the next one, if no later one was given out: the peer's
  // counterpart has not met it. Under the engine's lock.
  void give_back(std::uint32_t peer, Direction direction, std::uint64_t number) {
    if (made_[index(peer, direction)] == number) --made_[index(peer, direction)];
  }
  bool turn(std::uint32_t peer, Direction direction, std::uint64_t number) const {
    return active_[index(peer, direction)].front() == number;
  }
  void end(std::uint32_t peer, Direction direction, std::uint64_t number) {
    std::deque<std::uint64_t>& active = active_[index(peer, direction)];
    const auto one = std::find(active.begin(), active.end(), number);  // probes may share a number
    if (one != active.end()) active.erase(one);
  }
  // Counts what moves between this rank and the peer in one direction, so that a transfer that waits for its turn can
  // see that those before it go on.
  void note_move(std::uint32_t peer, Direction direction) { ++moves_[index(peer, direction)]; }
  std::uint64_t moves(std::uint32_t peer, Direction direction) const { return moves_[index(peer, direction)]; }
  // Where the next probe begins to look, so that no peer is passed over for ever.
  std::uint32_t first_probed = 0;

 private:
  static std::size_t index(std::uint32_t peer, Direction direction) {
    return 2 * std::size_t{peer} + static_cast<std::size_t>(direction);
  }
  std::vector<std::uint64_t> made_;
  std::vector<std::uint64_t> moves_;
  std::vector<std::deque<std::uint64_t>> active_;  // by peer and direction
};

struct Transfer {
  Direction direction = Direction::kSend;
  std::uint32_t peer = 0;     // not this rank
  std::byte* data = nullptr;  // a send only reads it
  std::uint64_t bytes = 0;
  CallTag tag;
  SendConnection* send = nullptr;  // one of the two; opened by the driver
  ReceiveConnection* receive = nullptr;
};

// Opens a transfer's connection. By the driver. Errors: the transport's.
Status open(Transfer& transfer, Connections& connections);

// What a rank has for itself.
struct OwnCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
};

class Exchange {
 public:
  // `transport` and `numbers` outlive it. The transfers are open. Transfers of one pair and direction stand in the
  // order of their numbers. A probe has receives only, at most one from each peer.
  enum class Purpose : std::uint8_t { kTransfer, kProbe };
  Exchange(std::vector<Transfer> transfers, std::span<const OwnCopy> own, Transport& transport, PairNumbers& numbers,
           Purpose purpose = Purpose::kTransfer);
  // Moves what can move now; true if anything did. A transfer that the peer means otherwise is read and thrown away, so
  // that the peer and all others end; what no sound peer sends stops everything.
  bool progress();
  bool done();
  // What was wrong with the first message that did not fit. Nothing while the exchange can still go on.
  std::optional<BadMessage> bad_message() const { return unfinished_ == 0 || broken_ ? bad_ : std::nullopt; }
  std::span<const Transfer> transfers() const { return transfers_; }
  // True if, since the last call, anything has moved before a transfer of this exchange that still waits for its turn:
  // the deadline of an exchange counts from the last progress in front of it, too.
  bool queue_has_moved();
  // Transfers that have not ended; they stay valid as long as the exchange.
  std::vector<const Transfer*> unfinished() const;
  // True when it is this transfer's turn and nothing can move now, nor will, with a peer that has gone: no message is
  // there or on its way, or there is no credit.
  bool stalled(const Transfer& transfer) const;
  // "no message from rank 2; no credit from rank 3", the first few.
  std::string waits_for() const;
  // Before that: asks `peer` to write no more into what this rank receives. True when it has agreed, or need not.
  bool recall_output(std::uint32_t peer);
  // After a failure: transfers that have not ended give their turn to later ones.
  void give_up();
  // After give_up(): transfers of which no message has moved give back their numbers, so that later ones get them. By
  // the driver, under the engine's lock. Allocates nothing, because it may follow a failed allocation.
  void give_back_numbers() noexcept;
  const Transfer* bad_transfer() const { return bad_transfer_; }
  bool probes() const { return purpose_ == Purpose::kProbe; }
  // Of a probe: receives have taken numbers, or given them back. By the driver, under the engine's lock.
  void renumber();
  // Of a probe that has ended well: whose message is there. As long as no receive has taken that message's number: then
  // it goes on, by look_again(). Both by the driver, under the engine's lock.
  std::uint32_t found() const { return found_; }
  bool is_stale() const;
  void look_again();

 private:
  struct State {
    std::uint64_t moved = 0;  // bytes
    bool begun = false;       // a message has gone or come
    bool posted = false;      // all messages of a send have gone
    bool ended = false;
    bool untouched = false;        // it was given up before a message had moved
    bool discards = false;         // a receive that the peer means otherwise
    bool asked = false;            // whether the peer can be shown where a receive wants its messages
    bool shown = false;            // it was
    std::uint64_t moves_seen = 0;  // by queue_has_moved()
    CallTag tag;                   // as the messages carry it
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
  bool broken_ = false;  // by a message that no sound peer sends
  std::optional<BadMessage> bad_;
  const Transfer* bad_transfer_ = nullptr;
};

}  // namespace tutti

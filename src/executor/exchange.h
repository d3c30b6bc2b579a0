// Exchange: a group of sends and receives of one rank, carried out at once. all_to_all_v, gather_v and scatter_v are
// such groups too.
//
// Every ordered pair of ranks has one connection for this (lane kPointToPointLane), on which transfers follow each
// other in the order of the calls; each is numbered (CallTag::sequence) per pair and direction, on both sides alike. A
// transfer is cut into messages of at most slot_bytes. Transfers to different peers and in different directions wait
// for each other never, so a group ends whatever the order of its calls is, on every rank, as long as each send has its
// receive: the graph of what waits for what has no edge but those between messages of one pair.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "executor/bind.h"
#include "executor/bytes.h"
#include "transports/transport.h"

namespace tutti {

// The numbers of one rank's transfers with each peer. next() is called at submission, under the engine's lock; all else
// belongs to the driver.
class PairNumbers {
 public:
  explicit PairNumbers(std::uint32_t ranks) : made_(2 * std::size_t{ranks}, 0), active_(2 * std::size_t{ranks}) {}
  std::uint64_t next(std::uint32_t peer, Direction direction) { return ++made_[index(peer, direction)]; }
  // Transfers begin in the order of their numbers, and may end in any.
  void begin(std::uint32_t peer, Direction direction, std::uint64_t number) {
    active_[index(peer, direction)].push_back(number);
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
    std::erase(active_[index(peer, direction)], number);
  }

 private:
  static std::size_t index(std::uint32_t peer, Direction direction) {
    return 2 * std::size_t{peer} + static_cast<std::size_t>(direction);
  }
  std::vector<std::uint64_t> made_;
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
  // order of their numbers.
  Exchange(std::vector<Transfer> transfers, std::span<const OwnCopy> own, Transport& transport, PairNumbers& numbers);
  // Moves what can move now; true if anything did. A transfer that the peer means otherwise is read and thrown away, so
  // that the peer and all others end; what no sound peer sends stops everything.
  bool progress();
  bool done();
  // What was wrong with the first message that did not fit. Nothing while the exchange can still go on.
  std::optional<BadMessage> bad_message() const { return unfinished_ == 0 || broken_ ? bad_ : std::nullopt; }
  // Transfers that have not ended; they stay valid as long as the exchange.
  std::vector<const Transfer*> unfinished() const;
  // True when it is this transfer's turn and nothing can move now, nor will, with a peer that has gone: no message is
  // there or on its way, or there is no credit.
  bool stalled(const Transfer& transfer) const;
  // "no message from rank 2; no credit from rank 3", the first few.
  std::string waits_for() const;
  // After a failure: transfers that have not ended give their turn to later ones.
  void give_up();
  // By give_up(): of these nothing has moved.
  const std::vector<Transfer>& untouched() const { return untouched_; }
  const Transfer* bad_transfer() const { return bad_transfer_; }

 private:
  struct State {
    std::uint64_t moved = 0;  // bytes
    bool begun = false;       // a message has gone or come
    bool posted = false;      // all messages of a send have gone
    bool ended = false;
    bool discards = false;  // a receive that the peer means otherwise
    CallTag tag;            // as the messages carry it
    std::uint64_t bytes = 0;
  };
  bool advance(Transfer& transfer, State& state);
  bool send_next(Transfer& transfer, State& state);
  bool receive_next(Transfer& transfer, State& state);
  bool discard(Transfer& transfer, State& state);

  std::vector<Transfer> transfers_;
  std::vector<State> states_;
  std::size_t unfinished_ = 0;
  Transport& transport_;
  PairNumbers& numbers_;
  bool broken_ = false;  // by a message that no sound peer sends
  std::optional<BadMessage> bad_;
  const Transfer* bad_transfer_ = nullptr;
  std::vector<Transfer> untouched_;
};

}  // namespace tutti

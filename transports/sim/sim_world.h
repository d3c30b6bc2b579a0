// SimWorld: a machine with several ranks in one process under a simulated clock and network, from one seed. Ranks are
// threads of which exactly one runs at a time; the world hands the turn on when a rank pauses, so a run is a function
// of the seed.
//
// Registered memory is reached in place, as in shared memory: what a peer publishes is read when the receiver gets to
// it, and what is pushed is there at once.
//
// Time passes only in the network: a message arrives after a random latency, and when no rank can go on the clock jumps
// to the next arrival or to the end of the shortest sleep. For tests; production code runs on it unchanged through
// Clock, Waiter and Transport.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "base/wait.h"
#include "transports/transport.h"

namespace tutti {

struct SimOptions {
  std::uint64_t seed = 1;
  std::uint32_t ranks = 2;
  std::int64_t min_latency_ns = 1'000;
  std::int64_t max_latency_ns = 100'000;
  std::uint32_t slots = 4;
  std::uint64_t slot_bytes = 4096;
  std::size_t memory_bytes = std::size_t{1} << 30;  // of all windows together; then allocation fails
};

class SimWorld {
 public:
  explicit SimWorld(const SimOptions& options);

  // Runs `body(rank)` for all ranks, each in a thread of its own, until all have returned.
  void run(const std::function<void(std::uint32_t rank)>& body);

  std::shared_ptr<Clock> clock();
  std::unique_ptr<Waiter> waiter(std::uint32_t rank);
  std::unique_ptr<Transport> transport(std::uint32_t rank);

  std::int64_t now_ns() const { return now_ns_; }
  // A number that differs when any decision or arrival of the run differed.
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  friend class SimClock;
  friend class SimWaiter;
  friend class SimTransport;
  friend class SimWindow;
  friend class SimSend;
  friend class SimReceive;

  struct Packet {
    CallTag tag;
    Carrier carrier = Carrier::kSlot;
    std::uint64_t bytes = 0;
    std::vector<std::byte> slot;
    const std::byte* published = nullptr;  // in the sender's memory: read there when the receiver gets to it
  };
  // One directed connection: in flight, then arrived, then released.
  struct Wire {
    std::deque<Packet> arrived;
    std::int64_t last_arrival_ns = 0;  // a connection keeps the order
    std::uint64_t sent = 0;
    std::uint64_t released = 0;
  };
  struct Board {
    std::map<std::uint64_t, CallTag> calls;
    std::uint64_t entered = 0;
    std::uint64_t left = 0;
    PeerLife life = PeerLife::kLive;
    std::byte* output = nullptr;  // on offer for call `entered`
    std::map<std::uint64_t, CallFailure> failures;
  };
  enum class State : std::uint8_t { kReady, kPaused, kEnded };
  using WireKey = std::tuple<std::uint32_t, std::uint32_t, std::uint16_t>;  // from, to, lane

  // Called by the rank whose turn it is; returns when it has the turn again.
  void pause(std::uint32_t rank, std::int64_t max_sleep_ns);
  void hand_on(std::unique_lock<std::mutex>& lock);
  void after_latency(Wire& wire, std::function<void()> happen);
  void wake_all();
  std::uint64_t draw(std::uint64_t bound);
  static std::byte* memory_of(const WindowRef& place);

  SimOptions options_;
  std::mt19937_64 random_;
  std::uint64_t fingerprint_ = 0;
  std::int64_t now_ns_ = 0;
  std::map<std::pair<std::int64_t, std::uint64_t>, std::function<void()>> events_;  // by time, then order
  std::uint64_t next_order_ = 0;
  std::map<WireKey, Wire> wires_;
  std::vector<Board> boards_;
  std::map<const std::byte*, std::size_t> windows_;  // all ranks' registered memory: start, bytes
  std::size_t memory_left_ = 0;                      // for windows

  std::mutex mutex_;  // hands the turn over; everything above belongs to the rank that has it
  std::condition_variable turn_changed_;
  std::uint32_t turn_ = 0;
  std::vector<State> states_;
  std::vector<std::int64_t> wake_at_ns_;  // of paused ranks
};

}  // namespace tutti

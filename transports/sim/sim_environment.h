// SimEnvironment: a simulated machine for tests, with several ranks in one process and a simulated clock. Everything
// random comes from one seed.
//
// Each rank is a thread, but only the rank that has the turn runs. When it pauses, the environment passes the turn to a
// rank that it chooses at random. The whole run is therefore a function of the options, which include the seed. Time
// only passes if no rank is ready to run: the clock then jumps to the next event, or to the end of a sleep or of a
// stop. Production code runs unchanged in this environment, through the interfaces Clock, Waiter and Transport. The
// transport is the one in sim_transport.cc, or a real transport over a simulated kernel.
//
// Faults happen at a given time, or before a given step of a rank. A step is a pause, or an action of the rank that
// concerns other ranks, for example a send. When a rank is killed, its thread continues as a ghost, so that all objects
// are destroyed in order: its code runs to the end within its turn, with a clock of its own, but receives no messages
// and has no effect on other ranks. Its peers detect after some time that its process is dead.
//
// SimEnvironment has more than 40 methods and members. During run(), only the rank that has the turn may use the
// members, so the turn, the clock, the events and the faults form one state. Many methods are queries for tests. The
// state of the network is in SimEnvironment::Network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <semaphore>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/wait.h"
#include "transports/transport.h"

namespace tutti {

enum class SimFaultKind : std::uint8_t {
  kKill,  // the process of the rank exits
  kStop,  // the rank does not run for `lasts_ns`, as after SIGSTOP
  kSlow,  // for `lasts_ns`, each step of the rank takes `amount_ns` longer
  kJump,  // the clock of the rank jumps forward by `amount_ns`
  kCut,   // data that the rank sends to `peer` within `lasts_ns` arrives only after that time
  // The connections between the rank and `peer` break, and data in transit is lost. Without effect if set_reset() was
  // not called.
  kReset,
};

inline constexpr std::int64_t kForeverNs = INT64_MAX;

// A fault to inject.
struct SimFault {
  SimFaultKind kind = SimFaultKind::kKill;
  std::uint32_t rank = 0;
  std::uint32_t peer = 0;
  std::uint64_t at_step = 0;  // the fault happens before this step of the rank, counted from 1; 0: at time `at_ns`
  std::int64_t at_ns = 0;
  std::int64_t lasts_ns = 0;  // how long the fault lasts; kForeverNs: without end
  std::int64_t amount_ns = 0;
};
std::string describe(const SimFault& fault);

struct SimOptions {
  std::uint64_t seed = 1;
  std::uint32_t ranks = 2;
  std::int64_t min_latency_ns = 1'000;
  std::int64_t max_latency_ns = 100'000;
  std::uint32_t slots = 4;
  std::uint64_t slot_bytes = 4096;
  bool writes_outputs = false;  // the network can write directly into an output that a receiver has advertised
  std::size_t memory_bytes = std::size_t{1} << 30;  // for all allocated windows; allocation fails beyond that
  std::int64_t max_notice_ns = 100'000'000;         // longest time until a peer detects that a process has exited
  // Time limit of the run. Ranks that have not ended when it has passed are killed; overran() is true then.
  std::int64_t limit_ns = kForeverNs;
  std::vector<std::int64_t> clock_offsets_ns{};  // indexed by rank; empty: no offsets
  std::vector<std::int32_t> clock_drifts_ppm{};  // indexed by rank; empty: no drift
  std::vector<SimFault> faults{};
};

class SimEnvironment {
 public:
  explicit SimEnvironment(const SimOptions& options);
  ~SimEnvironment();

  // Runs `body(rank)` for all ranks, each in its own thread, until all have returned. May be called once.
  void run(const std::function<void(std::uint32_t rank)>& body);

  std::shared_ptr<Clock> clock(std::uint32_t rank = 0);
  std::unique_ptr<Waiter> waiter(std::uint32_t rank);
  std::unique_ptr<Transport> transport(std::uint32_t rank);  // for a machine with shared memory; see sim_transport.cc

  const SimOptions& options() const { return options_; }
  std::int64_t now_ns() const { return now_ns_; }
  // A hash of all random decisions and their times. Two runs with different fingerprints were different.
  std::uint64_t fingerprint() const { return fingerprint_; }

  // The results of the run.
  bool dead(std::uint32_t rank) const { return ranks_[rank].dead; }
  std::uint64_t steps(std::uint32_t rank) const { return ranks_[rank].steps; }
  bool fired(std::size_t fault) const { return fired_[fault]; }  // index into SimOptions::faults
  bool overran() const { return overran_; }
  // open_windows() and open_connections(): resources that remain when all communicators have been destroyed.
  // refused_writes() and late_stores(): errors that the environment has detected.
  std::size_t open_windows() const;
  std::size_t open_connections() const;
  std::size_t refused_writes() const;  // writes between live ranks into outputs that had been withdrawn
  // Number of allocated windows into which a rank wrote (other bytes than kEndedMemory) after they had ended. Windows
  // whose rank was already killed when they ended do not count.
  std::size_t late_stores() const;

  // For the simulated clock, transport and kernel. During run(), only the rank that has the turn may call them.
  static SimEnvironment* current();  // the environment of this thread; null: the thread is not a rank
  static std::uint32_t current_rank();
  void step(std::uint32_t rank);  // counts a step, and applies the faults that are due at this step
  // Counts a step, and passes the turn until the rank is woken or `max_sleep_ns` has passed. A killed rank keeps the
  // turn; only its own clock advances.
  void pause(std::uint32_t rank, std::int64_t max_sleep_ns);
  void wake(std::uint32_t rank);
  void wake_all();
  void at(std::int64_t time_ns, std::function<void()> happen);  // schedules an event; kForeverNs: never
  std::uint64_t draw(std::uint64_t bound);                      // a random number below `bound`
  // The time at which data that `from` sends to `to` now will arrive; kForeverNs: never.
  std::int64_t arrival_ns(std::uint32_t from, std::uint32_t to);
  bool seen_dead(std::uint32_t observer, std::uint32_t rank) const;
  void stop(std::uint32_t rank, std::int64_t lasts_ns);  // `rank` must have the turn
  void kill(std::uint32_t rank);
  void on_kill(std::function<void(std::uint32_t rank)> killed) { killed_ = std::move(killed); }
  void set_reset(std::function<void(std::uint32_t rank, std::uint32_t peer)> reset) { reset_ = std::move(reset); }

 private:
  friend class SimClock;
  friend class SimTransport;
  friend class SimWindow;
  friend class SimSend;
  friend class SimReceive;
  friend struct SimConnectionEnd;
  struct Network;  // shared by all SimTransports, see sim_network.h

  enum class State : std::uint8_t { kReady, kPaused, kEnded };
  struct Rank {
    State state = State::kReady;
    bool dead = false;
    std::int64_t wake_at_ns = 0;  // end of its sleep, while its state is kPaused
    std::int64_t stopped_until_ns = 0;
    std::int64_t slow_until_ns = 0;
    std::int64_t slow_ns = 0;
    std::int64_t jumped_ns = 0;
    std::int64_t ghost_ns = 0;  // how far its own clock has advanced since its death, in addition to now_ns_
    std::uint64_t ghost_pauses = 0;
    std::uint64_t steps = 0;
    std::vector<std::int64_t> noticed_ns;    // when each rank detects this rank's death; indexed by the observing rank
    std::vector<std::int64_t> cut_until_ns;  // until when data of this rank is held back (kCut); indexed by receiver
    std::binary_semaphore turn{0};           // released when this rank gets the turn
  };

  std::int64_t now_ns(std::uint32_t rank) const;
  void happen(const SimFault& fault);
  void pass_turn();
  void wait_for_turn(std::uint32_t rank);
  bool advance_time(std::int64_t next_wake_ns);
  void kill_remaining();

  SimOptions options_;
  std::mt19937_64 random_;
  std::uint64_t fingerprint_ = 0;
  std::int64_t now_ns_ = 0;
  // Indexed by time, then by order of creation.
  std::map<std::pair<std::int64_t, std::uint64_t>, std::function<void()>> events_;
  std::uint64_t next_order_ = 0;
  std::vector<bool> fired_;
  bool overran_ = false;
  std::function<void(std::uint32_t)> killed_;
  std::function<void(std::uint32_t, std::uint32_t)> reset_;
  std::unique_ptr<Network> network_;

  // During run(), only the rank that has the turn may use the data members of this class. The exception is Rank::turn,
  // on which the other ranks wait.
  std::deque<Rank> ranks_;
};

}  // namespace tutti

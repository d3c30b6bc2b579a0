// SimEnvironment: a machine with several ranks in one process under a simulated clock, from one seed. Ranks are threads
// of which exactly one runs at a time; the environment hands the turn on when a rank pauses, so a run is a function of
// the seed.
//
// Time passes only in events and sleeps: when no rank can go on the clock jumps to the next of them. For tests;
// production code runs on it unchanged through Clock, Waiter and Transport (sim_transport.cc, or a real transport over
// a simulated kernel).
//
// Faults are placed by time, or before a given step of a rank. A step is each pause and each thing a rank does that
// another can see. A killed rank goes on as a ghost: its code runs to its end within its turn, on a clock of its own,
// hears nothing and reaches nobody, so that everything is destroyed in order. Its peers see a dead process.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/wait.h"
#include "transports/transport.h"

namespace tutti {

enum class SimFaultKind : std::uint8_t {
  kKill,   // the rank's process ends
  kStop,   // it takes no turn for `lasts_ns`, as after SIGSTOP
  kSlow,   // for `lasts_ns` each of its steps takes `amount_ns` more
  kJump,   // its clock goes forward by `amount_ns`
  kCut,    // for `lasts_ns` nothing that it sends comes to `peer`; afterwards it does
  kReset,  // its connections with `peer` break, and what is on its way is lost; where set_reset() says how
};

inline constexpr std::int64_t kForeverNs = INT64_MAX;

struct SimFault {
  SimFaultKind kind = SimFaultKind::kKill;
  std::uint32_t rank = 0;
  std::uint32_t peer = 0;
  std::uint64_t at_step = 0;  // before this step of the rank, from 1; 0: at `at_ns`
  std::int64_t at_ns = 0;
  std::int64_t lasts_ns = 0;  // kForeverNs: until the environment ends
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
  bool writes_outputs = false;                      // the network does, where a receiver shows its own
  std::size_t memory_bytes = std::size_t{1} << 30;  // of all windows together; then allocation fails
  std::int64_t max_notice_ns = 100'000'000;         // until a peer sees that a process has ended
  std::int64_t limit_ns = kForeverNs;            // of the run: ranks that have not ended then are killed, see overran()
  std::vector<std::int64_t> clock_offsets_ns{};  // by rank; empty: all clocks say the same
  std::vector<std::int32_t> clock_drifts_ppm{};  // likewise
  std::vector<SimFault> faults{};
};

class SimEnvironment {
 public:
  explicit SimEnvironment(const SimOptions& options);
  ~SimEnvironment();

  // Runs `body(rank)` for all ranks, each in a thread of its own, until all have returned. Once.
  void run(const std::function<void(std::uint32_t rank)>& body);

  std::shared_ptr<Clock> clock(std::uint32_t rank = 0);
  std::unique_ptr<Waiter> waiter(std::uint32_t rank);
  std::unique_ptr<Transport> transport(std::uint32_t rank);  // as in shared memory, see sim_transport.cc

  const SimOptions& options() const { return options_; }
  std::int64_t now_ns() const { return now_ns_; }
  // A number that differs when any decision or arrival of the run differed.
  std::uint64_t fingerprint() const { return fingerprint_; }

  // What has happened.
  bool dead(std::uint32_t rank) const { return ranks_[rank].dead; }
  std::uint64_t steps(std::uint32_t rank) const { return ranks_[rank].steps; }
  bool fired(std::size_t fault) const { return fired_[fault]; }  // of the options' faults
  bool overran() const { return overran_; }
  // What is left when all communicators have ended.
  std::size_t open_windows() const;
  std::size_t open_connections() const;
  std::size_t refused_writes() const;  // between live ranks, into outputs that were hidden
  std::size_t late_stores() const;     // windows that somebody wrote to after their end

  // For what ranks run on. By the rank whose turn it is.
  static SimEnvironment* current();  // of this thread; null: it is no rank
  static std::uint32_t current_rank();
  void step(std::uint32_t rank);  // may stop or kill it
  void pause(std::uint32_t rank, std::int64_t max_sleep_ns);
  void wake(std::uint32_t rank);
  void wake_all();
  void at(std::int64_t time_ns, std::function<void()> happen);
  std::uint64_t draw(std::uint64_t bound);
  // When what `from` sends to `to` now arrives; kForeverNs: never.
  std::int64_t arrival_ns(std::uint32_t from, std::uint32_t to);
  bool seen_dead(std::uint32_t observer, std::uint32_t rank) const;
  void stop(std::uint32_t rank, std::int64_t lasts_ns);  // the rank whose turn it is
  void kill(std::uint32_t rank);
  void on_kill(std::function<void(std::uint32_t rank)> killed) { killed_ = std::move(killed); }
  void set_reset(std::function<void(std::uint32_t rank, std::uint32_t peer)> reset) { reset_ = std::move(reset); }

 private:
  friend class SimClock;
  friend class SimTransport;
  friend class SimWindow;
  friend class SimSend;
  friend class SimReceive;
  friend struct SimEnd;
  struct Network;  // what SimTransports share, see sim_transport.cc

  enum class State : std::uint8_t { kReady, kPaused, kEnded };
  struct Rank {
    State state = State::kReady;
    bool dead = false;
    std::int64_t wake_at_ns = 0;  // paused
    std::int64_t stopped_until_ns = 0;
    std::int64_t slow_until_ns = 0;
    std::int64_t slow_ns = 0;
    std::int64_t jumped_ns = 0;
    std::int64_t ghost_ns = 0;  // its own time since its death
    std::uint64_t ghost_pauses = 0;
    std::uint64_t steps = 0;
    std::vector<std::int64_t> noticed_ns;    // by observer
    std::vector<std::int64_t> cut_until_ns;  // by receiver
    std::condition_variable turn_changed;
  };

  std::int64_t now_ns(std::uint32_t rank) const;
  void happen(const SimFault& fault);
  void hand_on();
  void give_turn(std::unique_lock<std::mutex>& lock, std::uint32_t rank);
  bool let_time_pass(std::int64_t next_wake_ns);
  void end_the_stopped();

  SimOptions options_;
  std::mt19937_64 random_;
  std::uint64_t fingerprint_ = 0;
  std::int64_t now_ns_ = 0;
  std::map<std::pair<std::int64_t, std::uint64_t>, std::function<void()>> events_;  // by time, then order
  std::uint64_t next_order_ = 0;
  std::vector<bool> fired_;
  bool overran_ = false;
  std::function<void(std::uint32_t)> killed_;
  std::function<void(std::uint32_t, std::uint32_t)> reset_;
  std::unique_ptr<Network> network_;

  std::mutex mutex_;  // hands the turn over; everything above and `ranks_` belong to the rank that has it
  std::uint32_t turn_ = 0;
  std::deque<Rank> ranks_;
};

}  // namespace tutti

#include "transports/sim/sim_environment.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"
#include "base/thread_group.h"
#include "transports/sim/sim_network.h"

namespace tutti {
namespace {

// How often a killed rank may pause, as a ghost, before its code is assumed to never end, which aborts the test.
constexpr std::uint64_t kMostGhostPauses = 1'000'000;

thread_local SimEnvironment* current_environment = nullptr;
thread_local std::uint32_t current_environment_rank = 0;

std::int64_t later(std::int64_t time_ns, std::int64_t by_ns) {
  return by_ns >= kForeverNs - time_ns ? kForeverNs : time_ns + by_ns;
}

std::string lasting(std::int64_t ns) {
  return ns == kForeverNs ? "for ever" : fmt::format("for {:.3f} ms", static_cast<double>(ns) / 1e6);
}

}  // namespace

std::string describe(const SimFault& fault) {
  const std::string when = fault.at_step > 0 ? fmt::format("before step {} of rank {}", fault.at_step, fault.rank)
                                             : fmt::format("at {:.3f} ms", static_cast<double>(fault.at_ns) / 1e6);
  const double amount_ms = static_cast<double>(fault.amount_ns) / 1e6;
  switch (fault.kind) {
    case SimFaultKind::kKill: return fmt::format("{}: rank {} is killed", when, fault.rank);
    case SimFaultKind::kStop:
      return fmt::format("{}: rank {} is stopped {}", when, fault.rank, lasting(fault.lasts_ns));
    case SimFaultKind::kSlow:
      return fmt::format("{}: each step of rank {} takes {} ms more, {}", when, fault.rank, amount_ms,
                         lasting(fault.lasts_ns));
    case SimFaultKind::kJump: return fmt::format("{}: rank {}'s clock jumps by {} ms", when, fault.rank, amount_ms);
    case SimFaultKind::kCut:
      return fmt::format("{}: nothing that rank {} sends reaches rank {}, {}", when, fault.rank, fault.peer,
                         lasting(fault.lasts_ns));
    case SimFaultKind::kReset:
      return fmt::format("{}: connections between ranks {} and {} are reset", when, fault.rank, fault.peer);
  }
  return "unknown";
}

class SimClock final : public Clock {
 public:
  SimClock(SimEnvironment& environment, std::uint32_t rank) : environment_(environment), rank_(rank) {}
  std::int64_t now_ns() override { return environment_.now_ns(rank_); }

 private:
  SimEnvironment& environment_;
  std::uint32_t rank_;
};

class SimWaiter final : public Waiter {
 public:
  SimWaiter(SimEnvironment& environment, std::uint32_t rank) : environment_(environment), rank_(rank) {}
  void pause(Idle& idle, Doorbell& doorbell, std::int64_t max_sleep_ns) override {
    ++idle.rounds;
    ++idle.sleeps;
    doorbell.arm();
    environment_.pause(rank_, max_sleep_ns);
    doorbell.sleep(0);
  }

 private:
  SimEnvironment& environment_;
  std::uint32_t rank_;
};

SimEnvironment::SimEnvironment(const SimOptions& options)
    : options_(options), random_(options.seed), fired_(options.faults.size()), network_(std::make_unique<Network>()) {
  TUTTI_ASSERT(options.ranks > 0 && options.min_latency_ns >= 0 && options.min_latency_ns <= options.max_latency_ns);
  network_->boards.resize(options.ranks);
  network_->memory_left = options.memory_bytes;
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
    Rank& made = ranks_.emplace_back();
    made.noticed_ns.assign(options.ranks, kForeverNs);
    made.cut_until_ns.assign(options.ranks, 0);
  }
  for (std::size_t i = 0; i < options.faults.size(); ++i) {
    const SimFault& fault = options_.faults[i];
    TUTTI_ASSERT(fault.rank < options.ranks && fault.peer < options.ranks);
    if (fault.at_step > 0) continue;
    at(fault.at_ns, [this, i] {
      fired_[i] = true;
      happen(options_.faults[i]);
    });
  }
}

SimEnvironment::~SimEnvironment() = default;

std::shared_ptr<Clock> SimEnvironment::clock(std::uint32_t rank) { return std::make_shared<SimClock>(*this, rank); }
std::unique_ptr<Waiter> SimEnvironment::waiter(std::uint32_t rank) { return std::make_unique<SimWaiter>(*this, rank); }

SimEnvironment* SimEnvironment::current() { return current_environment; }
std::uint32_t SimEnvironment::current_rank() { return current_environment_rank; }

std::size_t SimEnvironment::open_windows() const { return network_->windows.size(); }
std::size_t SimEnvironment::open_connections() const { return network_->connections; }
std::size_t SimEnvironment::refused_writes() const { return network_->refused_writes; }
std::size_t SimEnvironment::late_stores() const {
  return static_cast<std::size_t>(std::count_if(
      network_->ended_windows.begin(), network_->ended_windows.end(), [](const Network::EndedWindow& each) {
        const auto written = [](std::byte byte) { return byte != kEndedMemory; };
        return each.watched && std::any_of(each.memory.begin(), each.memory.end(), written);
      }));
}

// The time according to the clock of `rank`.
std::int64_t SimEnvironment::now_ns(std::uint32_t rank) const {
  const Rank& own = ranks_[rank];
  std::int64_t time_ns = now_ns_ + own.ghost_ns + own.jumped_ns;
  if (!options_.clock_offsets_ns.empty()) time_ns += options_.clock_offsets_ns[rank];
  if (!options_.clock_drifts_ppm.empty()) time_ns += now_ns_ / 1'000'000 * options_.clock_drifts_ppm[rank];
  return time_ns;
}

std::uint64_t SimEnvironment::draw(std::uint64_t bound) {
  const std::uint64_t drawn = random_() % bound;
  fingerprint_ = (fingerprint_ ^ drawn ^ static_cast<std::uint64_t>(now_ns_)) * 0x9e3779b97f4a7c15u;
  return drawn;
}

void SimEnvironment::at(std::int64_t time_ns, std::function<void()> happen) {
  if (time_ns == kForeverNs) return;
  events_[{std::max(time_ns, now_ns_), next_order_++}] = std::move(happen);
}

std::int64_t SimEnvironment::arrival_ns(std::uint32_t from, std::uint32_t to) {
  const auto spread = static_cast<std::uint64_t>(options_.max_latency_ns - options_.min_latency_ns) + 1;
  const std::int64_t latency_ns = options_.min_latency_ns + static_cast<std::int64_t>(draw(spread));
  return later(std::max(now_ns_, ranks_[from].cut_until_ns[to]), latency_ns);
}

bool SimEnvironment::seen_dead(std::uint32_t observer, std::uint32_t rank) const {
  return ranks_[rank].noticed_ns[observer] <= now_ns_;
}

void SimEnvironment::wake(std::uint32_t rank) {
  if (ranks_[rank].state == State::kPaused) ranks_[rank].state = State::kReady;
}

void SimEnvironment::wake_all() {
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) wake(rank);
}

void SimEnvironment::happen(const SimFault& fault) {
  Rank& rank = ranks_[fault.rank];
  if (rank.dead || rank.state == State::kEnded) return;
  switch (fault.kind) {
    case SimFaultKind::kKill: return kill(fault.rank);
    case SimFaultKind::kStop:
      rank.stopped_until_ns = std::max(rank.stopped_until_ns, later(now_ns_, fault.lasts_ns));
      return;
    case SimFaultKind::kSlow:
      rank.slow_until_ns = later(now_ns_, fault.lasts_ns);
      rank.slow_ns = fault.amount_ns;
      return;
    case SimFaultKind::kJump: rank.jumped_ns += fault.amount_ns; return;
    case SimFaultKind::kCut: rank.cut_until_ns[fault.peer] = later(now_ns_, fault.lasts_ns); return;
    case SimFaultKind::kReset:
      if (reset_) reset_(fault.rank, fault.peer);
      return;
  }
}

void SimEnvironment::kill(std::uint32_t rank) {
  Rank& own = ranks_[rank];
  if (own.dead) return;
  own.dead = true;
  own.stopped_until_ns = 0;
  wake(rank);  // so that its thread continues, as a ghost (sim_environment.h), and destroys the objects of the rank
  for (std::uint32_t observer = 0; observer < ranks_.size(); ++observer) {
    own.noticed_ns[observer] =
        now_ns_ + static_cast<std::int64_t>(draw(static_cast<std::uint64_t>(options_.max_notice_ns) + 1));
    at(own.noticed_ns[observer], [this, observer] { wake(observer); });
  }
  if (killed_) killed_(rank);
}

void SimEnvironment::step(std::uint32_t rank) {
  Rank& own = ranks_[rank];
  if (own.dead) return;
  ++own.steps;
  for (std::size_t i = 0; i < options_.faults.size(); ++i) {
    const SimFault& fault = options_.faults[i];
    if (fault.at_step != own.steps || fault.rank != rank) continue;
    fired_[i] = true;
    happen(fault);
  }
  if (own.dead) return;
  if (own.slow_until_ns > now_ns_) own.stopped_until_ns = std::max(own.stopped_until_ns, now_ns_ + own.slow_ns);
  if (own.stopped_until_ns <= now_ns_) return;
  pass_turn();
  wait_for_turn(rank);
}

void SimEnvironment::stop(std::uint32_t rank, std::int64_t lasts_ns) {
  ranks_[rank].stopped_until_ns = later(now_ns_, lasts_ns);
  step(rank);
}

void SimEnvironment::pause(std::uint32_t rank, std::int64_t max_sleep_ns) {
  step(rank);
  Rank& own = ranks_[rank];
  if (!own.dead) {
    own.state = State::kPaused;
    own.wake_at_ns = now_ns_ + std::max<std::int64_t>(max_sleep_ns, 1);
    pass_turn();
    wait_for_turn(rank);
    return;
  }
  own.ghost_ns += std::max<std::int64_t>(max_sleep_ns, 1'000'000);
  TUTTI_ASSERT(++own.ghost_pauses < kMostGhostPauses, "seed {}: the code of rank {} never ends", options_.seed, rank);
}

// Waits until pass_turn() gives the turn to `rank`.
void SimEnvironment::wait_for_turn(std::uint32_t rank) { ranks_[rank].turn.acquire(); }

// Advances the clock to the next event, which then happens, or to `next_wake_ns`, whichever is earlier. Wakes the ranks
// whose sleep ends. `next_wake_ns`: the time at which the first rank can run again; kForeverNs: never. Returns false if
// there is neither.
bool SimEnvironment::advance_time(std::int64_t next_wake_ns) {
  const bool event = !events_.empty() && events_.begin()->first.first <= next_wake_ns;
  if (!event && next_wake_ns == kForeverNs) return false;
  now_ns_ = std::max(now_ns_, event ? events_.begin()->first.first : next_wake_ns);
  if (event) {
    const auto happen = std::move(events_.begin()->second);
    events_.erase(events_.begin());
    happen();
  }
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].wake_at_ns <= now_ns_) wake(rank);
  }
  return true;
}

// Kills all ranks that have not ended. Called if no rank will ever be ready again by itself, or if the time limit has
// passed.
void SimEnvironment::kill_remaining() {
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].state != State::kEnded) kill(rank);
  }
}

// Chooses the rank that runs next, at random. As long as no rank is ready, it advances the clock or, if no rank will
// ever be ready again by itself or the time limit has passed, calls kill_remaining().
void SimEnvironment::pass_turn() {
  std::vector<std::uint32_t> ready;
  while (true) {
    std::int64_t next_wake_ns = kForeverNs;
    bool all_ended = true;
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      const Rank& each = ranks_[rank];
      if (each.state == State::kEnded) continue;
      all_ended = false;
      const bool stopped = each.stopped_until_ns > now_ns_;
      if (each.state == State::kReady && !stopped) ready.push_back(rank);
      const std::int64_t sleeps_until_ns = each.state == State::kPaused ? each.wake_at_ns : now_ns_;
      next_wake_ns = std::min(next_wake_ns, std::max(sleeps_until_ns, each.stopped_until_ns));
    }
    if (!ready.empty()) break;
    if (all_ended) return;
    if (next_wake_ns == kForeverNs) {
      kill_remaining();
    } else if (now_ns_ > options_.limit_ns) {
      overran_ = true;
      kill_remaining();
    } else {
      advance_time(next_wake_ns);
    }
  }
  ranks_[ready[draw(ready.size())]].turn.release();
}

void SimEnvironment::run(const std::function<void(std::uint32_t rank)>& body) {
  ThreadGroup threads;
  ranks_[draw(ranks_.size())].turn.release();
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    threads.add([this, rank, &body] {
      current_environment = this;
      current_environment_rank = rank;
      wait_for_turn(rank);
      body(rank);
      ranks_[rank].state = State::kEnded;
      wake_all();  // the last action of this rank may be the one for which the others wait
      pass_turn();
    });
  }
  threads.open();
  threads.join();
}

}  // namespace tutti

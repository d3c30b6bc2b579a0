// The sweep for any plan, and the loop over tiles that detects a periodic regime.
#include "model/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

// Like std::max(), but takes its arguments by value. std::max() takes references, which prevents the compiler from
// vectorizing the loops.
double later(double a, double b) { return a < b ? b : a; }

// Sets into[i] to the later of into[i] and from[i - shift], for all i below `count`. Indices are modulo `count`,
// and `shift` must be below `count`.
void later_of_shifted(double* into, const double* from, std::size_t count, std::size_t shift) {
  for (std::size_t i = 0; i < shift; ++i) into[i] = later(into[i], from[count - shift + i]);
  for (std::size_t i = shift; i < count; ++i) into[i] = later(into[i], from[i - shift]);
}

class Sweep final : public TileRunner {
 public:
  Sweep(const Programs& programs, const Costs& costs, std::uint32_t slots)
      : programs_(programs),
        costs_(costs),
        slots_(slots),
        places_(costs.places()),
        cursors_(programs.threads.size()),
        queued_(programs.threads.size()),
        sent_(programs.connections.size()),
        received_(programs.connections.size()),
        arrivals_(programs.connections.size() * slots * places_, Costs::kNever),
        begin_(places_) {
    ports_at_ = programs.threads.size() * places_;
    credits_at_ = 2 * ports_at_;
    marks_at_ = credits_at_ + programs.connections.size() * slots * places_;
    state_.assign(marks_at_ + 2 * programs.mark_threads.size() * places_, Costs::kNever);
    std::fill_n(state_.begin(), ports_at_, 0.0);
    bool marks = !programs.mark_threads.empty();
    if (marks) waiting_.resize(programs.mark_threads.size());
  }

  Status run_tile(const Progress& progress) override;
  std::vector<double>& state() override { return state_; }
  double latest() const override {
    return *std::max_element(state_.begin(), state_.begin() + static_cast<std::ptrdiff_t>(ports_at_));
  }

 private:
  double* ends(std::uint32_t thread) { return state_.data() + std::size_t{thread} * places_; }
  double* port(std::uint32_t thread) { return state_.data() + ports_at_ + std::size_t{thread} * places_; }
  double* credit(std::uint32_t connection, std::uint64_t message) {
    return state_.data() + credits_at_ + (std::size_t{connection} * slots_ + message % slots_) * places_;
  }
  double* arrival(std::uint32_t connection, std::uint64_t message) {
    return arrivals_.data() + (std::size_t{connection} * slots_ + message % slots_) * places_;
  }
  double* mark(std::uint32_t index, std::uint32_t tiles_before) {
    return state_.data() + marks_at_ + (2 * std::size_t{index} + tiles_before) * places_;
  }
  // False if the step needs a message that was not sent yet, a slot that is not free yet, or a marked step of this
  // tile that did not run yet. In the last case the thread is added to waiting_.
  bool can_run(std::uint32_t thread, const ProgramStep& step);
  void apply(std::uint32_t thread, const ProgramStep& step, const std::vector<double>& times);
  void run_thread(std::uint32_t thread);
  void end_tile();
  void wake(std::uint32_t thread) {
    if (queued_[thread] != 0) return;
    queued_[thread] = 1;
    ready_.push_back(thread);
  }

  const Programs& programs_;
  const Costs& costs_;
  const std::uint32_t slots_;
  const std::size_t places_;
  // indexed by thread: its next step in this tile
  std::vector<std::uint32_t> cursors_;
  std::vector<std::uint8_t> queued_;  // indexed by thread: 1 if it is in ready_
  // threads that may be able to run their next step; each thread at most once
  std::vector<std::uint32_t> ready_;
  // indexed by connection: number of messages sent in this tile
  std::vector<std::uint64_t> sent_;
  // indexed by connection: number of messages received in this tile
  std::vector<std::uint64_t> received_;
  // indexed by mark: the threads that wait for it in their next step
  std::vector<std::vector<std::uint32_t>> waiting_;
  // indexed by connection, then by message modulo slots_, then by place of the sender
  std::vector<double> arrivals_;
  std::vector<double> begin_;  // for apply(), indexed by place: the beginning of the step
  // The state that the next tile needs, all parts indexed by place last: the ends of the last steps of threads;
  // when the ports are free for threads; credits, by connection and slot (place of the receiver); marks, each in
  // this tile and in the tile before.
  std::vector<double> state_;
  // indices in state_ of the first port, credit and mark
  std::size_t ports_at_ = 0, credits_at_ = 0, marks_at_ = 0;
  // number of steps that all threads together have run in this tile
  std::uint64_t steps_run_ = 0;
};

bool Sweep::can_run(std::uint32_t thread, const ProgramStep& step) {
  const std::uint32_t* list = programs_.lists.data() + step.list_begin;
  for (std::uint32_t i = 0; i < step.receives; ++i) {
    if (sent_[list[i]] == received_[list[i]]) return false;
  }
  for (std::uint32_t i = step.receives; i < std::uint32_t{step.receives} + step.sends; ++i) {
    if (sent_[list[i]] - received_[list[i]] >= slots_) return false;
  }
  for (std::uint32_t i = step.wait_begin; i < step.wait_begin + step.waits; ++i) {
    const Wait& wait = programs_.waits[i];
    if (wait.tiles_before > 0 || *mark(wait.mark, 0) != Costs::kNever) continue;
    waiting_[wait.mark].push_back(thread);
    return false;
  }
  return true;
}

void Sweep::apply(std::uint32_t thread, const ProgramStep& step, const std::vector<double>& times) {
  const std::uint32_t* list = programs_.lists.data() + step.list_begin;
  double* end = ends(thread);
  double* begin = begin_.data();
  std::copy_n(end, places_, begin);
  for (std::uint32_t i = 0; i < step.receives; ++i) {
    const std::uint32_t c = list[i];
    later_of_shifted(begin, arrival(c, received_[c]), places_, programs_.connections[c].places % places_);
  }
  for (std::uint32_t i = step.receives; i < std::uint32_t{step.receives} + step.sends; ++i) {
    const std::uint32_t c = list[i];
    const std::size_t shift = programs_.connections[c].places % places_;
    later_of_shifted(begin, credit(c, sent_[c]), places_, shift == 0 ? 0 : places_ - shift);
  }
  for (std::uint32_t i = step.wait_begin; i < step.wait_begin + step.waits; ++i) {
    later_of_shifted(begin, mark(programs_.waits[i].mark, programs_.waits[i].tiles_before), places_, 0);
  }
  for (std::size_t p = 0; p < places_; ++p) end[p] = begin[p] + times[p];
  for (std::uint32_t i = 0; i < step.receives; ++i) {
    const std::uint32_t c = list[i];
    const double* latency = costs_.message(c).latency.data();
    const std::size_t shift = programs_.connections[c].places % places_;
    double* back = credit(c, received_[c]++);
    for (std::size_t p = 0; p < shift; ++p) back[p] = end[p] + latency[places_ - shift + p];
    for (std::size_t p = shift; p < places_; ++p) back[p] = end[p] + latency[p - shift];
    wake(programs_.connections[c].from);
  }
  double* free = port(thread);
  for (std::uint32_t i = step.receives; i < std::uint32_t{step.receives} + step.sends; ++i) {
    const std::uint32_t c = list[i];
    const MessageTimes& message = costs_.message(c);
    const double* hold = message.hold.data();
    const double* transfer = message.transfer.data();
    const double* latency = message.latency.data();
    const double further = step.run - 1;  // number of chunks after the first one, as in MessageTimes::transfer_of()
    double* seen = arrival(c, sent_[c]++);
    for (std::size_t p = 0; p < places_; ++p) {
      const bool by_port = hold[p] != Costs::kNever;
      const double bytes_us = further * (transfer[p] - latency[p]);
      const double depart = by_port ? later(end[p], free[p]) : end[p];
      free[p] = by_port ? depart + hold[p] + bytes_us : free[p];
      seen[p] = depart + transfer[p] + bytes_us;
    }
    wake(programs_.connections[c].to);
  }
  if (step.mark < 0) return;
  const auto index = static_cast<std::uint32_t>(step.mark);
  std::copy_n(end, places_, mark(index, 0));
  for (const std::uint32_t each : waiting_[index]) wake(each);
  waiting_[index].clear();
}

void Sweep::run_thread(std::uint32_t thread) {
  const ProgramThread& program = programs_.threads[thread];
  for (std::uint32_t& cursor = cursors_[thread]; cursor < program.steps; ++cursor) {
    const std::uint64_t number = program.first_step + cursor;
    const ProgramStep& step = programs_.steps[number];
    if (!can_run(thread, step)) return;
    apply(thread, step, costs_.step(number));
    ++steps_run_;
  }
}

// Rotates the credits of each connection so that the oldest one is first. Then equal positions in the states of
// different tiles have the same meaning, and the states can be compared. Also makes the marks of this tile those of
// the tile before.
void Sweep::end_tile() {
  for (std::uint32_t c = 0; c < programs_.connections.size(); ++c) {
    const auto turn = static_cast<std::ptrdiff_t>(sent_[c] % slots_ * places_);
    const auto first = state_.begin() + static_cast<std::ptrdiff_t>(credits_at_ + std::size_t{c} * slots_ * places_);
    std::rotate(first, first + turn, first + static_cast<std::ptrdiff_t>(slots_ * places_));
    sent_[c] = received_[c] = 0;
  }
  for (std::uint32_t m = 0; m < programs_.mark_threads.size(); ++m) {
    std::copy_n(mark(m, 0), places_, mark(m, 1));
    std::fill_n(mark(m, 0), places_, Costs::kNever);
  }
  std::fill(cursors_.begin(), cursors_.end(), 0);
}

Status Sweep::run_tile(const Progress& progress) {
  // How often run_thread() is called between two progress reports.
  constexpr std::uint64_t kTurns = 4096;
  steps_run_ = 0;
  for (std::uint32_t t = static_cast<std::uint32_t>(programs_.threads.size()); t-- > 0;) wake(t);
  for (std::uint64_t turns = 0; !ready_.empty(); ++turns) {
    const std::uint32_t thread = ready_.back();
    ready_.pop_back();
    queued_[thread] = 0;
    run_thread(thread);
    if (progress && turns % kTurns == 0) {
      progress(static_cast<double>(steps_run_) / static_cast<double>(programs_.steps.size()));
    }
  }
  for (std::uint32_t t = 0; t < programs_.threads.size(); ++t) {
    if (cursors_[t] == programs_.threads[t].steps) continue;
    return Error{.code = ErrorCode::kInvalidPlan,
                 .scope = ErrorScope::kCall,
                 .rank = -1,
                 .message = fmt::format("the plan does not end: rank {} stays in step {} of channel {}; prove it with "
                                        "`tutti verify`",
                                        costs_.rank(t, 0), cursors_[t], programs_.threads[t].channel)};
  }
  end_tile();
  return {};
}

// ---- run_tiles(): the loop over tiles, and the detection of a periodic regime ----

// longest period that is detected, in tiles
constexpr std::size_t kMostLag = 4;
// a period is only used if it was found this many times in succession
constexpr std::uint64_t kRepeats = 2;
// tolerance for rounding, as a fraction of the simulated time so far (taken as at least 1 us)
constexpr double kTolerance = 1e-10;

// Returns by how much the times of `now` are later than those of `before`, if that is the same for all, up to
// `allowed`. Times that are kNever in both are skipped. Returns a negative number if the differences are not the
// same, or if there are no times.
double common_delay(const std::vector<double>& now, const std::vector<double>& before, double allowed) {
  double least = std::numeric_limits<double>::infinity(), most = Costs::kNever;
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i] == Costs::kNever && before[i] == Costs::kNever) continue;
    if (now[i] == Costs::kNever || before[i] == Costs::kNever) return -1;
    const double delay = now[i] - before[i];
    least = std::min(least, delay);
    most = std::max(most, delay);
    if (most - least > allowed) return -1;
  }
  return least > most ? -1 : least;
}

}  // namespace

Status check_size(const SweepSize& size, std::uint32_t slots) {
  constexpr double kTimesOfMib = double{1 << 20} / sizeof(double);
  const double ranks = static_cast<double>(size.classes) * static_cast<double>(size.places);
  const double times = 2 * (size.threads + size.connections * slots + size.marks) * ranks;
  if (times <= static_cast<double>(kMostTimes)) return {};
  return Error{
      .code = ErrorCode::kUnsupported,
      .scope = ErrorScope::kCall,
      .rank = -1,
      .message = fmt::format(
          "connections and waits of {:.0f} ranks that are not alike take {:.0f} MiB, more than {:.0f}; choose fewer "
          "ranks, or no stragglers and as many machines as fill all leaf switches",
          ranks, times / kTimesOfMib, static_cast<double>(kMostTimes) / kTimesOfMib)};
}

Result<std::unique_ptr<TileRunner>> make_sweep(const Programs& programs, const Costs& costs, std::uint32_t slots) {
  const double classes = programs.classes;
  TUTTI_TRY(check_size({.classes = programs.classes,
                        .places = costs.places(),
                        .threads = static_cast<double>(programs.threads.size()) / classes,
                        .connections = static_cast<double>(programs.connections.size()) / classes,
                        .marks = static_cast<double>(programs.mark_threads.size()) / classes},
                       slots));
  return std::unique_ptr<TileRunner>(std::make_unique<Sweep>(programs, costs, slots));
}

Result<double> run_tiles(TileRunner& runner, Costs& costs, const TileCounts& tiles, bool extrapolate,
                         const Progress& progress) {
  const auto total = static_cast<double>(tiles.full + tiles.last);
  const auto run = [&](std::uint64_t tile) {
    if (!progress) return runner.run_tile({});
    return runner.run_tile([&](double part) { progress((static_cast<double>(tile) + part) / total); });
  };
  costs.set_bytes(tiles.full_bytes);
  // The states after the tiles before the present one, the newest last; at most kMostLag.
  std::vector<std::vector<double>> history;
  std::vector<std::uint64_t> repeats(kMostLag + 1, 0);
  for (std::uint64_t tile = 0; tile < tiles.full;) {
    TUTTI_TRY(run(tile));
    ++tile;
    if (!extrapolate || tiles.full < kMostLag) continue;
    for (std::size_t lag = 1; lag <= history.size(); ++lag) {
      const double allowed = kTolerance * std::max(runner.latest(), 1.0);
      const double delay = common_delay(runner.state(), history[history.size() - lag], allowed);
      repeats[lag] = delay < 0 ? 0 : repeats[lag] + 1;
      const std::uint64_t rounds = (tiles.full - tile) / lag;
      if (repeats[lag] < kRepeats || rounds == 0) continue;
      for (double& time : runner.state()) time += delay * static_cast<double>(rounds);
      tile += rounds * lag;
      history.clear();
      extrapolate = false;  // fewer than `lag` full tiles are left
      break;
    }
    history.push_back(runner.state());
    if (history.size() > kMostLag) history.erase(history.begin());
  }
  if (tiles.last > 0) {
    costs.set_bytes(tiles.last_bytes);
    TUTTI_TRY(run(tiles.full));
  }
  return runner.latest();
}

}  // namespace tutti

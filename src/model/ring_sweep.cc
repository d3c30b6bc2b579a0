// The sweep for rings. It is optimized, because the ranks of a ring together have very many steps: 2e10 for an
// all-reduce of 100,000 ranks.
//
// In a ring, rank s receives from rank s-1 and sends to rank s+1. Step n of rank s waits for three steps: step n-1
// of rank s; step n-1 of rank s-1, which sends the message; and, because of a credit, a step of rank s+1 that is
// not later than n-1. So step n of a rank depends on step n-k only of those ranks that are at most k ranks away. If
// each step were computed for all ranks before the next step, every array would be loaded from memory once per step.
// Instead, a band of kBand steps is computed for one block of ranks after the other. A block is shifted to the left by
// one rank for each step, because of the dependency on rank s+1. The ring is cut at rank 0: first the ranks from i to
// V - i - 1 are computed in step i of the band, which form a trapezoid, then the remaining ranks around rank 0, which
// form a triangle. (V is places_, the number of ranks that are computed.)
//
// The arrays begin at different offsets within a memory page (kStagger). If they began at the same offset, their
// elements with the same index would compete for the same few cache lines.
//
// Arrays of messages have one row per slot, so a message replaces the one that was sent slots_ messages before.
// That is safe, because the later message waits for the credit of the earlier one.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/assert.h"
#include "model/sweep.h"

namespace tutti {
namespace {

// Number of steps that are computed for one block of ranks before the next block.
constexpr std::size_t kBand = 128;
// Number of ranks of a block. With 14 arrays and the shift, a block needs about 40 KB of the cache.
constexpr std::size_t kBlock = 256;
// doubles in a page of 4 KiB
constexpr std::size_t kPage = 512;
// doubles by which the offsets of successive arrays in a page differ
constexpr std::size_t kStagger = 40;
// Below this number of ranks, bands and blocks are not worth it.
constexpr std::size_t kLeastPlaces = 4 * kBand;

// One row: consecutive ranks in one step, which receives one message and sends one. Each pointer is to the value of
// the first rank of the row, except that `in` and `in_latency` point to the rank before it, and `credit` to the
// rank after it.
struct Row {
  // in: end of the previous step; out: end of this step
  double* end;
  // in and out: when the rank's port is free
  double* free;
  // out: when the next rank receives the sent message
  double* seen;
  // out: when the previous rank gets the credit for the received message
  double* back;
  // when the received message arrives
  const double* in;
  // when the credit for the sent message arrives
  const double* credit;
  // duration of this step
  const double* times;
  // MessageTimes::transfer of the sent message
  const double* transfer;
  // MessageTimes::hold of the sent message
  const double* hold;
  // MessageTimes::latency of the received message
  const double* in_latency;
  // number of ranks of the row
  std::size_t count;
};

// Four doubles, an explicit vector type. The compiler does not vectorize the loop by itself, because it would have
// to check for overlaps of too many arrays.
using Four [[gnu::vector_size(32)]] = double;

[[gnu::always_inline]] inline void run_row(const Row& row) {
  const auto load = [](Four & to, const double* from) __attribute__((always_inline)) {
    std::memcpy(&to, from, sizeof(to));
  };
  const auto store = [](double* to, const Four& from) __attribute__((always_inline)) {
    std::memcpy(to, &from, sizeof(from));
  };
  std::size_t i = 0;
  for (; i + 4 <= row.count; i += 4) {
    Four end, in, credit, cost, free;
    load(end, row.end + i);
    load(in, row.in + i);
    load(credit, row.credit + i);
    end = end < in ? in : end;
    end = end < credit ? credit : end;
    load(cost, row.times + i);
    end += cost;
    store(row.end + i, end);
    load(cost, row.in_latency + i);
    store(row.back + i, end + cost);
    // If the message uses no port, `free` and `hold` are minus infinity, so that they have no effect.
    load(free, row.free + i);
    end = end < free ? free : end;
    load(cost, row.hold + i);
    store(row.free + i, end + cost);
    load(cost, row.transfer + i);
    store(row.seen + i, end + cost);
  }
  for (; i < row.count; ++i) {
    const double ended = row.end[i] = std::max({row.end[i], row.in[i], row.credit[i]}) + row.times[i];
    row.back[i] = ended + row.in_latency[i];
    const double depart = std::max(ended, row.free[i]);
    row.free[i] = depart + row.hold[i];
    row.seen[i] = depart + row.transfer[i];
  }
}

void run_row_plain(const Row& row) { run_row(row); }
#if defined(__x86_64__)
[[gnu::target("avx2")]] void run_row_avx2(const Row& row) { run_row(row); }
#endif

class RingSweep final : public TileRunner {
 public:
  RingSweep(const Programs& programs, const Costs& costs, std::uint32_t slots)
      : programs_(programs),
        costs_(costs),
        slots_(slots),
        places_(costs.places()),
        stride_((places_ + kPage - 1) / kPage * kPage + kStagger),
        arrivals_(slots * stride_) {
    state_.assign((2 + slots) * stride_, Costs::kNever);
    std::fill_n(state_.begin(), places_, 0.0);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) run_row_ = run_row_avx2;
#endif
  }

  Status run_tile(const Progress& progress) override;
  std::vector<double>& state() override { return state_; }
  double latest() const override {
    return *std::max_element(state_.begin(), state_.begin() + static_cast<std::ptrdiff_t>(places_));
  }

 private:
  double* ends() { return state_.data(); }
  double* ports() { return state_.data() + stride_; }
  double* credits(std::uint64_t message) { return state_.data() + (2 + message % slots_) * stride_; }
  double* arrivals(std::uint64_t message) { return arrivals_.data() + message % slots_ * stride_; }
  const double* transfer() const { return costs_of_message_.data(); }
  const double* hold() const { return costs_of_message_.data() + stride_; }
  const double* latency() const { return costs_of_message_.data() + 2 * stride_; }
  void copy_costs();
  void run_one(std::size_t step, std::size_t place);
  void run_range(std::size_t step, std::size_t first, std::size_t end);
  void run_band(std::size_t first_step, std::size_t steps);

  const Programs& programs_;
  const Costs& costs_;
  const std::size_t slots_;
  const std::size_t places_;
  const std::size_t stride_;  // distance from one array to the next, in doubles
  // three arrays: transfer, hold and latency of a message; each is indexed by the place of the rank that sends it
  std::vector<double> costs_of_message_;
  // one array, indexed by place, for each class of steps of equal duration
  std::vector<double> costs_of_steps_;
  // indexed by step: pointer to its array in costs_of_steps_
  std::vector<const double*> step_;
  // indexed by message modulo slots_, then by place of the sender
  std::vector<double> arrivals_;
  // arrays indexed by place: the ends of steps, when ports are free, and for each slot the credits (place of the
  // receiver)
  std::vector<double> state_;
  void (*run_row_)(const Row& row) = run_row_plain;
};

void RingSweep::copy_costs() {
  const MessageTimes& message = costs_.message(0);
  costs_of_message_.resize(3 * stride_);
  std::copy(message.transfer.begin(), message.transfer.end(), costs_of_message_.begin());
  std::copy(message.hold.begin(), message.hold.end(), costs_of_message_.begin() + static_cast<std::ptrdiff_t>(stride_));
  std::copy(message.latency.begin(), message.latency.end(),
            costs_of_message_.begin() + static_cast<std::ptrdiff_t>(2 * stride_));
  // The classes of steps, numbered from 0. The key is the address of the durations of the class. There are only a
  // few.
  std::map<const double*, std::size_t> kinds;
  const std::size_t steps = programs_.steps.size();
  for (std::size_t n = 0; n < steps; ++n) kinds.try_emplace(costs_.step(n).data(), kinds.size());
  costs_of_steps_.resize(kinds.size() * stride_);
  for (const auto& [times, kind] : kinds) std::copy_n(times, places_, costs_of_steps_.data() + kind * stride_);
  step_.resize(steps);
  for (std::size_t n = 0; n < steps; ++n) step_[n] = costs_of_steps_.data() + kinds.at(costs_.step(n).data()) * stride_;
}

// Runs one step of one rank. Message number n is sent in step n and received in step n + 1, so here the rank
// receives message `step` - 1 and sends message `step`.
void RingSweep::run_one(std::size_t step, std::size_t place) {
  const ProgramStep& program = programs_.steps[step];
  const std::size_t before = place == 0 ? places_ - 1 : place - 1;
  const std::size_t behind = place + 1 == places_ ? 0 : place + 1;
  double begin = ends()[place];
  if (program.receives > 0) begin = std::max(begin, arrivals(step - 1)[before]);
  if (program.sends > 0) begin = std::max(begin, credits(step)[behind]);
  const double end = ends()[place] = begin + step_[step][place];
  if (program.receives > 0) credits(step - 1)[place] = end + latency()[before];
  if (program.sends == 0) return;
  const double depart = std::max(end, ports()[place]);
  ports()[place] = depart + hold()[place];
  arrivals(step)[place] = depart + transfer()[place];
}

void RingSweep::run_range(std::size_t step, std::size_t first, std::size_t end) {
  const ProgramStep& program = programs_.steps[step];
  if (program.receives == 0 || program.sends == 0) {
    for (std::size_t place = first; place < end; ++place) run_one(step, place);
    return;
  }
  if (first == 0 && first < end) run_one(step, first++);
  const bool to_last = end == places_ && first < end;
  if (to_last) --end;
  if (first < end) {
    run_row_({.end = ends() + first,
              .free = ports() + first,
              .seen = arrivals(step) + first,
              .back = credits(step - 1) + first,
              .in = arrivals(step - 1) + first - 1,
              .credit = credits(step) + first + 1,
              .times = step_[step] + first,
              .transfer = transfer() + first,
              .hold = hold() + first,
              .in_latency = latency() + first - 1,
              .count = end - first});
  }
  if (to_last) run_one(step, places_ - 1);
}

void RingSweep::run_band(std::size_t first_step, std::size_t steps) {
  for (std::size_t block = 0; block < places_ + steps; block += kBlock) {
    for (std::size_t i = 0; i < steps && i < block + kBlock; ++i) {
      const std::size_t first = std::max(i, block < i ? 0 : block - i);
      const std::size_t end = std::min(places_ - i, block + kBlock - i);
      if (first < end) run_range(first_step + i, first, end);
    }
  }
  for (std::size_t i = 1; i < steps; ++i) {
    run_range(first_step + i, places_ - i, places_);
    run_range(first_step + i, 0, i);
  }
}

Status RingSweep::run_tile(const Progress& progress) {
  const std::size_t steps = programs_.steps.size();
  copy_costs();
  for (std::size_t first = 0; first < steps; first += kBand) {
    run_band(first, std::min(kBand, steps - first));
    if (progress) progress(static_cast<double>(first) / static_cast<double>(steps));
  }
  const auto turn = static_cast<std::ptrdiff_t>((steps - 1) % slots_ * stride_);
  const auto credits_begin = state_.begin() + static_cast<std::ptrdiff_t>(2 * stride_);
  std::rotate(credits_begin, credits_begin + turn, state_.end());
  return {};
}

}  // namespace

std::unique_ptr<TileRunner> make_ring_sweep(const Programs& programs, const Costs& costs, std::uint32_t slots) {
  if (!programs.runs.empty() || programs.threads.size() != 1 || programs.connections.size() != 1 || slots < 2)
    return nullptr;
  if (costs.places() < kLeastPlaces || programs.connections[0].places != 1 || !programs.waits.empty()) return nullptr;
  const std::size_t steps = programs.steps.size();
  for (std::size_t n = 0; n < steps; ++n) {
    const ProgramStep& step = programs.steps[n];
    if (step.receives != (n > 0 ? 1 : 0) || step.sends != (n + 1 < steps ? 1 : 0)) return nullptr;
  }
  return std::make_unique<RingSweep>(programs, costs, slots);
}

}  // namespace tutti

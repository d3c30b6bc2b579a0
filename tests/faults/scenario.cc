// Draws the scenarios and their faults from seeds.
#include "faults/scenario.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <random>
#include <span>

#include "algorithms/algorithms.h"
#include "plan/collective.h"

namespace tutti::faults {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::size_t kMostTiles = 12;  // of a block; more tiles take longer and reveal nothing new

class Dice {
 public:
  Dice(std::uint64_t seed, std::uint64_t purpose) : random_(seed * 0x9e3779b97f4a7c15u + purpose) {}
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <class List>
  auto of(const List& list) {
    return list[below(std::size(list))];
  }

 private:
  std::mt19937_64 random_;
};

constexpr std::array kTypes = {DataType::kFloat32, DataType::kInt32,    DataType::kFloat64, DataType::kUint8,
                               DataType::kFloat16, DataType::kBfloat16, DataType::kInt64};
constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kSum};

test::Case draw_call(Dice& dice, const SimOptions& sim) {
  test::Case call;
  const std::span<const CollectiveKind> kinds = all_collectives();
  call.kind = dice.of(kinds);
  call.type = dice.of(kTypes);
  call.op = dice.of(kOps);
  if (has_root(call.kind)) call.root = static_cast<std::int32_t>(dice.below(sim.ranks));
  const std::size_t most = std::max<std::size_t>(sim.slot_bytes * kMostTiles / size_of(call.type), 1);
  call.count = call.kind == CollectiveKind::kBarrier ? 0 : dice.one_in(4) ? dice.below(3) : dice.below(most);
  call.in_place = dice.one_in(3);
  call.registered = dice.one_in(2);
  call.algorithm = Algorithm::kAuto;
  if (dice.one_in(4)) return call;
  Collective collective;
  collective.kind = call.kind;
  collective.ranks = sim.ranks;
  collective.root = static_cast<std::uint32_t>(call.root);
  const Algorithm algorithm = dice.of(algorithms_of(call.kind));
  if (find_generator(collective, algorithm)) call.algorithm = algorithm;
  return call;
}

// Draws when the fault takes place: before a step of its rank, or at a time.
void place(Dice& dice, const Extent& extent, SimFault& fault) {
  if (dice.one_in(3)) {
    fault.at_ns = static_cast<std::int64_t>(dice.below(static_cast<std::uint64_t>(extent.end_ns) + 1));
  } else {
    fault.at_step = 1 + dice.below(std::max<std::uint64_t>(extent.steps[fault.rank], 1));
  }
}

void draw_pair(Dice& dice, std::uint32_t ranks, SimFault& fault) {
  fault.rank = static_cast<std::uint32_t>(dice.below(ranks));
  fault.peer = (fault.rank + 1 + static_cast<std::uint32_t>(dice.below(ranks - 1))) % ranks;
}

void add_harmless(Dice& dice, Scenario& scenario, const Extent& extent) {
  const std::int64_t timeout_ns = scenario.timeout.count() * kMs;
  SimFault fault;
  draw_pair(dice, scenario.sim.ranks, fault);
  fault.lasts_ns = static_cast<std::int64_t>(dice.below(static_cast<std::uint64_t>(timeout_ns / 5)));
  switch (dice.below(4)) {
    case 0: fault.kind = SimFaultKind::kStop; break;
    case 1:
      fault.kind = SimFaultKind::kSlow;
      fault.amount_ns = static_cast<std::int64_t>(dice.below(3 * kMs));
      break;
    case 2: fault.kind = SimFaultKind::kCut; break;
    case 3:
      fault.kind = SimFaultKind::kJump;
      fault.amount_ns = dice.one_in(2) ? 3600'000 * kMs : static_cast<std::int64_t>(dice.below(4'000 * kMs));
      fault.lasts_ns = 0;
      break;
  }
  place(dice, extent, fault);
  scenario.sim.faults.push_back(fault);
}

void add_harmful(Dice& dice, Scenario& scenario, const Extent& extent) {
  const std::int64_t timeout_ns = scenario.timeout.count() * kMs;
  const std::array lasts = {timeout_ns + timeout_ns / 2, 5 * timeout_ns, kForeverNs};
  SimFault fault;
  draw_pair(dice, scenario.sim.ranks, fault);
  place(dice, extent, fault);
  const bool tcp = scenario.network == Network::kTcp;
  switch (dice.below(tcp ? 8 : 6)) {
    case 0:
    case 1:
    case 2: fault.kind = SimFaultKind::kKill; break;
    case 3:
    case 4:
      fault.kind = SimFaultKind::kStop;
      fault.lasts_ns = dice.of(lasts);
      break;
    case 5: {
      fault.kind = SimFaultKind::kCut;
      fault.lasts_ns = dice.of(lasts);
      if (dice.one_in(2)) {  // cut the other direction, too
        SimFault back = fault;
        std::swap(back.rank, back.peer);
        if (back.at_step > 0) back.at_step = 1 + dice.below(std::max<std::uint64_t>(extent.steps[back.rank], 1));
        scenario.sim.faults.push_back(back);
      }
      break;
    }
    default: fault.kind = SimFaultKind::kReset; break;
  }
  scenario.sim.faults.push_back(fault);
}

Ending draw_ending(std::uint64_t seed, std::uint32_t ranks) {
  Dice dice(seed, 3);
  Ending ending;
  ending.uniform = dice.one_in(2);
  ending.shrinks = !dice.one_in(3);
  ending.agrees = !ending.shrinks || dice.one_in(2);
  if (ending.uniform && dice.one_in(3)) ending.agrees = ending.shrinks = false;
  if (ending.uniform) ending.uniform_every = Dice(seed, 4).of(std::array<std::size_t, 4>{1, 1, 2, 3});
  const std::uint64_t machines = dice.of(std::array<std::uint64_t, 4>{1, 1, 2, ranks});
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const auto lowest = static_cast<std::uint32_t>((rank * machines / ranks * ranks + machines - 1) / machines);
    ending.machines.push_back(lowest);
  }
  return ending;
}

}  // namespace

Scenario draw_scenario(std::uint64_t seed, EndingMode ends) {
  Dice dice(seed, 1);
  Scenario scenario;
  scenario.seed = seed;
  scenario.network = dice.one_in(2) ? Network::kTcp : Network::kMemory;
  SimOptions& sim = scenario.sim;
  sim.seed = seed;
  sim.ranks =
      dice.one_in(3) ? 2 + static_cast<std::uint32_t>(dice.below(8)) : 2 + static_cast<std::uint32_t>(dice.below(4));
  sim.max_latency_ns = dice.of(std::array<std::int64_t, 4>{2'000, 100'000, 100'000, 3 * kMs});
  sim.slots = dice.of(std::array<std::uint32_t, 3>{2, 3, 4});
  sim.slot_bytes = dice.of(std::array<std::uint64_t, 3>{64, 256, 2048});
  sim.max_notice_ns = dice.of(std::array<std::int64_t, 3>{kMs, 100 * kMs, 800 * kMs});
  sim.limit_ns = 600'000 * kMs;
  if (dice.one_in(8)) sim.memory_bytes = 10'000;
  // uses a separate generator, so that the rest of the scenario of a seed does not change
  sim.writes_outputs = Dice(seed, 5).one_in(2);
  for (std::uint32_t rank = 0; rank < sim.ranks; ++rank) {
    sim.clock_offsets_ns.push_back(static_cast<std::int64_t>(dice.below(86'400'000)) * kMs);
    sim.clock_drifts_ppm.push_back(static_cast<std::int32_t>(dice.below(200'001)) - 100'000);
  }
  const std::uint64_t calls = 1 + dice.below(4);
  for (std::uint64_t call = 0; call < calls; ++call) scenario.calls.push_back(draw_call(dice, sim));
  scenario.go_on = dice.one_in(2);
  scenario.finalizes = dice.one_in(2);
  if (ends == EndingMode::kWithSurvivors) scenario.ending = draw_ending(seed, sim.ranks);
  return scenario;
}

void draw_faults(Scenario& scenario, const Extent& extent) {
  Dice dice(scenario.seed, 2);
  const std::uint64_t harmless = dice.below(3);
  const std::uint64_t harmful = dice.one_in(3) ? 0 : dice.one_in(5) ? 2 : 1;
  for (std::uint64_t i = 0; i < harmless; ++i) add_harmless(dice, scenario, extent);
  for (std::uint64_t i = 0; i < harmful; ++i) {
    if (scenario.misuse == Misuse::kNone && dice.one_in(4)) {
      scenario.misuse = dice.of(std::array{Misuse::kAbsent, Misuse::kLeaves, Misuse::kAborts, Misuse::kMismatch});
      scenario.misuser = static_cast<std::uint32_t>(dice.below(scenario.sim.ranks));
      scenario.misused_call = dice.below(scenario.calls.size());
    } else {
      add_harmful(dice, scenario, extent);
    }
  }
}

void draw_late_fault(Scenario& scenario, const Extent& extent) {
  Dice dice(scenario.seed, 4);
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < scenario.sim.ranks; ++rank) {
    if (extent.ending_steps[rank] > 0 && extent.steps[rank] >= extent.ending_steps[rank]) ranks.push_back(rank);
  }
  if (ranks.empty()) return;
  SimFault fault;
  draw_pair(dice, scenario.sim.ranks, fault);
  fault.rank = dice.of(ranks);
  if (fault.peer == fault.rank) fault.peer = (fault.rank + 1) % scenario.sim.ranks;
  // Most steps are waits, and the important steps are mostly at the beginning.
  const std::uint64_t all = 1 + extent.steps[fault.rank] - extent.ending_steps[fault.rank];
  const std::uint64_t some = dice.one_in(2) ? std::min<std::uint64_t>(all, 60) : all;
  fault.at_step = extent.ending_steps[fault.rank] + dice.below(some);
  fault.kind = dice.one_in(5) ? SimFaultKind::kStop : SimFaultKind::kKill;
  const std::int64_t patience_ns = scenario.ending->patience.count() * kMs;
  if (fault.kind == SimFaultKind::kStop) fault.lasts_ns = dice.of(std::array{patience_ns / 5, 2 * patience_ns});
  scenario.sim.faults.push_back(fault);
}

bool harms(const SimFault& fault, std::chrono::milliseconds timeout) {
  switch (fault.kind) {
    case SimFaultKind::kKill:
    case SimFaultKind::kReset: return true;
    case SimFaultKind::kStop:
    case SimFaultKind::kCut: return fault.lasts_ns >= timeout.count() * kMs / 2;
    case SimFaultKind::kSlow:
    case SimFaultKind::kJump: return false;
  }
  return true;
}

std::int64_t delay_ns(const Scenario& scenario) {
  std::int64_t sum_ns = 0;
  for (const SimFault& fault : scenario.sim.faults) {
    if (fault.lasts_ns != kForeverNs) sum_ns += fault.lasts_ns;
  }
  return sum_ns;
}

std::string describe(const Scenario& scenario) {
  const SimOptions& sim = scenario.sim;
  std::string text = fmt::format(
      "seed {}: {} ranks over {}{}, {} slots of {} bytes, latency up to {:.3f} ms, deaths seen within {:.0f} ms, "
      "deadline {} ms\n",
      scenario.seed, sim.ranks, scenario.network == Network::kTcp ? "TCP" : "shared memory",
      sim.writes_outputs && scenario.network == Network::kMemory ? " that writes into outputs" : "", sim.slots,
      sim.slot_bytes, static_cast<double>(sim.max_latency_ns) / 1e6, static_cast<double>(sim.max_notice_ns) / 1e6,
      scenario.timeout.count());
  for (std::size_t i = 0; i < scenario.calls.size(); ++i) {
    text += fmt::format("  call {}: {}\n", i + 1, to_string(scenario.calls[i]));
  }
  text += fmt::format("  after an error of one call ranks {}\n", scenario.go_on ? "go on" : "leave");
  if (scenario.ending) {
    const Ending& ending = *scenario.ending;
    text += fmt::format("  then: {}{}{}machines by rank: {}; patience {} ms\n",
                        ending.uniform ? fmt::format("(uniform: 1 of {} calls) ", ending.uniform_every) : "",
                        ending.agrees ? "agree(), " : "", ending.shrinks ? "shrink(), " : "",
                        fmt::join(ending.machines, " "), ending.patience.count());
  }
  for (const SimFault& fault : sim.faults) {
    text += fmt::format("  fault {}{}\n", describe(fault), harms(fault, scenario.timeout) ? "" : " (harmless)");
  }
  constexpr std::array kWords = {"", "makes no more calls", "destroys its communicator", "calls abort()",
                                 "passes another count"};
  if (scenario.misuse != Misuse::kNone) {
    text += fmt::format("  rank {} {} at call {}\n", scenario.misuser,
                        kWords[static_cast<std::size_t>(scenario.misuse)], scenario.misused_call + 1);
  }
  return text;
}

}  // namespace tutti::faults

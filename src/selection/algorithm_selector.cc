// The rules are simple on purpose: rounds against bytes. What is small goes by few rounds, what is long by algorithms
// that send no byte twice; inside one machine every rank reaches every other one's memory, so the direct forms win
// while the ranks are not too many. Numbers: measured on two cores (docs/results), or where the text says so, reasoned.
#include "selection/algorithm_selector.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "algorithms/algorithms.h"
#include "executor/inline_collective.h"
#include "executor/single_copy.h"

namespace tutti::detail {
namespace {

// Up to here every rank adds all inputs itself: one exchange of messages instead of two. Measured.
constexpr std::uint64_t kOneShotBytes = 8 * 1024;
// Up to here across machines a message costs its latency rather than its bytes. Reasoned: 10 us at 1 to 10 GB/s.
constexpr std::uint64_t kShortBytes = 32 * 1024;
// Up to here a round more costs more than sending everything in every round. Reasoned, by the same numbers.
constexpr std::uint64_t kLatencyBytes = 8 * 1024;
constexpr std::uint32_t kManyRanks = 256;  // beyond, every rank would have to read from too many
// One rank that talks to all others in turn: beyond this, passing on is shorter. Reasoned.
constexpr std::uint32_t kFewRanks = 16;
constexpr std::uint64_t kBruckBytes = 256;  // of one block: below, passing on log p times beats p messages. Reasoned.

struct Situation {
  std::uint32_t ranks;
  std::uint64_t bytes;
  bool machines;  // several
  bool shared;    // some machine has several ranks
  bool memory;    // ranks of one machine share memory

  bool many() const { return ranks > kManyRanks; }
  bool is_short() const { return bytes <= kShortBytes; }
};

Algorithm choose_all_reduce(const Situation& s) {
  if (!s.memory && !s.machines && s.ranks > 2 && s.bytes <= kOneShotBytes) return Algorithm::kRecursiveDoubling;
  if (!s.machines) {
    if (s.many()) return s.bytes <= 2 * kShortBytes ? Algorithm::kDoubleTree : Algorithm::kRing;
    return s.bytes <= kOneShotBytes ? Algorithm::kOneShot : Algorithm::kTwoShot;
  }
  if (s.bytes <= kLatencyBytes && !s.many()) return Algorithm::kRecursiveDoubling;
  if (s.is_short()) return s.many() ? Algorithm::kDoubleTree : Algorithm::kHalvingDoubling;
  return s.shared ? Algorithm::kHierarchical : Algorithm::kRing;
}

Algorithm choose_broadcast(const Situation& s) {
  if (s.ranks <= kFewRanks || (!s.machines && !s.many())) return Algorithm::kDirect;
  return s.is_short() ? Algorithm::kBinomial : Algorithm::kDoubleTree;
}

Algorithm choose_reduce(const Situation& s) {
  if (s.is_short()) return s.ranks <= kFewRanks ? Algorithm::kDirect : Algorithm::kBinomial;
  // All add where memory is registered, which is not known here: up to eleven times quicker. Else messages to the root,
  // up to twice as slow as trees. Measured.
  if (s.memory && !s.machines && !s.many()) return Algorithm::kDirect;
  return s.many() ? Algorithm::kDoubleTree : Algorithm::kRing;
}

Algorithm choose_all_gather_or_reduce_scatter(const Situation& s) {
  if (!s.machines && !s.many()) return Algorithm::kDirect;
  if (s.is_short()) return s.ranks <= kFewRanks ? Algorithm::kDirect : Algorithm::kCirculant;
  return Algorithm::kRing;
}

Algorithm choose_all_to_all(const Situation& s) {
  const bool passing_on = s.ranks > kFewRanks && s.bytes <= kBruckBytes && s.machines;
  return passing_on || s.ranks > 4 * kManyRanks ? Algorithm::kBruck : Algorithm::kDirect;
}

}  // namespace

Algorithm choose_algorithm(const Collective& collective, const SelectionQuery& choice) {
  const std::uint64_t bytes = choice.bytes;
  const bool in_rank_order = choice.in_rank_order;
  Situation s{.ranks = collective.ranks,
              .bytes = bytes,
              .machines = false,
              .shared = collective.nodes.empty(),
              .memory = choice.memory};
  std::uint32_t machines = 0;
  for (const std::uint32_t node : collective.nodes) machines = node + 1 > machines ? node + 1 : machines;
  s.machines = machines > 1;
  s.shared |= machines < collective.ranks;
  const bool one_shot = bytes <= kOneShotBytes;
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
      if (in_rank_order) return one_shot ? Algorithm::kOneShot : Algorithm::kTwoShot;
      return choose_all_reduce(s);
    case CollectiveKind::kReduce: return in_rank_order ? Algorithm::kDirect : choose_reduce(s);
    case CollectiveKind::kReduceScatter:
      return in_rank_order ? Algorithm::kDirect : choose_all_gather_or_reduce_scatter(s);
    case CollectiveKind::kAllGather: return choose_all_gather_or_reduce_scatter(s);
    case CollectiveKind::kBroadcast: return choose_broadcast(s);
    case CollectiveKind::kAllToAll: return choose_all_to_all(s);
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      return (s.many() && s.is_short()) || s.ranks > 4 * kManyRanks ? Algorithm::kBinomial : Algorithm::kDirect;
    case CollectiveKind::kBarrier: return s.many() || s.machines ? Algorithm::kDoubleTree : Algorithm::kOneShot;
    case CollectiveKind::kSendReceive: break;
  }
  return Algorithm::kDirect;
}

const Tuner* AlgorithmSelector::tuner() {
  if (looked_ || options_.tuning == nullptr) return tuner_ ? &*tuner_ : nullptr;
  Parameters parameters = options_.tuning->parameters;
  const std::uint32_t limit = parameters.cores;  // of the cgroup
  parameters.cores = limit > 0 && options_.cores > 0 ? std::min(limit, options_.cores) : options_.cores;
  if (options_.slots > 0) parameters.slots = options_.slots;
  if (options_.slot_bytes > 0) parameters.slot_bytes = options_.slot_bytes;
  auto made = Tuner::create({.parameters = std::move(parameters),
                             .ranks = options_.ranks,
                             .nodes = options_.nodes,
                             .memory = options_.memory});
  if (made) tuner_ = *std::move(made);
  looked_ = true;  // last: after an exception it looks again, because all ranks must have the same answer
  return tuner_ ? &*tuner_ : nullptr;
}

SelectionQuery AlgorithmSelector::complete(const Collective& collective, SelectionQuery choice) const {
  choice.memory = options_.memory;
  choice.attached =
      choice.attached && uses_attached_memory(collective, choice.bytes, options_.attachment, options_.cores);
  return choice;
}

Way AlgorithmSelector::way_of(const Collective& collective, const SelectionQuery& choice, Algorithm algorithm) const {
  if (!options_.mailboxes) return Way::kByMessages;
  if (InlineCollective::takes(collective, algorithm, choice.bytes)) return Way::kByMailbox;
  if (!SingleCopyCollective::takes(collective, algorithm, ReduceOp::kSum)) return Way::kByMessages;
  // What is registered counts as plain here: ranks do not know that of each other.
  if (!choice.attached) return Way::kByMessages;
  return options_.attachment == Attachment::kPointers ? Way::kByMemory : Way::kByCalls;
}

std::vector<Contender> AlgorithmSelector::contenders(const Collective& collective, const SelectionQuery& choice) const {
  std::vector<Contender> contenders;
  const Selection rule = overridden(collective, choice).value_or(Selection{});
  for (const Algorithm algorithm : algorithms_of(collective.kind)) {
    const auto generator = find_generator(collective, algorithm);
    if (!generator || (choice.in_rank_order && generator->shape.order != Order::kByRank)) continue;
    const Way way = way_of(collective, choice, algorithm);
    const bool cut = rule.algorithm == algorithm && way == Way::kByMessages;
    contenders.push_back({.algorithm = algorithm, .way = way, .chunk_bytes = cut ? rule.chunk_bytes : 0});
  }
  return contenders;
}

std::optional<Selection> AlgorithmSelector::overridden(const Collective& collective,
                                                       const SelectionQuery& choice) const {
  if (options_.tuning == nullptr) return std::nullopt;
  for (const Override& rule : options_.tuning->overrides) {
    if (!rule.fits(collective.kind, choice.bytes, collective.ranks)) continue;
    const auto generator = find_generator(collective, rule.algorithm);
    if (generator && (!choice.in_rank_order || generator->shape.order == Order::kByRank))
      return Selection{rule.algorithm, rule.chunk_bytes};
  }
  return std::nullopt;
}

AlgorithmSelector::Decision AlgorithmSelector::explain(Collective collective, SelectionQuery choice) {
  collective.root = 0;
  choice = complete(collective, choice);
  Decision decision;
  decision.rule_of_thumb = choose_algorithm(collective, choice);
  decision.algorithm = decision.rule_of_thumb;
  if (const Tuner* tuner = this->tuner(); tuner != nullptr && collective.ranks > 1) {
    SelectionQuery longest = choice;
    longest.bytes = decided_as(choice.bytes);
    decision.predictions = tuner->predict_all(collective, longest.bytes, contenders(collective, longest));
  }
  if (const auto rule = overridden(collective, choice)) {
    decision.algorithm = rule->algorithm;
    decision.chunk_bytes = rule->chunk_bytes;
    decision.by = By::kOverride;
    decision.reason = "a rule of TUTTI_TUNE";
    return decision;
  }
  if (!tuner_decides()) {
    decision.reason = "all ranks share memory: the measured rule of thumb";
    return decision;
  }
  const auto thumb = std::find_if(decision.predictions.begin(), decision.predictions.end(), [&](const Prediction& one) {
    return one.contender.algorithm == decision.rule_of_thumb;
  });
  if (thumb == decision.predictions.end()) {
    decision.reason = "no prediction: the rule of thumb";
    return decision;
  }
  const Prediction& best = decision.predictions.front();
  const double part = best.total_us() / thumb->total_us();
  if (!(part <= kWorthChanging)) {
    decision.reason = fmt::format("the rule of thumb: the quickest is predicted to take {:.2f} of its time", part);
    return decision;
  }
  decision.algorithm = best.contender.algorithm;
  decision.by = By::kTuner;
  decision.reason = fmt::format("predicted to take {:.2f} of the time of {}, the rule of thumb", part,
                                to_string(decision.rule_of_thumb));
  return decision;
}

std::uint64_t AlgorithmSelector::decided_as(std::uint64_t bytes) {
  constexpr unsigned kMostBits = 48;  // beyond, no call is possible
  return bytes <= 1 ? 1 : std::uint64_t{1} << std::min<unsigned>(std::bit_width(bytes - 1), kMostBits);
}

Selection AlgorithmSelector::choose(const Collective& collective, const SelectionQuery& asked) {
  const SelectionQuery choice = complete(collective, asked);
  if (options_.tuning == nullptr) return {.algorithm = choose_algorithm(collective, choice)};
  if (choice.on_device || !tuner_decides()) {
    return overridden(collective, choice).value_or(Selection{.algorithm = choose_algorithm(collective, choice)});
  }
  // Rules may end anywhere, and the table has powers of two.
  if (const auto rule = overridden(collective, choice)) return *rule;
  const std::uint32_t key =
      static_cast<std::uint32_t>(collective.kind) * 4 + (choice.in_rank_order ? 2 : 0) + (choice.attached ? 1 : 0);
  const auto bucket = static_cast<unsigned>(std::bit_width(decided_as(choice.bytes) - 1));
  Selection& chosen = table_.try_emplace(key, Buckets{}).first->second[bucket];
  if (chosen.algorithm == Algorithm::kAuto) {
    const Decision decision = explain(collective, asked);
    chosen = {decision.algorithm, decision.chunk_bytes};  // of rules only
  }
  return chosen;
}

std::optional<double> AlgorithmSelector::predict(const Collective& collective, const SelectionQuery& asked,
                                                 Selection chosen) {
  const SelectionQuery choice = complete(collective, asked);
  const Tuner* tuner = this->tuner();
  if (tuner == nullptr || collective.ranks < 2) return std::nullopt;
  const Way way = way_of(collective, choice, chosen.algorithm);
  const PredictionKey key{collective.kind, chosen.algorithm, way, chosen.chunk_bytes, choice.bytes};
  const auto kept = predicted_.find(key);
  if (kept != predicted_.end()) return kept->second;
  Collective rooted = collective;
  rooted.root = 0;
  const auto predicted = tuner->predict(rooted, choice.bytes,
                                        {.algorithm = chosen.algorithm, .way = way, .chunk_bytes = chosen.chunk_bytes});
  ++simulated_;
  if (predicted_.size() == kMostKeptPredictions) predicted_.clear();
  return predicted_[key] = predicted ? std::optional(predicted->total_us()) : std::nullopt;
}

}  // namespace tutti::detail

// The rules of thumb weigh the number of rounds against the number of bytes, and are deliberately simple. Short
// calls use algorithms with few rounds. Long calls use algorithms in which each rank sends few bytes. Within one
// machine every rank can usually access every other rank's memory, so the direct algorithms are best unless there are
// too many ranks. Most comments state whether a number was measured (on two cores, unless the comment names a GPU;
// docs/results) or estimated.
#include "selection/algorithm_selector.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "algorithms/algorithms.h"
#include "executor/inline_collective.h"
#include "executor/single_copy.h"

namespace tutti::detail {
namespace {

// The limit for one_shot that takes the place of SelectionQuery::one_shot_bytes if some ranks do not share memory. Up
// to this size, an all_reduce over sockets inside one machine uses recursive doubling with more than two ranks.
// Measured.
constexpr std::uint64_t kShortBySocketsBytes = 8 * 1024;
// In an all_reduce by one_shot every rank adds all inputs itself, which takes one exchange of messages instead of two.
// This is the limit for one_shot if one GPU carries the call out. A step of a GPU takes long: 4.8 us on one H100. There
// one_shot with the protocol simple was faster at this size, the longest that was measured, for 2, 4 and 8 ranks on
// that GPU (docs/results/2026-11-26-gpu.md).
constexpr std::uint64_t kOneGpuOneShotBytes = 256 * 1024;
// The limit for one_shot if several GPUs carry the call out. Every rank then reads the inputs of all others over its
// link, so the limit depends on the link. Estimate for 8 GPUs: 140 KiB with NVLink (300 GB/s), 23 KiB with PCIe (25
// GB/s).
constexpr std::uint64_t kSeveralGpusOneShotBytes = 32 * 1024;
// Up to this size the cost of a message between machines is mainly its latency. Estimate: 10 us at 1 to 10 GB/s.
constexpr std::uint64_t kShortBytes = 32 * 1024;
// Up to this size an additional round costs more than sending all data in every round. Estimate, from the same latency
// (10 us) and bandwidth (1 to 10 GB/s) as kShortBytes.
constexpr std::uint64_t kLatencyBytes = 8 * 1024;
// With more ranks than this, most rules avoid the direct algorithms, because every rank would have to exchange data
// with too many others.
constexpr std::uint32_t kManyRanks = 256;
// Up to this number of ranks, most rules for short calls on several machines use algorithms in which a rank sends its
// data directly to every rank that needs it. With more ranks, algorithms that forward the data are faster. Estimate.
constexpr std::uint32_t kFewRanks = 16;
// If a block of an all_to_all between machines is at most this long, forwarding the data log p times is faster than
// sending p messages, for p > kFewRanks ranks. Estimate.
constexpr std::uint64_t kBruckBytes = 256;

std::uint64_t one_shot_bytes(const SelectionQuery& query, bool machines) {
  switch (query.gpus) {
    case GpuUse::kNone: return query.memory && !machines ? query.one_shot_bytes : kShortBySocketsBytes;
    case GpuUse::kOneGpu: return kOneGpuOneShotBytes;
    case GpuUse::kSeveralGpus: return kSeveralGpusOneShotBytes;
  }
  return 0;
}

// The facts about the communicator and the call that the rules use.
struct CallFacts {
  std::uint32_t ranks;
  std::uint64_t bytes;
  bool one_shot;  // the call is at most one_shot_bytes() long
  bool machines;  // the ranks are on several machines
  bool shared;    // some machine has several ranks
  bool memory;    // ranks of one machine share memory

  bool many() const { return ranks > kManyRanks; }
  bool is_short() const { return bytes <= kShortBytes; }
};

Algorithm choose_all_reduce(const CallFacts& s) {
  if (!s.memory && !s.machines && s.ranks > 2 && s.one_shot) return Algorithm::kRecursiveDoubling;
  if (!s.machines) {
    if (s.many()) return s.bytes <= 2 * kShortBytes ? Algorithm::kDoubleTree : Algorithm::kRing;
    return s.one_shot ? Algorithm::kOneShot : Algorithm::kTwoShot;
  }
  if (s.bytes <= kLatencyBytes && !s.many()) return Algorithm::kRecursiveDoubling;
  if (s.is_short()) return s.many() ? Algorithm::kDoubleTree : Algorithm::kHalvingDoubling;
  return s.shared ? Algorithm::kHierarchical : Algorithm::kRing;
}

Algorithm choose_broadcast(const CallFacts& s) {
  if (s.ranks <= kFewRanks || (!s.machines && !s.many())) return Algorithm::kDirect;
  return s.is_short() ? Algorithm::kBinomial : Algorithm::kDoubleTree;
}

Algorithm choose_reduce(const CallFacts& s) {
  if (s.is_short()) return s.ranks <= kFewRanks ? Algorithm::kDirect : Algorithm::kBinomial;
  // kDirect: if the ranks can access each other's buffers (for example registered ones), all ranks add a part each,
  // which is up to eleven times faster than trees. Otherwise all messages go to the root, which is up to twice as slow
  // as trees. A rank does not know here whether the buffers of the other ranks are registered. Measured.
  if (s.memory && !s.machines && !s.many()) return Algorithm::kDirect;
  return s.many() ? Algorithm::kDoubleTree : Algorithm::kRing;
}

Algorithm choose_all_gather_or_reduce_scatter(const CallFacts& s) {
  if (!s.machines && !s.many()) return Algorithm::kDirect;
  if (s.is_short()) return s.ranks <= kFewRanks ? Algorithm::kDirect : Algorithm::kCirculant;
  return Algorithm::kRing;
}

Algorithm choose_all_to_all(const CallFacts& s) {
  const bool passing_on = s.ranks > kFewRanks && s.bytes <= kBruckBytes && s.machines;
  return passing_on || s.ranks > 4 * kManyRanks ? Algorithm::kBruck : Algorithm::kDirect;
}

}  // namespace

Algorithm choose_algorithm(const Collective& collective, const SelectionQuery& query) {
  const std::uint64_t bytes = query.bytes;
  const bool in_rank_order = query.in_rank_order;
  CallFacts s{.ranks = collective.ranks,
              .bytes = bytes,
              .one_shot = false,
              .machines = false,
              .shared = collective.nodes.empty(),
              .memory = query.memory || query.gpus != GpuUse::kNone};
  std::uint32_t machines = 0;
  for (const std::uint32_t node : collective.nodes) machines = node + 1 > machines ? node + 1 : machines;
  s.machines = machines > 1;
  s.one_shot = bytes <= one_shot_bytes(query, s.machines);
  s.shared |= machines < collective.ranks;
  // Each case has rules of its own. A collective for which there is no case uses its direct algorithm.
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
      if (in_rank_order) return s.one_shot ? Algorithm::kOneShot : Algorithm::kTwoShot;
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
    default: return Algorithm::kDirect;
  }
}

const Tuner* AlgorithmSelector::tuner() {
  if (tuner_created_ || options_.tuning == nullptr) return tuner_ ? &*tuner_ : nullptr;
  Parameters parameters = options_.tuning->parameters;
  const std::uint32_t limit = parameters.cores;  // the number of cores to which rank 0's cgroup is limited; 0: no limit
  parameters.cores = limit > 0 && options_.cores > 0 ? std::min(limit, options_.cores) : options_.cores;
  if (options_.slots > 0) parameters.slots = options_.slots;
  if (options_.slot_bytes > 0) parameters.slot_bytes = options_.slot_bytes;
  auto made = Tuner::create({.parameters = std::move(parameters),
                             .ranks = options_.ranks,
                             .nodes = options_.nodes,
                             .memory = options_.memory});
  if (made) tuner_ = *std::move(made);
  // Set last. If an exception is thrown above, the next call tries again, because all ranks must get the same
  // result.
  tuner_created_ = true;
  return tuner_ ? &*tuner_ : nullptr;
}

SelectionQuery AlgorithmSelector::complete(const Collective& collective, SelectionQuery query) const {
  query.memory = options_.memory;
  query.attached =
      query.attached && uses_attached_memory(collective, query.bytes, options_.attachment, options_.choices);
  query.one_shot_bytes = options_.choices.one_shot_bytes;
  return query;
}

ExecutionMethod AlgorithmSelector::way_of(const Collective& collective, const SelectionQuery& query,
                                          Algorithm algorithm) const {
  if (!options_.mailboxes) return ExecutionMethod::kByMessages;
  if (InlineCollective::takes(collective, algorithm, query.bytes)) return ExecutionMethod::kByMailbox;
  if (!SingleCopyCollective::takes(collective, algorithm, ReduceOp::kSum)) return ExecutionMethod::kByMessages;
  // Registered memory is treated like other memory here, because ranks do not know which memory the other ranks
  // have registered.
  if (!query.attached) return ExecutionMethod::kByMessages;
  return options_.attachment == Attachment::kPointers ? ExecutionMethod::kByMemory : ExecutionMethod::kByCalls;
}

std::vector<Candidate> AlgorithmSelector::candidates(const Collective& collective, const SelectionQuery& query) const {
  std::vector<Candidate> candidates;
  const Selection rule = overridden(collective, query).value_or(Selection{});
  for (const Algorithm algorithm : algorithms_of(collective.kind)) {
    const auto generator = find_generator(collective, algorithm);
    if (!generator || (query.in_rank_order && generator->shape.order != Order::kByRank)) continue;
    const ExecutionMethod way = way_of(collective, query, algorithm);
    const bool cut = rule.algorithm == algorithm && way == ExecutionMethod::kByMessages;
    candidates.push_back({.algorithm = algorithm, .way = way, .chunk_bytes = cut ? rule.chunk_bytes : 0});
  }
  return candidates;
}

std::optional<Selection> AlgorithmSelector::overridden(const Collective& collective,
                                                       const SelectionQuery& query) const {
  if (options_.tuning == nullptr) return std::nullopt;
  for (const Override& rule : options_.tuning->overrides) {
    if (!rule.fits(collective.kind, query.bytes, collective.ranks)) continue;
    const auto generator = find_generator(collective, rule.algorithm);
    if (generator && (!query.in_rank_order || generator->shape.order == Order::kByRank))
      return Selection{rule.algorithm, rule.chunk_bytes};
  }
  return std::nullopt;
}

AlgorithmSelector::Decision AlgorithmSelector::explain(Collective collective, SelectionQuery query) {
  collective.root = 0;
  query = complete(collective, query);
  Decision decision;
  decision.rule_of_thumb = choose_algorithm(collective, query);
  decision.algorithm = decision.rule_of_thumb;
  if (const Tuner* tuner = this->tuner(); tuner != nullptr && collective.ranks > 1) {
    SelectionQuery longest = query;
    longest.bytes = rounded_up_bytes(query.bytes);
    decision.predictions = tuner->predict_all(collective, longest.bytes, candidates(collective, longest));
  }
  if (const auto rule = overridden(collective, query)) {
    decision.algorithm = rule->algorithm;
    decision.chunk_bytes = rule->chunk_bytes;
    decision.by = By::kOverride;
    decision.reason = "a rule of TUTTI_TUNE";
    return decision;
  }
  if (!tuner_decides()) {
    const bool measured =
        options_.tuning != nullptr && has_choices(options_.tuning->parameters.choices, options_.ranks, options_.cores);
    decision.reason = fmt::format(
        "the rule of thumb, and not these predictions, because all ranks share memory. Its sizes are {}: {}",
        measured ? "those of the file" : "defaults from other machines", to_string(options_.choices));
    return decision;
  }
  const auto thumb = std::find_if(decision.predictions.begin(), decision.predictions.end(), [&](const Prediction& one) {
    return one.candidate.algorithm == decision.rule_of_thumb;
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
  decision.algorithm = best.candidate.algorithm;
  decision.by = By::kTuner;
  decision.reason = fmt::format("predicted to take {:.2f} of the time of {}, the rule of thumb", part,
                                to_string(decision.rule_of_thumb));
  return decision;
}

std::uint64_t AlgorithmSelector::rounded_up_bytes(std::uint64_t bytes) {
  constexpr unsigned kMostBits = 48;  // longer blocks count as 2^48 bytes; no machine has as much memory
  return bytes <= 1 ? 1 : std::uint64_t{1} << std::min<unsigned>(std::bit_width(bytes - 1), kMostBits);
}

Selection AlgorithmSelector::choose(const Collective& collective, const SelectionQuery& given) {
  const SelectionQuery query = complete(collective, given);
  if (options_.tuning == nullptr) return {.algorithm = choose_algorithm(collective, query)};
  if (query.gpus != GpuUse::kNone || !tuner_decides()) {
    return overridden(collective, query).value_or(Selection{.algorithm = choose_algorithm(collective, query)});
  }
  // Rules can begin and end at any size, so they cannot be stored in the table, which has powers of two.
  if (const auto rule = overridden(collective, query)) return *rule;
  const std::uint32_t key =
      static_cast<std::uint32_t>(collective.kind) * 4 + (query.in_rank_order ? 2 : 0) + (query.attached ? 1 : 0);
  const auto bucket = static_cast<unsigned>(std::bit_width(rounded_up_bytes(query.bytes) - 1));
  Selection& selection = table_.try_emplace(key, Buckets{}).first->second[bucket];
  if (selection.algorithm == Algorithm::kAuto) {
    const Decision decision = explain(collective, given);
    // chunk_bytes is 0 here, because only a rule of TUTTI_TUNE sets it, and rules were handled above.
    selection = {decision.algorithm, decision.chunk_bytes};
  }
  return selection;
}

std::optional<double> AlgorithmSelector::predict(const Collective& collective, const SelectionQuery& given,
                                                 Selection selection) {
  const SelectionQuery query = complete(collective, given);
  const Tuner* tuner = this->tuner();
  if (tuner == nullptr || collective.ranks < 2) return std::nullopt;
  const ExecutionMethod way = way_of(collective, query, selection.algorithm);
  const PredictionKey key{collective.kind, selection.algorithm, way, selection.chunk_bytes, query.bytes};
  const auto kept = predicted_.find(key);
  if (kept != predicted_.end()) return kept->second;
  Collective rooted = collective;
  rooted.root = 0;
  const auto predicted = tuner->predict(
      rooted, query.bytes, {.algorithm = selection.algorithm, .way = way, .chunk_bytes = selection.chunk_bytes});
  ++simulated_;
  if (predicted_.size() == kMaxStoredPredictions) predicted_.clear();
  return predicted_[key] = predicted ? std::optional(predicted->total_us()) : std::nullopt;
}

}  // namespace tutti::detail

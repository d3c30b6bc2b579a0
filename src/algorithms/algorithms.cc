// Selects a generator by collective and algorithm, and rejects unsupported combinations.
#include "algorithms/algorithms.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "algorithms/generators.h"
#include "plan/collective.h"

namespace tutti {
namespace {

Error refusal(ErrorCode code, std::string message) {
  return {.code = code, .scope = ErrorScope::kCall, .rank = -1, .message = std::move(message)};
}

struct AlgorithmEntry {
  CollectiveKind kind;
  Algorithm algorithm;
  Generator (*generator)(const Collective& collective);
  std::uint32_t most_ranks;
};

using Kind = CollectiveKind;

// All plans. A barrier is an all_reduce of empty data.
constexpr AlgorithmEntry kAlgorithms[] = {
    {Kind::kAllReduce, Algorithm::kRing, ring_all_reduce, kMaxRanks},
    {Kind::kAllReduce, Algorithm::kDoubleTree, double_tree_all_reduce, kMaxRanks},
    {Kind::kAllReduce, Algorithm::kOneShot, one_shot_all_reduce, kMaxDirectRanks},
    {Kind::kAllReduce, Algorithm::kTwoShot, two_shot_all_reduce, kMaxDirectRanks},
    {Kind::kBroadcast, Algorithm::kRing, ring_broadcast, kMaxDirectRanks},
    {Kind::kBroadcast, Algorithm::kDoubleTree, double_tree_broadcast, kMaxRanks},
    {Kind::kBroadcast, Algorithm::kBinomial, binomial_broadcast, kMaxRanks},
    {Kind::kBroadcast, Algorithm::kChain, chain_broadcast, kMaxRanks},
    {Kind::kBroadcast, Algorithm::kTree, tree_broadcast, kMaxRanks},
    {Kind::kBroadcast, Algorithm::kDirect, direct_broadcast, kMaxDirectRanks},
    {Kind::kReduce, Algorithm::kRing, ring_reduce, kMaxDirectRanks},
    {Kind::kReduce, Algorithm::kDoubleTree, double_tree_reduce, kMaxRanks},
    {Kind::kReduce, Algorithm::kBinomial, binomial_reduce, kMaxRanks},
    {Kind::kReduce, Algorithm::kChain, chain_reduce, kMaxRanks},
    {Kind::kReduce, Algorithm::kTree, tree_reduce, kMaxRanks},
    {Kind::kReduce, Algorithm::kDirect, direct_reduce, kMaxDirectRanks},
    {Kind::kAllGather, Algorithm::kRing, ring_all_gather, kMaxRanks},
    {Kind::kAllGather, Algorithm::kDirect, direct_all_gather, kMaxDirectRanks},
    {Kind::kReduceScatter, Algorithm::kRing, ring_reduce_scatter, kMaxRanks},
    {Kind::kReduceScatter, Algorithm::kDirect, direct_reduce_scatter, kMaxDirectRanks},
    {Kind::kAllToAll, Algorithm::kDirect, direct_all_to_all, kMaxDirectRanks},
    {Kind::kAllToAll, Algorithm::kPairwise, pairwise_all_to_all, kMaxDirectRanks},
    {Kind::kAllToAll, Algorithm::kBruck, bruck_all_to_all, kMaxRanks},
    {Kind::kGather, Algorithm::kBinomial, binomial_gather, kMaxRanks},
    {Kind::kGather, Algorithm::kDirect, direct_gather, kMaxDirectRanks},
    {Kind::kScatter, Algorithm::kBinomial, binomial_scatter, kMaxRanks},
    {Kind::kScatter, Algorithm::kDirect, direct_scatter, kMaxDirectRanks},
    {Kind::kAllReduce, Algorithm::kHalvingDoubling, halving_doubling_all_reduce, kMaxRanks},
    {Kind::kAllReduce, Algorithm::kRecursiveDoubling, recursive_doubling_all_reduce, kMaxRanks},
    {Kind::kAllReduce, Algorithm::kCirculant, circulant_all_reduce, kMaxRanks},
    {Kind::kAllReduce, Algorithm::kHierarchical, hierarchical_all_reduce, kMaxRanks},
    {Kind::kAllReduce, Algorithm::kHierarchicalTree, hierarchical_tree_all_reduce, kMaxRanks},
    {Kind::kAllGather, Algorithm::kCirculant, circulant_all_gather, kMaxRanks},
    {Kind::kReduceScatter, Algorithm::kCirculant, circulant_reduce_scatter, kMaxRanks},
    {Kind::kAllGather, Algorithm::kHierarchical, hierarchical_all_gather, kMaxRanks},
    {Kind::kReduceScatter, Algorithm::kHierarchical, hierarchical_reduce_scatter, kMaxRanks},
    {Kind::kBarrier, Algorithm::kDoubleTree, double_tree_all_reduce, kMaxRanks},
    {Kind::kBarrier, Algorithm::kOneShot, one_shot_all_reduce, kMaxDirectRanks},
};

std::string names_of(const std::vector<Algorithm>& algorithms) {
  std::string text;
  for (const Algorithm algorithm : algorithms) {
    if (!text.empty()) text += ", ";
    text += to_string(algorithm);
  }
  return text;
}

// The algorithms without a limit on the number of ranks (other than kMaxRanks).
std::vector<Algorithm> algorithms_for_many(CollectiveKind kind) {
  std::vector<Algorithm> algorithms;
  for (const AlgorithmEntry& entry : kAlgorithms) {
    if (entry.kind == kind && entry.most_ranks == kMaxRanks) algorithms.push_back(entry.algorithm);
  }
  return algorithms;
}

}  // namespace

std::vector<Algorithm> algorithms_of(CollectiveKind kind) {
  std::vector<Algorithm> algorithms;
  for (const AlgorithmEntry& entry : kAlgorithms) {
    if (entry.kind == kind) algorithms.push_back(entry.algorithm);
  }
  std::sort(algorithms.begin(), algorithms.end());
  return algorithms;
}

Result<Generator> find_generator(const Collective& collective, Algorithm algorithm) {
  if (collective.ranks == 0) return refusal(ErrorCode::kInvalidArgument, "a collective needs at least 1 rank, not 0");
  if (collective.ranks > kMaxRanks) {
    return refusal(ErrorCode::kUnsupported,
                   fmt::format("{} ranks are more than the {} that a plan supports", collective.ranks, kMaxRanks));
  }
  if (collective.root >= (has_root(collective.kind) ? collective.ranks : 1)) {
    return refusal(ErrorCode::kInvalidArgument,
                   fmt::format("root {} is outside 0..{}", collective.root, collective.ranks - 1));
  }
  if (!collective.nodes.empty() && collective.nodes.size() != collective.ranks) {
    return refusal(ErrorCode::kInvalidArgument,
                   fmt::format("nodes gives the machines of {} ranks, but there are {} ranks", collective.nodes.size(),
                               collective.ranks));
  }
  const auto entry = std::find_if(std::begin(kAlgorithms), std::end(kAlgorithms), [&](const AlgorithmEntry& each) {
    return each.kind == collective.kind && each.algorithm == algorithm;
  });
  if (entry == std::end(kAlgorithms)) {
    const std::vector<Algorithm> known = algorithms_of(collective.kind);
    return refusal(known.empty() ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument,
                   fmt::format("algorithm {} is not one that has a plan for {}; choose {}", to_string(algorithm),
                               to_string(collective.kind), known.empty() ? "another collective" : names_of(known)));
  }
  if (collective.ranks > entry->most_ranks) {
    return refusal(
        ErrorCode::kUnsupported,
        fmt::format("{} lets one rank communicate with all others and supports at most {} ranks, not {}; choose {}",
                    to_string(algorithm), entry->most_ranks, collective.ranks,
                    names_of(algorithms_for_many(collective.kind))));
  }
  return entry->generator(collective);
}

}  // namespace tutti

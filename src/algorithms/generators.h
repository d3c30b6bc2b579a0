// The generators of all algorithms, and a table with the collective and the algorithm of each generator.
// find_generator() (algorithms.h) selects one of them. Pure functions. Collective::ranks must be at least 1.
#pragma once

#include <array>
#include <cstdint>

#include "plan/plan.h"

namespace tutti {

// Largest number of ranks for algorithms in which one rank communicates with all others. In many of these algorithms,
// one step adds one operand per rank or sends one copy per rank, and the CPU kernel that runs a step does not support
// more operands (kMaxSources in kernels/cpu/reduce.h).
inline constexpr std::uint32_t kMaxDirectRanks = 1024;

// Largest number of ranks of any algorithm. With this limit, the number of chunks of a ring (one per rank) and the
// number of its steps (2 * ranks - 1) fit into 32 bits.
inline constexpr std::uint32_t kMaxRanks = 1u << 24;

Generator ring_all_reduce(const Collective& collective);
Generator double_tree_all_reduce(const Collective& collective);
Generator one_shot_all_reduce(const Collective& collective);
Generator two_shot_all_reduce(const Collective& collective);
Generator halving_doubling_all_reduce(const Collective& collective);
Generator recursive_doubling_all_reduce(const Collective& collective);
Generator circulant_all_reduce(const Collective& collective);
Generator hierarchical_all_reduce(const Collective& collective);
Generator hierarchical_tree_all_reduce(const Collective& collective);
Generator circulant_reduce_scatter(const Collective& collective);
Generator circulant_all_gather(const Collective& collective);
Generator halving_doubling_all_reduce_in_runs(const Collective& collective);
Generator circulant_all_reduce_in_runs(const Collective& collective);
Generator circulant_reduce_scatter_in_runs(const Collective& collective);
Generator circulant_all_gather_in_runs(const Collective& collective);

Generator binomial_broadcast(const Collective& collective);
Generator chain_broadcast(const Collective& collective);
Generator tree_broadcast(const Collective& collective);
Generator double_tree_broadcast(const Collective& collective);
Generator direct_broadcast(const Collective& collective);
Generator ring_broadcast(const Collective& collective);

Generator binomial_reduce(const Collective& collective);
Generator chain_reduce(const Collective& collective);
Generator tree_reduce(const Collective& collective);
Generator double_tree_reduce(const Collective& collective);
Generator direct_reduce(const Collective& collective);
Generator ring_reduce(const Collective& collective);

Generator ring_all_gather(const Collective& collective);
Generator direct_all_gather(const Collective& collective);
Generator hierarchical_all_gather(const Collective& collective);

Generator ring_reduce_scatter(const Collective& collective);
Generator direct_reduce_scatter(const Collective& collective);
Generator hierarchical_reduce_scatter(const Collective& collective);

Generator pairwise_all_to_all(const Collective& collective);
Generator direct_all_to_all(const Collective& collective);
Generator bruck_all_to_all(const Collective& collective);

Generator direct_gather(const Collective& collective);
Generator binomial_gather(const Collective& collective);
Generator direct_scatter(const Collective& collective);
Generator binomial_scatter(const Collective& collective);
Generator binomial_gather_in_runs(const Collective& collective);
Generator binomial_scatter_in_runs(const Collective& collective);

struct AlgorithmRow {
  CollectiveKind kind;
  Algorithm algorithm;
  Generator (*generator)(const Collective& collective);
  std::uint32_t most_ranks;
  // The generator of the plans in which a message carries a run of chunks (Messages::kRuns). Null if the algorithm has
  // only plans in which each message carries one chunk.
  Generator (*in_runs)(const Collective& collective) = nullptr;
};

// One row for each collective and algorithm that have a plan. `most_ranks` is the largest number of ranks that the
// generator supports. The names of the algorithms are in base/names.cc. A barrier is an all_reduce of empty data,
// so it uses generators of all_reduce.
inline constexpr auto kAlgorithmTable = std::to_array<AlgorithmRow>({
    {CollectiveKind::kAllReduce, Algorithm::kRing, ring_all_reduce, kMaxRanks},
    {CollectiveKind::kAllReduce, Algorithm::kDoubleTree, double_tree_all_reduce, kMaxRanks},
    {CollectiveKind::kAllReduce, Algorithm::kOneShot, one_shot_all_reduce, kMaxDirectRanks},
    {CollectiveKind::kAllReduce, Algorithm::kTwoShot, two_shot_all_reduce, kMaxDirectRanks},
    {CollectiveKind::kAllReduce, Algorithm::kHalvingDoubling, halving_doubling_all_reduce, kMaxRanks,
     halving_doubling_all_reduce_in_runs},
    {CollectiveKind::kAllReduce, Algorithm::kRecursiveDoubling, recursive_doubling_all_reduce, kMaxRanks},
    {CollectiveKind::kAllReduce, Algorithm::kCirculant, circulant_all_reduce, kMaxRanks, circulant_all_reduce_in_runs},
    {CollectiveKind::kAllReduce, Algorithm::kHierarchical, hierarchical_all_reduce, kMaxRanks},
    {CollectiveKind::kAllReduce, Algorithm::kHierarchicalTree, hierarchical_tree_all_reduce, kMaxRanks},
    {CollectiveKind::kBroadcast, Algorithm::kRing, ring_broadcast, kMaxDirectRanks},
    {CollectiveKind::kBroadcast, Algorithm::kDoubleTree, double_tree_broadcast, kMaxRanks},
    {CollectiveKind::kBroadcast, Algorithm::kBinomial, binomial_broadcast, kMaxRanks},
    {CollectiveKind::kBroadcast, Algorithm::kChain, chain_broadcast, kMaxRanks},
    {CollectiveKind::kBroadcast, Algorithm::kTree, tree_broadcast, kMaxRanks},
    {CollectiveKind::kBroadcast, Algorithm::kDirect, direct_broadcast, kMaxDirectRanks},
    {CollectiveKind::kReduce, Algorithm::kRing, ring_reduce, kMaxDirectRanks},
    {CollectiveKind::kReduce, Algorithm::kDoubleTree, double_tree_reduce, kMaxRanks},
    {CollectiveKind::kReduce, Algorithm::kBinomial, binomial_reduce, kMaxRanks},
    {CollectiveKind::kReduce, Algorithm::kChain, chain_reduce, kMaxRanks},
    {CollectiveKind::kReduce, Algorithm::kTree, tree_reduce, kMaxRanks},
    {CollectiveKind::kReduce, Algorithm::kDirect, direct_reduce, kMaxDirectRanks},
    {CollectiveKind::kAllGather, Algorithm::kRing, ring_all_gather, kMaxRanks},
    {CollectiveKind::kAllGather, Algorithm::kDirect, direct_all_gather, kMaxDirectRanks},
    {CollectiveKind::kAllGather, Algorithm::kCirculant, circulant_all_gather, kMaxRanks, circulant_all_gather_in_runs},
    {CollectiveKind::kAllGather, Algorithm::kHierarchical, hierarchical_all_gather, kMaxRanks},
    {CollectiveKind::kReduceScatter, Algorithm::kRing, ring_reduce_scatter, kMaxRanks},
    {CollectiveKind::kReduceScatter, Algorithm::kDirect, direct_reduce_scatter, kMaxDirectRanks},
    {CollectiveKind::kReduceScatter, Algorithm::kCirculant, circulant_reduce_scatter, kMaxRanks,
     circulant_reduce_scatter_in_runs},
    {CollectiveKind::kReduceScatter, Algorithm::kHierarchical, hierarchical_reduce_scatter, kMaxRanks},
    {CollectiveKind::kAllToAll, Algorithm::kDirect, direct_all_to_all, kMaxDirectRanks},
    {CollectiveKind::kAllToAll, Algorithm::kPairwise, pairwise_all_to_all, kMaxDirectRanks},
    {CollectiveKind::kAllToAll, Algorithm::kBruck, bruck_all_to_all, kMaxRanks},
    {CollectiveKind::kGather, Algorithm::kBinomial, binomial_gather, kMaxRanks, binomial_gather_in_runs},
    {CollectiveKind::kGather, Algorithm::kDirect, direct_gather, kMaxDirectRanks},
    {CollectiveKind::kScatter, Algorithm::kBinomial, binomial_scatter, kMaxRanks, binomial_scatter_in_runs},
    {CollectiveKind::kScatter, Algorithm::kDirect, direct_scatter, kMaxDirectRanks},
    {CollectiveKind::kBarrier, Algorithm::kDoubleTree, double_tree_all_reduce, kMaxRanks},
    {CollectiveKind::kBarrier, Algorithm::kOneShot, one_shot_all_reduce, kMaxDirectRanks},
});

// The neighbours of a rank in one of the two binary trees of the double tree (double_tree.cc). kNoRank means that
// the rank has no such neighbour. Used by the generators and by tests.
struct TreeLinks {
  static constexpr std::uint32_t kNoRank = ~std::uint32_t{0};
  std::uint32_t parent = kNoRank;
  // The sum of this child's subtree is added before this rank's value.
  std::uint32_t lower = kNoRank;
  // The sum of this child's subtree is added after this rank's value.
  std::uint32_t upper = kNoRank;
};
// Returns the neighbours of `rank` in a tree of `ranks` ranks. `tree` is 0 or 1, and rank < ranks.
TreeLinks tree_links(std::uint32_t tree, std::uint32_t rank, std::uint32_t ranks);
// Returns the root of a tree: the rank without a parent.
std::uint32_t tree_root(std::uint32_t tree, std::uint32_t ranks);

}  // namespace tutti

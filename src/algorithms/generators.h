// The generators of all algorithms. algorithms.cc selects one of them. Pure functions. The number of ranks must be
// at least 1.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace tutti {

// Largest number of ranks for algorithms in which one rank communicates with all others. One of its steps adds
// that many operands or sends that many copies, and the kernels do not support more in one pass.
inline constexpr std::uint32_t kMaxDirectRanks = 1024;

// Largest number of ranks of any algorithm. With this limit, the chunks and steps of a ring (2 * ranks - 1) fit
// into 32 bits.
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

// The neighbours of a rank in one of the two trees. Used by the generators and by tests.
struct TreeLinks {
  static constexpr std::uint32_t kNoRank = ~std::uint32_t{0};
  std::uint32_t parent = kNoRank;
  // The child with the subtree that is added before this rank's value.
  std::uint32_t lower = kNoRank;
  // The child with the subtree that is added after this rank's value.
  std::uint32_t upper = kNoRank;
};
// `tree` is 0 or 1, and rank < ranks.
TreeLinks tree_links(std::uint32_t tree, std::uint32_t rank, std::uint32_t ranks);
// The rank without a parent.
std::uint32_t tree_root(std::uint32_t tree, std::uint32_t ranks);

}  // namespace tutti

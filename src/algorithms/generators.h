// The shapes and builders of the single algorithms; algorithms.cc picks among them. Pure functions. `ranks` >= 1
// everywhere.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace tutti {

// The most ranks of an algorithm in which one rank talks to all others: one step adds that many operands, or sends as
// many copies, and the kernels take no more in one pass.
inline constexpr std::uint32_t kMaxDirectRanks = 1024;

// The most ranks of any algorithm: chunks and steps of a ring (2 * ranks - 1) stay well within 32 bits.
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

// A rank's place in one of the two trees; for tests and for drawing.
struct TreePlace {
  static constexpr std::uint32_t kNobody = ~std::uint32_t{0};
  std::uint32_t parent = kNobody;
  std::uint32_t lower = kNobody;  // the child whose subtree is added before this rank's value
  std::uint32_t upper = kNobody;  // the child whose subtree is added after it
};
// tree 0 or 1, rank < ranks.
TreePlace tree_place(std::uint32_t tree, std::uint32_t rank, std::uint32_t ranks);
// The rank that has no parent.
std::uint32_t tree_root(std::uint32_t tree, std::uint32_t ranks);

}  // namespace tutti

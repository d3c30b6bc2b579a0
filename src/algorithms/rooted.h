// Numbering of the ranks in collectives that have a root: virtual ranks, a binomial tree and two binary trees on
// them. Pure functions, used by generators and tests.
#pragma once

#include <bit>
#include <cstdint>

#include "algorithms/generators.h"
#include "plan/plan.h"

namespace tutti {

// Virtual ranks (vranks) 0 .. p-1 are ranks relative to the root: the root has vrank 0, the next rank has vrank 1,
// and so on. A plan that is written in vranks works for every root.
struct VirtualRanks {
  std::uint32_t ranks = 1;
  std::uint32_t root = 0;

  explicit VirtualRanks(const Collective& collective) : ranks(collective.ranks), root(collective.root) {}
  std::uint32_t vrank_of(std::uint32_t rank) const { return (rank + ranks - root) % ranks; }
  std::uint32_t rank_at(std::uint32_t vrank) const { return (vrank + root) % ranks; }
};

// A binomial tree on the vranks. The parent of a vrank is the vrank without its lowest bit. So the subtree of a
// vrank consists of the `binomial_size` consecutive vranks that start with it. Its children are at the distances
// 1, 2, 4, ...
inline std::uint32_t binomial_parent(std::uint32_t vrank) { return vrank & (vrank - 1); }

inline std::uint32_t binomial_size(std::uint32_t vrank, std::uint32_t ranks) {
  const std::uint32_t full = vrank == 0 ? ranks : std::uint32_t{1} << std::countr_zero(vrank);
  return full < ranks - vrank ? full : ranks - vrank;
}

// Calls visit(child) for each child, from the nearest, which has the smallest subtree, to the farthest.
template <class Visit>
void for_each_binomial_child(std::uint32_t vrank, std::uint32_t ranks, Visit visit) {
  const std::uint32_t end = binomial_size(vrank, ranks);
  for (std::uint32_t distance = 1; distance < end; distance *= 2) visit(vrank + distance);
}

// The links of a vrank in the binary tree `tree` (0 or 1) with a separate root. The root, vrank 0, is the parent
// of the root of the in-order tree on the vranks 1 .. p-1 (see tree_links() in generators.h), which is its only
// child. If tree 0 is walked in the order lower subtree, own vrank, upper subtree, starting with vrank 0, the
// vranks appear in ascending order. Every vrank except the root is a leaf of at least one of the two trees.
TreeLinks links_under_root(std::uint32_t tree, std::uint32_t vrank, std::uint32_t ranks);

}  // namespace tutti

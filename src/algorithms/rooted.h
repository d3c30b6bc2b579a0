// For collectives with a root: virtual ranks, which number the ranks from the root, and a binomial tree and two
// binary trees of virtual ranks. Pure functions, used by generators.
#pragma once

#include <bit>
#include <cstdint>

#include "algorithms/generators.h"
#include "plan/plan.h"

namespace tutti {

// Virtual ranks (vranks) 0 .. p-1, for p ranks, are ranks relative to the root: the root has vrank 0, rank root +
// 1 has vrank 1, and so on, modulo p. A plan that is written in vranks works for every root.
struct VirtualRanks {
  std::uint32_t ranks = 1;
  std::uint32_t root = 0;

  explicit VirtualRanks(const Collective& collective) : ranks(collective.ranks), root(collective.root) {}
  std::uint32_t vrank_of(std::uint32_t rank) const { return (rank + ranks - root) % ranks; }
  std::uint32_t rank_at(std::uint32_t vrank) const { return (vrank + root) % ranks; }
};

// A binomial tree of the vranks. The parent of a vrank is the vrank with its lowest 1 bit cleared (vrank 6 has
// parent 4). So the subtree of a vrank consists of consecutive vranks that start with this vrank itself;
// binomial_size() is their number. The children of vrank v are v + 1, v + 2, v + 4, ..., as far as they are in its
// subtree.
inline std::uint32_t binomial_parent(std::uint32_t vrank) { return vrank & (vrank - 1); }

inline std::uint32_t binomial_size(std::uint32_t vrank, std::uint32_t ranks) {
  const std::uint32_t full = vrank == 0 ? ranks : std::uint32_t{1} << std::countr_zero(vrank);
  return full < ranks - vrank ? full : ranks - vrank;
}

// Calls visit(child) for each child of `vrank` in the binomial tree, from the nearest child, which has the
// smallest subtree, to the farthest.
template <class Visit>
void for_each_binomial_child(std::uint32_t vrank, std::uint32_t ranks, Visit visit) {
  const std::uint32_t end = binomial_size(vrank, ranks);
  for (std::uint32_t distance = 1; distance < end; distance *= 2) visit(vrank + distance);
}

// Returns the neighbours (as vranks) of a vrank in the binary tree `tree` (0 or 1) with a separate root. The
// vranks 1 .. p-1 form an in-order tree (see tree_links() in generators.h). Vrank 0 is the root above it: its only
// child, which is its upper child, is the root of the in-order tree. If tree 0 is walked in the order lower
// subtree, own vrank, upper subtree, starting with vrank 0, the vranks appear in ascending order. Every vrank
// except 0 is a leaf of at least one of the two trees.
TreeLinks links_under_root(std::uint32_t tree, std::uint32_t vrank, std::uint32_t ranks);

}  // namespace tutti

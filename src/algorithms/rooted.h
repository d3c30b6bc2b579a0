// Where the ranks stand in collectives that have a root: places 0 .. p-1 round the ring from the root on, and on them a
// binomial tree and two binary trees. Pure functions; generators use them, and tests.
#pragma once

#include <bit>
#include <cstdint>

#include "algorithms/generators.h"
#include "plan/plan.h"

namespace tutti {

// The root has place 0, the rank after it place 1, and so on: a plan written in places serves every root.
struct Places {
  std::uint32_t ranks = 1;
  std::uint32_t root = 0;

  explicit Places(const Collective& collective) : ranks(collective.ranks), root(collective.root) {}
  std::uint32_t place_of(std::uint32_t rank) const { return (rank + ranks - root) % ranks; }
  std::uint32_t rank_at(std::uint32_t place) const { return (place + root) % ranks; }
};

// A binomial tree on the places: the parent of a place is the place without its lowest bit, so the subtree of a place
// is the run of `binomial_size` places that begins with it. Its children stand 1, 2, 4, ... behind it.
inline std::uint32_t binomial_parent(std::uint32_t place) { return place & (place - 1); }

inline std::uint32_t binomial_size(std::uint32_t place, std::uint32_t ranks) {
  const std::uint32_t full = place == 0 ? ranks : std::uint32_t{1} << std::countr_zero(place);
  return full < ranks - place ? full : ranks - place;
}

// Calls visit(child) from the nearest child, with the smallest subtree, to the farthest.
template <class Visit>
void for_each_binomial_child(std::uint32_t place, std::uint32_t ranks, Visit visit) {
  const std::uint32_t end = binomial_size(place, ranks);
  for (std::uint32_t distance = 1; distance < end; distance *= 2) visit(place + distance);
}

// The binary tree `tree` (0 or 1) under a root of its own: place 0 stands above the in-order tree of places 1 .. p-1
// (tree_place() in generators.h), as its one child's parent. In the order (place 0), lower, own, upper a walk of tree 0
// meets the places in their order. No place but the root is an inner one of both trees.
TreePlace place_under_root(std::uint32_t tree, std::uint32_t place, std::uint32_t ranks);

}  // namespace tutti

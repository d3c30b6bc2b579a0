// Hierarchical all-reduces for any choice of stages; hierarchical.cc tells the story. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "algorithms/compose.h"
#include "algorithms/inside.h"
#include "plan/plan.h"

namespace tutti {

struct HierarchyStages {
  Algorithm name = Algorithm::kHierarchical;  // what the plan calls itself
  Inside inside = Inside::kDirect;
  Generator (*across)(const Collective& collective) = nullptr;  // an all_reduce among machines
};

Generator composed_all_reduce(const Collective& collective, const HierarchyStages& stages);

// Who stands where.
struct Machines {
  explicit Machines(const Collective& collective);

  std::vector<Team> teams;             // each machine's ranks, ascending; the machine with the lowest rank first
  std::vector<std::uint32_t> machine;  // of each rank: index into teams
  std::vector<std::uint32_t> member;   // of each rank: its place in its team
  std::uint32_t rails = 1;             // as many as the largest machine has ranks
  bool side_by_side = true;            // no rank of another machine stands between two of one

  // The owners of a rail, one on each machine, in the order of the machines.
  Team across(std::uint32_t rail) const;
  // The rails that a rank owns, ascending.
  std::vector<std::uint32_t> rails_of(std::uint32_t rank) const;
};

}  // namespace tutti

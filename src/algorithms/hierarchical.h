// Hierarchical all-reduces for any choice of stages; hierarchical.cc tells the story. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "algorithms/compose.h"
#include "algorithms/generators.h"
#include "algorithms/inside.h"
#include "plan/plan.h"

namespace tutti {

struct HierarchyStages {
  Algorithm name = Algorithm::kHierarchical;  // what the plan calls itself
  Inside inside = Inside::kDirect;
  std::uint32_t most_direct = kMaxDirectRanks;                  // a ring inside where a machine has more ranks
  Generator (*across)(const Collective& collective) = nullptr;  // an all_reduce among machines
  // Each chunk of the stage across has channels of its own there, as those of trees have: it gets its own inside too.
  bool strand_for_each_piece = false;
};

Generator composed_all_reduce(const Collective& collective, const HierarchyStages& stages);

// Who stands where. Machines of one size whose ranks stand side by side, in the order of their numbers, are arithmetic:
// 100,000 ranks cost no table. All others have one of a few words for each rank.
class Machines {
 public:
  explicit Machines(const Collective& collective);

  // Machines, the one with the lowest rank first; and as many rails as the largest of them has ranks.
  std::uint32_t count() const { return count_; }
  std::uint32_t rails() const { return rails_; }
  // No rank of another machine stands between two of one.
  bool side_by_side() const { return side_by_side_; }

  std::uint32_t size(std::uint32_t machine) const;
  std::uint32_t machine_of(std::uint32_t rank) const;
  // A rank's place among those of its machine, ascending; and the rank at a place.
  std::uint32_t member_of(std::uint32_t rank) const;
  std::uint32_t rank_at(std::uint32_t machine, std::uint32_t member) const;

  // The owner of a rail on a machine, and the rails that a rank owns, ascending.
  std::uint32_t owner(std::uint32_t rail, std::uint32_t machine) const {
    return rank_at(machine, rail % size(machine));
  }
  std::vector<std::uint32_t> rails_of(std::uint32_t rank) const;

 private:
  void make_tables(const Collective& collective);

  std::uint32_t equal_size_ = 0;  // ranks of every machine; 0: the tables say
  std::uint32_t count_ = 1;
  std::uint32_t rails_ = 1;
  bool side_by_side_ = true;
  std::vector<std::vector<std::uint32_t>> teams_;  // the ranks of each machine, ascending
  std::vector<std::uint32_t> machine_;             // of each rank
  std::vector<std::uint32_t> member_;
};

}  // namespace tutti

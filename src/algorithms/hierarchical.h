// Hierarchical all-reduces, with a choice of the algorithms inside and between machines. hierarchical.cc explains
// them. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "algorithms/compose.h"
#include "algorithms/generators.h"
#include "algorithms/inside.h"
#include "plan/plan.h"

namespace tutti {

struct HierarchyStages {
  Algorithm name = Algorithm::kHierarchical;  // the value of PlanShape::algorithm in the plan
  Inside inside = Inside::kDirect;
  // If the largest machine has more ranks than this, the stages inside all machines use a ring, whatever `inside`
  // is.
  std::uint32_t most_direct = kMaxDirectRanks;
  Generator (*across)(const Collective& collective) = nullptr;  // the generator of the all_reduce between machines
  // True if the all_reduce between machines has separate channels for each of its chunks, as the double tree has.
  // Then the stages inside a machine also have separate channels for each of these chunks (strands, see
  // hierarchical.cc).
  bool strand_for_each_chunk = false;
};

Generator composed_all_reduce(const Collective& collective, const HierarchyStages& stages);

// The assignment of ranks to machines, from Collective::nodes. In this class, machines are numbered from 0 by
// their lowest rank, regardless of the numbers in Collective::nodes. If all machines have the same number of
// ranks, with consecutive ranks and ascending machine numbers, the assignment is computed by division, so that
// 100,000 ranks need no table. Otherwise the class uses tables with a few integers per rank.
class Machines {
 public:
  explicit Machines(const Collective& collective);

  // count() is the number of machines. rails() is the number of rails (parts of the message, see hierarchical.cc):
  // as many as the largest machine has ranks.
  std::uint32_t count() const { return count_; }
  std::uint32_t rails() const { return rails_; }
  // True if, on every machine, the numbers of its ranks are consecutive.
  bool side_by_side() const { return side_by_side_; }

  std::uint32_t size(std::uint32_t machine) const;
  std::uint32_t machine_of(std::uint32_t rank) const;
  // member_of() is the index of a rank among the ranks of its machine, in ascending order of the ranks. rank_at()
  // is the inverse: the rank with index `member` on a machine.
  std::uint32_t member_of(std::uint32_t rank) const;
  std::uint32_t rank_at(std::uint32_t machine, std::uint32_t member) const;

  // owner() is the rank that owns a rail on a machine: every rail has one owner on each machine. rails_of()
  // returns the rails that a rank owns on its machine, in ascending order.
  std::uint32_t owner(std::uint32_t rail, std::uint32_t machine) const {
    return rank_at(machine, rail % size(machine));
  }
  std::vector<std::uint32_t> rails_of(std::uint32_t rank) const;

 private:
  void make_tables(const Collective& collective);

  // The number of ranks of every machine, if the assignment is computed by division. 0: the tables below are used.
  std::uint32_t equal_size_ = 0;
  std::uint32_t count_ = 1;
  std::uint32_t rails_ = 1;
  bool side_by_side_ = true;
  std::vector<std::vector<std::uint32_t>> teams_;  // the ranks of each machine, ascending; empty if tables are not used
  std::vector<std::uint32_t> machine_;             // machine_of(), indexed by rank; empty if tables are not used
  std::vector<std::uint32_t> member_;
};

}  // namespace tutti

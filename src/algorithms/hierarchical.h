// Hierarchical all-reduces for any choice of stages. hierarchical.cc explains them. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "algorithms/compose.h"
#include "algorithms/generators.h"
#include "algorithms/inside.h"
#include "plan/plan.h"

namespace tutti {

struct HierarchyStages {
  Algorithm name = Algorithm::kHierarchical;  // the algorithm name of the plan
  Inside inside = Inside::kDirect;
  // if a machine has more ranks, the stages inside it use a ring
  std::uint32_t most_direct = kMaxDirectRanks;
  Generator (*across)(const Collective& collective) = nullptr;  // an all_reduce between machines
  // True if the all_reduce between machines has separate channels for each of its chunks, as trees have. Then each
  // of these chunks also has separate channels inside the machine.
  bool strand_for_each_chunk = false;
};

Generator composed_all_reduce(const Collective& collective, const HierarchyStages& stages);

// The assignment of ranks to machines. If all machines have the same size, and their ranks are consecutive and in
// the order of the machines' numbers, it is computed by division, so that 100,000 ranks need no table. Otherwise
// it uses tables with a few integers per rank.
class Machines {
 public:
  explicit Machines(const Collective& collective);

  // Number of machines, and number of rails. Machine 0 is the one with the lowest rank. There are as many rails as
  // the largest machine has ranks.
  std::uint32_t count() const { return count_; }
  std::uint32_t rails() const { return rails_; }
  // True if the ranks of each machine are consecutive.
  bool side_by_side() const { return side_by_side_; }

  std::uint32_t size(std::uint32_t machine) const;
  std::uint32_t machine_of(std::uint32_t rank) const;
  // member_of() is the index of a rank among the ranks of its machine, in ascending order. rank_at() is the
  // inverse.
  std::uint32_t member_of(std::uint32_t rank) const;
  std::uint32_t rank_at(std::uint32_t machine, std::uint32_t member) const;

  // owner() is the rank that owns a rail on a machine. rails_of() returns the rails that a rank owns, in ascending
  // order.
  std::uint32_t owner(std::uint32_t rail, std::uint32_t machine) const {
    return rank_at(machine, rail % size(machine));
  }
  std::vector<std::uint32_t> rails_of(std::uint32_t rank) const;

 private:
  void make_tables(const Collective& collective);

  std::uint32_t equal_size_ = 0;  // number of ranks of every machine; 0: use the tables
  std::uint32_t count_ = 1;
  std::uint32_t rails_ = 1;
  bool side_by_side_ = true;
  std::vector<std::vector<std::uint32_t>> teams_;  // the ranks of each machine, ascending
  std::vector<std::uint32_t> machine_;             // indexed by rank
  std::vector<std::uint32_t> member_;
};

}  // namespace tutti

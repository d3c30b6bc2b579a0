// rotation_period() has a table of the algorithms: the period P' of a plan (rotation.h) follows from the definition of
// its algorithm. P' is not computed from the plan, because that would require building the plans of all ranks.
#include "model/rotation.h"

#include "base/collective_table.h"
#include "tutti/types.h"

namespace tutti {
namespace {

// Returns the number of ranks of each machine, which is the number of all ranks if there is one machine. Returns 0 if
// the machines have different numbers of ranks, if the ranks of a machine are not consecutive, or if the number of the
// machine decreases from one rank to the next.
std::uint32_t ranks_of_equal_machines(const Collective& collective) {
  if (collective.nodes.empty()) return collective.ranks;
  std::uint32_t size = 0;
  while (size < collective.ranks && collective.nodes[size] == collective.nodes[0]) ++size;
  if (collective.ranks % size != 0) return 0;
  for (std::uint32_t rank = 0; rank < collective.ranks; ++rank) {
    const std::uint32_t first = rank - rank % size;
    if (collective.nodes[rank] != collective.nodes[first]) return 0;
    // If the number of a machine occurred again later, that machine would have more ranks than `size`. Requiring
    // ascending numbers excludes that.
    if (first == rank && rank > 0 && collective.nodes[rank] <= collective.nodes[rank - 1]) return 0;
  }
  return size;
}

}  // namespace

std::uint32_t rotation_period(const Generator& generator) {
  const Collective& collective = generator.shape.collective;
  if (has_root(collective.kind)) return collective.ranks;
  switch (generator.shape.algorithm) {
    case Algorithm::kRing:
    case Algorithm::kOneShot:
    case Algorithm::kTwoShot:
    case Algorithm::kCirculant:
    case Algorithm::kDirect:
    case Algorithm::kBruck: return 1;
    case Algorithm::kHierarchical: {
      const std::uint32_t size = ranks_of_equal_machines(collective);
      if (size == collective.ranks) return 1;
      return size == 0 ? collective.ranks : size;
    }
    // no symmetry is known, so every rank has a program of its own
    default: return collective.ranks;
  }
}

}  // namespace tutti

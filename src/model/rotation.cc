#include "model/rotation.h"

#include "base/collective_table.h"
#include "tutti/types.h"

namespace tutti {
namespace {

// Ranks of each machine, where all have as many and stand side by side; 0: they do not.
std::uint32_t ranks_of_equal_machines(const Collective& collective) {
  if (collective.nodes.empty()) return collective.ranks;
  std::uint32_t size = 0;
  while (size < collective.ranks && collective.nodes[size] == collective.nodes[0]) ++size;
  if (collective.ranks % size != 0) return 0;
  for (std::uint32_t rank = 0; rank < collective.ranks; ++rank) {
    const std::uint32_t first = rank - rank % size;
    if (collective.nodes[rank] != collective.nodes[first]) return 0;
    // A machine that comes back later is larger than it looks; numbers that rise show that none does.
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
    default: return collective.ranks;
  }
}

}  // namespace tutti

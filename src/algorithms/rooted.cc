#include "algorithms/rooted.h"

namespace tutti {

TreePlace place_under_root(std::uint32_t tree, std::uint32_t place, std::uint32_t ranks) {
  constexpr std::uint32_t kNobody = TreePlace::kNobody;
  TreePlace found;
  if (place == 0) {
    if (ranks > 1) found.upper = 1 + tree_root(tree, ranks - 1);
    return found;
  }
  const TreePlace below = tree_place(tree, place - 1, ranks - 1);
  found.parent = below.parent == kNobody ? 0 : 1 + below.parent;
  if (below.lower != kNobody) found.lower = 1 + below.lower;
  if (below.upper != kNobody) found.upper = 1 + below.upper;
  return found;
}

}  // namespace tutti

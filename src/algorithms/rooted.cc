// links_under_root(): the in-order trees of double_tree.cc on the vranks 1 .. ranks-1, with vrank 0 as a separate
// root above them. Rank r of tree_links() is vrank r + 1 here.
#include "algorithms/rooted.h"

namespace tutti {

TreeLinks links_under_root(std::uint32_t tree, std::uint32_t vrank, std::uint32_t ranks) {
  constexpr std::uint32_t kNoRank = TreeLinks::kNoRank;
  TreeLinks found;
  if (vrank == 0) {
    if (ranks > 1) found.upper = 1 + tree_root(tree, ranks - 1);
    return found;
  }
  const TreeLinks below = tree_links(tree, vrank - 1, ranks - 1);
  found.parent = below.parent == kNoRank ? 0 : 1 + below.parent;
  if (below.lower != kNoRank) found.lower = 1 + below.lower;
  if (below.upper != kNoRank) found.upper = 1 + below.upper;
  return found;
}

}  // namespace tutti

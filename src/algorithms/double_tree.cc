// Double binary tree all-reduce.
//
// In a binary tree, about half of the ranks are leaves. A leaf sends to its parent and forwards nothing, so half of the
// ranks use little of their bandwidth. Therefore there are two trees, and each carries half of the message (two chunks,
// chunk t in tree t). Every inner rank of one tree is a leaf of the other. In each tree, values are added on the way up
// to the root, and the result is sent back down to all ranks.
//
// The tree on positions 1 .. p is the in-order tree: a position with z trailing zero bits is on level z, and its
// children are 2^(z-1) below and above it. (If the upper child would be above p, its distance is halved until the
// child is at most p. If no distance >= 1 is small enough, there is no upper child.) The root is the greatest
// power of two <= p. For every p, odd positions are leaves and even positions are inner ranks. In tree 0, rank r
// has the position r + 1. Tree 1 mirrors tree 0 for even p (position p - r), and shifts it by one for odd p
// (position r, and p for rank 0). Both choices give every rank with an even position in tree 0 an odd position in
// tree 1. The depth of a tree is floor(log2 p) edges.
//
// Each rank has four channels, one for each tree and direction. The messages of each tree and direction use a lane of
// their own. So the tiles form a pipeline through the trees: a rank can send a tile up before the results of earlier
// tiles have come down. The step of each channel:
//   up,   lane 2t      (lower child) (+) in[t] (+) (upper child). The root has the complete value: it stores out[t] and
//                      sends it to its children's down channels (lane 2t + 1). All others send to the parent.
//   down, lane 2t + 1  received: store out[t], send to the children. Empty at the root.
//
// Steps per rank: 4 (3 if the rank is the root of one tree; 2 if p = 1). Time for one tile: 2 floor(log2 p) + 1 steps
// one after the other. Bytes sent per rank, for a message of S bytes: at most S up and at most S down. All ranks
// together send 2S(p-1) bytes. Order of addition: the in-order walk of the tree (lower subtree, own value, upper
// subtree), grouped like the tree. For even p this is rank order in both trees, because in the mirrored tree 1 the
// lower and upper child are exchanged. For odd p, tree 1 adds ranks 1, 2, ..., p-1, 0.
//
// Source: P. Sanders, J. Speck, J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
// scan", Parallel Computing 35 (2009). Unlike in that paper, the trees here do not have a separate root above the
// in-order tree, because an all-reduce has no root rank.
#include <bit>
#include <utility>

#include "algorithms/generators.h"
#include "base/assert.h"

namespace tutti {
namespace {

constexpr std::uint32_t kTrees = 2;

std::uint32_t position_of(std::uint32_t tree, std::uint32_t rank, std::uint32_t ranks) {
  if (tree == 0) return rank + 1;
  if (ranks % 2 == 0) return ranks - rank;
  return rank == 0 ? ranks : rank;
}

std::uint32_t rank_at(std::uint32_t tree, std::uint32_t position, std::uint32_t ranks) {
  if (tree == 0) return position - 1;
  if (ranks % 2 == 0) return ranks - position;
  return position == ranks ? 0 : position;
}

// Returns the upper child of a position. If the position is on level z, the candidates are at the distances 2^(z-1),
// 2^(z-2), ..., 1 above it. The child is the farthest candidate that is at most `ranks`. Returns 0 if there is none.
std::uint32_t upper_child(std::uint32_t position, std::uint32_t ranks) {
  const std::uint32_t level_bit = position & (~position + 1);
  for (std::uint32_t distance = level_bit / 2; distance > 0; distance /= 2) {
    if (position + distance <= ranks) return position + distance;
  }
  return 0;
}

std::uint32_t parent_of(std::uint32_t position, std::uint32_t ranks) {
  const std::uint32_t root = std::bit_floor(ranks);
  std::uint32_t at = root;
  for (std::uint32_t depth = 0; depth < 32; ++depth) {
    const std::uint32_t level_bit = at & (~at + 1);
    const std::uint32_t child = position < at ? at - level_bit / 2 : upper_child(at, ranks);
    if (child == position) return at;
    at = child;
  }
  TUTTI_ASSERT(false, "position {} is not in the tree of {}", position, ranks);
  return root;
}

struct Lanes {
  std::uint16_t up;
  std::uint16_t down;
};

Channel build_up(const TreeLinks& links, Lanes lanes, std::uint32_t chunk) {
  constexpr std::uint32_t kNoRank = TreeLinks::kNoRank;
  const bool root = links.parent == kNoRank;
  ChannelBuilder channel;
  auto step = channel.step();
  if (links.lower != kNoRank) step.receive(channel.receive_from(links.lower, lanes.up));
  step.local(Space::kInput, chunk);
  if (links.upper != kNoRank) step.receive(channel.receive_from(links.upper, lanes.up));
  if (root) {
    step.store(Space::kOutput, chunk).completes();
    if (links.lower != kNoRank) step.send(channel.send_to(links.lower, lanes.down));
    if (links.upper != kNoRank) step.send(channel.send_to(links.upper, lanes.down));
  } else {
    step.send(channel.send_to(links.parent, lanes.up));
  }
  return std::move(channel).build();
}

Channel build_down(const TreeLinks& links, Lanes lanes, std::uint32_t chunk) {
  constexpr std::uint32_t kNoRank = TreeLinks::kNoRank;
  ChannelBuilder channel;
  if (links.parent == kNoRank) return std::move(channel).build();
  auto step = channel.step();
  step.receive(channel.receive_from(links.parent, lanes.down)).store(Space::kOutput, chunk);
  if (links.lower != kNoRank) step.send(channel.send_to(links.lower, lanes.down));
  if (links.upper != kNoRank) step.send(channel.send_to(links.upper, lanes.down));
  return std::move(channel).build();
}

RankPlan build_double_tree(const PlanShape& shape, std::uint32_t rank) {
  RankPlan plan;
  for (std::uint32_t tree = 0; tree < kTrees; ++tree) {
    const TreeLinks links = tree_links(tree, rank, shape.collective.ranks);
    const auto lane = static_cast<std::uint16_t>(2 * tree);
    const Lanes lanes{.up = lane, .down = static_cast<std::uint16_t>(lane + 1)};
    plan.channels.push_back(build_up(links, lanes, tree));
    plan.channels.push_back(build_down(links, lanes, tree));
  }
  return plan;
}

}  // namespace

TreeLinks tree_links(std::uint32_t tree, std::uint32_t rank, std::uint32_t ranks) {
  TUTTI_ASSERT(tree < kTrees && rank < ranks);
  const std::uint32_t position = position_of(tree, rank, ranks);
  const std::uint32_t level_bit = position & (~position + 1);
  TreeLinks links;
  if (position != std::bit_floor(ranks)) links.parent = rank_at(tree, parent_of(position, ranks), ranks);
  if (level_bit > 1) links.lower = rank_at(tree, position - level_bit / 2, ranks);
  if (const std::uint32_t above = upper_child(position, ranks); above != 0) links.upper = rank_at(tree, above, ranks);
  if (tree == 1 && ranks % 2 == 0)
    // The tree is mirrored, so the child at the higher position has the subtree with the lower ranks.
    std::swap(links.lower, links.upper);
  return links;
}

std::uint32_t tree_root(std::uint32_t tree, std::uint32_t ranks) {
  TUTTI_ASSERT(tree < kTrees && ranks >= 1);
  return rank_at(tree, std::bit_floor(ranks), ranks);
}

Generator double_tree_all_reduce(const Collective& collective) {
  const bool even = collective.ranks % 2 == 0;
  return {.shape = {.collective = collective,
                    .algorithm = Algorithm::kDoubleTree,
                    .chunks = kTrees,
                    .slots = 1,
                    .lanes = 2 * kTrees,
                    .order = even ? Order::kByRank : Order::kCyclic},
          .build = build_double_tree};
}

}  // namespace tutti

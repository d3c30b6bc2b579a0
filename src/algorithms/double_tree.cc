// Double binary tree all-reduce.
//
// In a binary tree half of the ranks are leaves, which send upwards only once and never forward: half of the machine's
// bandwidth lies idle. So there are two trees, each carries half of the message (two chunks, chunk t in tree t), and
// every inner rank of one tree is a leaf of the other. In each tree the values are added on the way up and the result
// is sent on the way down.
//
// The tree on positions 1 .. p is the in-order one: a position with z trailing zero bits stands on level z, its
// children are 2^(z-1) below and above it (the upper one is halved nearer until it is at most p, and is left out when
// there is none), and the root is the greatest power of two <= p. Odd positions are leaves, even ones are inner,
// whatever p is. Tree 0 gives rank r the position r + 1. Tree 1 mirrors it for even p (position p - r) and shifts it by
// one for odd p (position r, and p for rank 0): both turn every even position of tree 0 into an odd one. The depth is
// floor(log2 p) edges.
//
// Four channels per rank, one for each tree and direction, and a lane for each of them with the same number, so that
// tiles follow each other through the trees without waiting for each other's results:
//   up,   lane 2t      (lower child) (+) in[t] (+) (upper child); the root has the complete value: it stores out[t] and
//   sends
//                      it to its children's down channels (lane 2t + 1); all others send to the parent
//   down, lane 2t + 1  received: store out[t], send to the children; empty at the root
//
// Steps per rank: 4 (3 where it is a root). Time: 2 floor(log2 p) + 1 steps one after the other. Bytes sent per rank:
// at most 2S for a message of S bytes, in both directions about evenly; the whole plan sends 2S(p-1). Order of
// addition: the in-order walk of the tree, grouped as the tree is. With the mirrored tree read backwards that is rank
// order in both trees for even p; for odd p tree 1 starts at rank 1 and ends with rank 0.
//
// Source: P. Sanders, J. Speck, J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
// Parallel Computing 35 (2009). The trees here have no separate root beside the in-order tree: an all-reduce has no
// root to serve.
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

// Nearest position above that is within the tree and a child; 0 for none.
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

Channel build_up(const TreePlace& place, Lanes lanes, std::uint32_t chunk) {
  constexpr std::uint32_t kNobody = TreePlace::kNobody;
  const bool root = place.parent == kNobody;
  ChannelBuilder channel;
  auto step = channel.step();
  if (place.lower != kNobody) step.receive(channel.receive_from(place.lower, lanes.up));
  step.local(Space::kInput, chunk);
  if (place.upper != kNobody) step.receive(channel.receive_from(place.upper, lanes.up));
  if (root) {
    step.store(Space::kOutput, chunk).completes();
    if (place.lower != kNobody) step.send(channel.send_to(place.lower, lanes.down));
    if (place.upper != kNobody) step.send(channel.send_to(place.upper, lanes.down));
  } else {
    step.send(channel.send_to(place.parent, lanes.up));
  }
  return std::move(channel).build();
}

Channel build_down(const TreePlace& place, Lanes lanes, std::uint32_t chunk) {
  constexpr std::uint32_t kNobody = TreePlace::kNobody;
  ChannelBuilder channel;
  if (place.parent == kNobody) return std::move(channel).build();
  auto step = channel.step();
  step.receive(channel.receive_from(place.parent, lanes.down)).store(Space::kOutput, chunk);
  if (place.lower != kNobody) step.send(channel.send_to(place.lower, lanes.down));
  if (place.upper != kNobody) step.send(channel.send_to(place.upper, lanes.down));
  return std::move(channel).build();
}

RankPlan build_double_tree(const PlanShape& shape, std::uint32_t rank) {
  RankPlan plan;
  for (std::uint32_t tree = 0; tree < kTrees; ++tree) {
    const TreePlace place = tree_place(tree, rank, shape.collective.ranks);
    const auto lane = static_cast<std::uint16_t>(2 * tree);
    const Lanes lanes{.up = lane, .down = static_cast<std::uint16_t>(lane + 1)};
    plan.channels.push_back(build_up(place, lanes, tree));
    plan.channels.push_back(build_down(place, lanes, tree));
  }
  return plan;
}

}  // namespace

TreePlace tree_place(std::uint32_t tree, std::uint32_t rank, std::uint32_t ranks) {
  TUTTI_ASSERT(tree < kTrees && rank < ranks);
  const std::uint32_t position = position_of(tree, rank, ranks);
  const std::uint32_t level_bit = position & (~position + 1);
  TreePlace place;
  if (position != std::bit_floor(ranks)) place.parent = rank_at(tree, parent_of(position, ranks), ranks);
  if (level_bit > 1) place.lower = rank_at(tree, position - level_bit / 2, ranks);
  if (const std::uint32_t above = upper_child(position, ranks); above != 0) place.upper = rank_at(tree, above, ranks);
  if (tree == 1 && ranks % 2 == 0)
    std::swap(place.lower, place.upper);  // mirrored: the position above has the lower ranks
  return place;
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

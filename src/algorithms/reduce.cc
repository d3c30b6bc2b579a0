// Reduce: the sum of all ranks' inputs becomes the root's output.
//
// The plans use virtual ranks (vranks) 0 .. p-1, counted from the root (rooted.h); p is the number of ranks. S is
// the length of the message.
//
// Binomial tree. The subtree of a vrank consists of consecutive vranks. A vrank adds its own input and then its
// children's sums, nearest first, and sends the result to its parent. The root has the complete value.
//   one step        in[0] (+) received from each child: send to the parent (the root: complete, store out[0])
// Longest path: floor(log2 p) messages. Every rank except the root sends S. The root adds ceil(log2 p) + 1 values
// in one step. Order of addition: vranks 0, 1, ..., p-1 (cyclic from the root), grouped like the tree. Suited for
// small messages.
//
// Chain. vrank 1 sends its input to vrank 2, which adds its own input after it, and so on. The root, vrank 0, is
// last. The loop over tiles makes this a pipeline.
//   one step        received (+) in[0] (vrank 1: in[0]): send to the next vrank (the root: complete, store out[0])
// Longest path: p - 1 messages. Every rank except the root sends S, and every rank except vrank 1 adds once. Order
// of addition: vranks 1, 2, ..., p-1, 0 (cyclic from the rank after the root), left to right. Suited for long
// messages.
//
// Tree and double tree. The binary trees are those of the broadcast (broadcast.cc), with messages from children to
// parents. The double tree adds one half of the message (chunk t, t = 0 or 1) in each of its two trees, so that
// the ranks share the additions and the bytes about evenly.
//   channel t, lane t: one step     (lower child) (+) in[t] (+) (upper child): send to the parent
//                                   the root: in[t] (+) (its one child): complete, store out[t]
// Longest path: floor(log2(p-1)) + 1 messages. Order of addition in tree 0: vranks 0, 1, ..., p-1 (cyclic from the
// root), grouped like the tree. For odd p, tree 1 has the same order. For even p, tree 1 adds vranks 0, 2, 3, ..., p-1,
// 1. For p > 2 this is not a cyclic order, so for even p the double tree promises no order (Order::kAny).
//
// Direct. Every other rank sends its input to the root. The root adds all inputs, including its own, in rank
// order, in a single step, so that a sum of 16-bit or 8-bit floats, which is computed in float32, is rounded to
// the short type only once.
//   root            r0 (+) r1 (+) ... (+) r(p-1), own input at its position, complete: store out[0]
//   others          send in[0]
// Longest path: 1 message. Suited for the smallest messages, and for sums that must not depend on which rank is
// the root, or must be rounded only once.
//
// Ring: a reduce-scatter followed by a gather. The message is divided into p chunks that travel around the ring as
// in the all-reduce (ring.cc), on ranks instead of vranks. The rank that adds the last value to a chunk sends the
// sum to the root.
//   step 0            send in[rank] to the next rank
//   step k, 1..p-2    received (+) in[rank - k], send to the next rank
//   step p-1          received (+) in[rank + 1], complete: send to the root (the root: store out[rank + 1])
//   root, p-1 more    received from rank q: store out[q + 1], for q = root + 1, root + 2, ...
// Every rank sends at most S bytes and adds S(p-1)/p bytes, so the ranks share the additions evenly, even if the
// message is too short for many tiles. Longest path: p messages. Order of chunk c: ranks c, c + 1, ..., left to
// right, so the result does not depend on the root. A step receives and sends, so connections must hold 2 messages
// if p > 2.
//
// Source: see broadcast.cc. The reduce-scatter of the ring is that of ring.cc.
#include <utility>

#include "algorithms/rooted.h"

namespace tutti {
namespace {

constexpr std::uint16_t kLane = 0;

// Adds the last part to `step`, whose value is the sum of chunk `chunk`: a send of the value to `parent` (a vrank), on
// the lane with the number of the chunk. At the root (vrank 0), adds instead a store of the value to the output, and
// marks the step as completing (Step::completes).
void pass_up(ChannelBuilder& channel, ChannelBuilder::StepBuilder& step, const VirtualRanks& vranks,
             std::uint32_t vrank, std::uint32_t parent, std::uint32_t chunk) {
  if (vrank == 0) {
    step.store(Space::kOutput, chunk).completes();
  } else {
    step.send(channel.send_to(vranks.rank_at(parent), static_cast<std::uint16_t>(chunk)));
  }
}

RankPlan build_binomial(const PlanShape& shape, std::uint32_t rank) {
  const VirtualRanks vranks(shape.collective);
  const std::uint32_t vrank = vranks.vrank_of(rank);
  ChannelBuilder channel;
  auto step = channel.step();
  step.local(Space::kInput, 0);
  for_each_binomial_child(vrank, vranks.ranks, [&](std::uint32_t child) {
    step.receive(channel.receive_from(vranks.rank_at(child), kLane));
  });
  pass_up(channel, step, vranks, vrank, binomial_parent(vrank), 0);
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_chain(const PlanShape& shape, std::uint32_t rank) {
  const VirtualRanks vranks(shape.collective);
  const std::uint32_t vrank = vranks.vrank_of(rank);
  ChannelBuilder channel;
  auto step = channel.step();
  if (vrank != 1 && vranks.ranks > 1) {
    step.receive(channel.receive_from(vranks.rank_at((vrank == 0 ? vranks.ranks : vrank) - 1), kLane));
  }
  step.local(Space::kInput, 0);
  pass_up(channel, step, vranks, vrank, vrank + 1, 0);
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_trees(const PlanShape& shape, std::uint32_t rank) {
  const VirtualRanks vranks(shape.collective);
  const std::uint32_t vrank = vranks.vrank_of(rank);
  RankPlan plan;
  for (std::uint32_t tree = 0; tree < shape.chunks; ++tree) {
    const TreeLinks in_tree = links_under_root(tree, vrank, vranks.ranks);
    const auto lane = static_cast<std::uint16_t>(tree);
    ChannelBuilder channel;
    auto step = channel.step();
    if (in_tree.lower != TreeLinks::kNoRank) step.receive(channel.receive_from(vranks.rank_at(in_tree.lower), lane));
    step.local(Space::kInput, tree);
    if (in_tree.upper != TreeLinks::kNoRank) step.receive(channel.receive_from(vranks.rank_at(in_tree.upper), lane));
    pass_up(channel, step, vranks, vrank, in_tree.parent, tree);
    plan.channels.push_back(std::move(channel).build());
  }
  return plan;
}

RankPlan build_direct(const PlanShape& shape, std::uint32_t rank) {
  const VirtualRanks vranks(shape.collective);
  ChannelBuilder channel;
  auto step = channel.step();
  for (std::uint32_t r = 0; r < vranks.ranks; ++r) {
    if (r == rank) {
      step.local(Space::kInput, 0);
    } else if (rank == vranks.root) {
      step.receive(channel.receive_from(r, kLane));
    }
  }
  pass_up(channel, step, vranks, vranks.vrank_of(rank), 0, 0);
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_ring(const PlanShape& shape, std::uint32_t rank) {
  const std::uint32_t ranks = shape.collective.ranks;
  const std::uint32_t root = shape.collective.root;
  ChannelBuilder channel;
  const auto chunk = [&](std::uint32_t hops) { return (rank + ranks - hops) % ranks; };
  for (std::uint32_t k = 0; k < ranks; ++k) {
    auto step = channel.step();
    if (k > 0) step.receive(channel.receive_from((rank + ranks - 1) % ranks, kLane));
    step.local(Space::kInput, chunk(k));
    if (k + 1 < ranks) {
      step.send(channel.send_to((rank + 1) % ranks, kLane));
    } else if (rank == root) {
      step.store(Space::kOutput, chunk(k)).completes();
    } else {
      step.completes().send(channel.send_to(root, kLane));
    }
  }
  for (std::uint32_t distance = 1; rank == root && distance < ranks; ++distance) {
    const std::uint32_t owner = (root + distance) % ranks;
    channel.step().receive(channel.receive_from(owner, kLane)).store(Space::kOutput, (owner + 1) % ranks);
  }
  return {.channels = {std::move(channel).build()}};
}

}  // namespace

Generator binomial_reduce(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kBinomial, .order = Order::kCyclic},
          .build = build_binomial};
}

Generator chain_reduce(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kChain, .order = Order::kCyclic},
          .build = build_chain};
}

Generator tree_reduce(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kTree, .order = Order::kCyclic},
          .build = build_trees};
}

Generator double_tree_reduce(const Collective& collective) {
  const bool odd = collective.ranks % 2 == 1;
  return {.shape = {.collective = collective,
                    .algorithm = Algorithm::kDoubleTree,
                    .chunks = 2,
                    .lanes = 2,
                    .order = odd ? Order::kCyclic : Order::kAny},
          .build = build_trees};
}

Generator direct_reduce(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kDirect, .order = Order::kByRank},
          .build = build_direct};
}

Generator ring_reduce(const Collective& collective) {
  const std::uint16_t slots = collective.ranks <= 2 ? 1 : 2;
  return {.shape = {.collective = collective,
                    .algorithm = Algorithm::kRing,
                    .chunks = collective.ranks,
                    .slots = slots,
                    .order = Order::kCyclic},
          .build = build_ring};
}

}  // namespace tutti

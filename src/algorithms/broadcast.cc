// Broadcast: the root's input becomes the output of every rank.
//
// In all of these plans, the root copies its input to its output in the same step that first sends it. In an
// in-place call, both are the same memory, and a later copy would write memory that a peer may be reading through
// a window (plan/windows.h). The plans use virtual ranks (vranks) 0 .. p-1, counted from the root (rooted.h); p is
// the number of ranks. S is the length of the message.
//
// Binomial tree. Vrank 0 is the root of the collective and of the tree. Every other vrank receives the message from its
// parent. Every vrank stores the message and sends it to its children. It sends to the farthest child first, because
// far children usually have the largest subtrees.
//   one step        received (the root: in[0]): store out[0], send to all children
// Longest path: floor(log2 p) messages. The root sends S ceil(log2 p) bytes. Suited for small messages.
//
// Chain. vrank v forwards the message to vrank v + 1. The loop over tiles makes this a pipeline: while a rank
// sends one tile, it receives the next.
//   one step        received (the root: in[0]): store out[0], send to the next vrank; the last one only stores
// Longest path: p - 1 messages. Every vrank except the last one sends S bytes, which is the minimum. Suited for
// long messages.
//
// Tree and double tree. The root has one child, which is the root of a binary tree. Over the tiles, this is a pipeline
// like the chain, but with a path of logarithmic length. However, in a single tree, most inner ranks send the message
// twice, and leaves send nothing. Therefore the double tree sends one half of the message (chunk t, t = 0 or 1) through
// each of two trees. An inner rank of one tree is a leaf of the other, so a rank sends at most S bytes with the double
// tree.
//   channel t, lane t: one step     received (the root: in[t]): store out[t], send to the children
// Longest path: floor(log2(p-1)) + 1 messages.
//
// Direct. The root sends to all ranks, in one step. Longest path: 1 message. The root sends S(p-1) bytes. Suited
// for the smallest messages, and for registered buffers (windows), because all ranks can then read the root's
// memory directly.
//
// Ring: a scatter followed by an all-gather. The message is divided into p chunks. The root sends chunk v to vrank
// v, for v = 1 .. p-1. From there, chunk v travels along the vranks to vrank p-1. The root is not sent any chunk,
// because it already has all of them. Instead of forwarding chunk v (v >= 2) from vrank p-1, the root sends this
// chunk a second time, to vrank 1, from which it travels to vrank v-1. Chunk 0 is sent only to vrank 1, and
// travels from there to all others.
//   root, steps 0 .. p-1       in[c]: store out[c], send to vrank c (chunk 0: to vrank 1), for c = 1, ..., p-1, 0
//   root, steps p .. 2p-3      out[c], send to vrank 1, for c = p-1, ..., 2
//   vrank v, step 0            received from the root: store out[v], send to vrank v + 1
//   vrank v, steps 1 .. p-1    received from vrank v - 1: store out[c], send to vrank v + 1, for c = v - 1, v - 2, ...
// In its last step (p-1), a vrank only stores chunk v + 1, because vrank v + 1 has received it from the root. Vrank p-1
// only stores in all steps. Longest path: p - 1 messages. The root sends 2S(p-1)/p bytes, the others at most S(p-1)/p.
// A chain takes about as long if the message is divided into p tiles. The ring is better if the message is too short
// for p tiles.
//
// Source: the binary trees are those of Sanders, Speck and Traeff (see double_tree.cc). Scatter and all-gather: M.
// Barnett et al., "Building a high-performance collective communication library", Supercomputing 1994.
#include <utility>
#include <vector>

#include "algorithms/rooted.h"

namespace tutti {
namespace {

constexpr std::uint16_t kLane = 0;

// Returns a channel of `vrank` with one step, which receives `chunk` from `parent`, stores it to the output, and sends
// it to `children`. The root (vrank 0) reads the chunk from its input instead. `parent` and `children` are vranks.
Channel pass_down(const VirtualRanks& vranks, std::uint32_t vrank, std::uint32_t parent,
                  const std::vector<std::uint32_t>& children, std::uint16_t lane, std::uint32_t chunk) {
  ChannelBuilder channel;
  auto step = channel.step();
  if (vrank == 0) {
    step.local(Space::kInput, chunk);
  } else {
    step.receive(channel.receive_from(vranks.rank_at(parent), lane));
  }
  step.store(Space::kOutput, chunk);
  for (const std::uint32_t child : children) step.send(channel.send_to(vranks.rank_at(child), lane));
  return std::move(channel).build();
}

RankPlan build_binomial(const PlanShape& shape, std::uint32_t rank) {
  const VirtualRanks vranks(shape.collective);
  const std::uint32_t vrank = vranks.vrank_of(rank);
  std::vector<std::uint32_t> children;
  for_each_binomial_child(vrank, vranks.ranks, [&](std::uint32_t child) { children.insert(children.begin(), child); });
  return {.channels = {pass_down(vranks, vrank, binomial_parent(vrank), children, kLane, 0)}};
}

RankPlan build_chain(const PlanShape& shape, std::uint32_t rank) {
  const VirtualRanks vranks(shape.collective);
  const std::uint32_t vrank = vranks.vrank_of(rank);
  std::vector<std::uint32_t> next;
  if (vrank + 1 < vranks.ranks) next.push_back(vrank + 1);
  return {.channels = {pass_down(vranks, vrank, vrank - 1, next, kLane, 0)}};
}

RankPlan build_trees(const PlanShape& shape, std::uint32_t rank) {
  const VirtualRanks vranks(shape.collective);
  const std::uint32_t vrank = vranks.vrank_of(rank);
  RankPlan plan;
  for (std::uint32_t tree = 0; tree < shape.chunks; ++tree) {
    const TreeLinks in_tree = links_under_root(tree, vrank, vranks.ranks);
    std::vector<std::uint32_t> children;
    for (const std::uint32_t child : {in_tree.lower, in_tree.upper}) {
      if (child != TreeLinks::kNoRank) children.push_back(child);
    }
    plan.channels.push_back(pass_down(vranks, vrank, in_tree.parent, children, static_cast<std::uint16_t>(tree), tree));
  }
  return plan;
}

RankPlan build_direct(const PlanShape& shape, std::uint32_t rank) {
  const VirtualRanks vranks(shape.collective);
  const std::uint32_t vrank = vranks.vrank_of(rank);
  std::vector<std::uint32_t> others;
  for (std::uint32_t other = 1; vrank == 0 && other < vranks.ranks; ++other) others.push_back(other);
  return {.channels = {pass_down(vranks, vrank, 0, others, kLane, 0)}};
}

Channel ring_at_root(const VirtualRanks& vranks) {
  const std::uint32_t ranks = vranks.ranks;
  ChannelBuilder channel;
  for (std::uint32_t chunk = 1; chunk < ranks; ++chunk) {
    channel.step()
        .local(Space::kInput, chunk)
        .store(Space::kOutput, chunk)
        .send(channel.send_to(vranks.rank_at(chunk), kLane));
  }
  auto own = channel.step();
  own.local(Space::kInput, 0).store(Space::kOutput, 0);
  if (ranks == 1) return std::move(channel).build();
  const std::uint16_t to = channel.send_to(vranks.rank_at(1), kLane);
  own.send(to);
  for (std::uint32_t chunk = ranks - 1; chunk > 1; --chunk) channel.step().local(Space::kOutput, chunk).send(to);
  return std::move(channel).build();
}

Channel ring_at(const VirtualRanks& vranks, std::uint32_t vrank) {
  const std::uint32_t ranks = vranks.ranks;
  const bool last = vrank + 1 == ranks;
  ChannelBuilder channel;
  for (std::uint32_t k = 0; k < ranks; ++k) {
    const std::uint32_t from = k == 0 ? 0 : vrank - 1;
    auto step = channel.step();
    step.receive(channel.receive_from(vranks.rank_at(from), kLane));
    step.store(Space::kOutput, (vrank + ranks - k) % ranks);
    // The last chunk to arrive here (k = ranks - 1) is chunk vrank + 1. It is not sent to the next vrank, which
    // received it from the root.
    if (!last && k + 1 < ranks) step.send(channel.send_to(vranks.rank_at(vrank + 1), kLane));
  }
  return std::move(channel).build();
}

RankPlan build_ring(const PlanShape& shape, std::uint32_t rank) {
  const VirtualRanks vranks(shape.collective);
  const std::uint32_t vrank = vranks.vrank_of(rank);
  return {.channels = {vrank == 0 ? ring_at_root(vranks) : ring_at(vranks, vrank)}};
}

}  // namespace

Generator binomial_broadcast(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kBinomial}, .build = build_binomial};
}

Generator chain_broadcast(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kChain}, .build = build_chain};
}

Generator tree_broadcast(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kTree}, .build = build_trees};
}

Generator double_tree_broadcast(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kDoubleTree, .chunks = 2, .lanes = 2},
          .build = build_trees};
}

Generator direct_broadcast(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kDirect}, .build = build_direct};
}

Generator ring_broadcast(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kRing, .chunks = collective.ranks},
          .build = build_ring};
}

}  // namespace tutti

// Broadcast: the root's input becomes every rank's output.
//
// Everywhere the root copies its input to its output in the step that sends it first, so that in place, where the two
// are the same memory, nothing is written after it was published. Ranks stand in places 0 .. p-1, counted from the root
// (rooted.h). S is the length of the message.
//
// Binomial tree. Every place but 0 receives the message from its parent, stores it and sends it to its children, the
// farthest first since it has the most ranks below it.
//   one step        received (the root: in[0]): store out[0], send to all children
// Longest way: floor(log2 p) messages. The root sends S ceil(log2 p): for small messages.
//
// Chain. Place v hands the message on to place v + 1. The tile loop makes it a pipeline: while a rank sends one tile it
// receives the next.
//   one step        received (the root: in[0]): store out[0], send to the next place; the last one only stores
// Longest way: p - 1 messages. Every rank sends S once, the least there is: for long messages.
//
// Tree and double tree. A binary tree stands under the root, which has one child. As in the chain a pipeline, with a
// way of logarithmic length; but inner ranks send everything twice. So the double tree sends one half of the message
// (chunk t) through each of two trees, and as an inner rank of one is a leaf of the other, nobody sends more than S.
//   channel t, lane t: one step     received (the root: in[t]): store out[t], send to both children
// Longest way: floor(log2(p-1)) + 1 messages.
//
// Direct. The root sends to all, in one step. Longest way: 1 message. The root sends S(p-1): for the smallest messages,
// and where all ranks read the root's memory through a window.
//
// Ring: scatter, then all-gather. The message is cut into p chunks. The root keeps chunk 0 and sends chunk v to place
// v, and from there every chunk goes round the ring, but never to the root, which has all.
//   root, steps 0 .. p-1       in[c]: store out[c], send to place c (chunk 0: to place 1), for c = 1, ..., p-1, 0
//   root, steps p .. 2p-3      out[c], send to place 1, for c = p-1, ..., 2
//   place v, step 0            received from the root: store out[v], send to place v + 1
//   place v, steps 1 .. p-1    received from place v - 1: store out[c], send to place v + 1, for c = v - 1, v - 2, ...
// The last place, before the root, only stores. Longest way: p - 1 messages. The root sends 2S(p-1)/p, the others at
// most S(p-1)/p. A chain of p tiles does as well; this is worth its while where a message is too short for so many
// tiles.
//
// Source: the trees are those of Sanders, Speck, Traeff (double_tree.cc); scatter and all-gather: M. Barnett et al.,
// "Building a high-performance collective communication library", Supercomputing 1994.
#include <utility>
#include <vector>

#include "algorithms/rooted.h"

namespace tutti {
namespace {

constexpr std::uint16_t kLane = 0;

// One step that takes `chunk` from the parent, or at the root from the input, and passes it on.
Channel pass_down(const Places& places, std::uint32_t place, std::uint32_t parent,
                  const std::vector<std::uint32_t>& children, std::uint16_t lane, std::uint32_t chunk) {
  ChannelBuilder channel;
  auto step = channel.step();
  if (place == 0) {
    step.local(Space::kInput, chunk);
  } else {
    step.receive(channel.receive_from(places.rank_at(parent), lane));
  }
  step.store(Space::kOutput, chunk);
  for (const std::uint32_t child : children) step.send(channel.send_to(places.rank_at(child), lane));
  return std::move(channel).build();
}

RankPlan build_binomial(const PlanShape& shape, std::uint32_t rank) {
  const Places places(shape.collective);
  const std::uint32_t place = places.place_of(rank);
  std::vector<std::uint32_t> children;
  for_each_binomial_child(place, places.ranks, [&](std::uint32_t child) { children.insert(children.begin(), child); });
  return {.channels = {pass_down(places, place, binomial_parent(place), children, kLane, 0)}};
}

RankPlan build_chain(const PlanShape& shape, std::uint32_t rank) {
  const Places places(shape.collective);
  const std::uint32_t place = places.place_of(rank);
  std::vector<std::uint32_t> next;
  if (place + 1 < places.ranks) next.push_back(place + 1);
  return {.channels = {pass_down(places, place, place - 1, next, kLane, 0)}};
}

RankPlan build_trees(const PlanShape& shape, std::uint32_t rank) {
  const Places places(shape.collective);
  const std::uint32_t place = places.place_of(rank);
  RankPlan plan;
  for (std::uint32_t tree = 0; tree < shape.chunks; ++tree) {
    const TreePlace in_tree = place_under_root(tree, place, places.ranks);
    std::vector<std::uint32_t> children;
    for (const std::uint32_t child : {in_tree.lower, in_tree.upper}) {
      if (child != TreePlace::kNobody) children.push_back(child);
    }
    plan.channels.push_back(pass_down(places, place, in_tree.parent, children, static_cast<std::uint16_t>(tree), tree));
  }
  return plan;
}

RankPlan build_direct(const PlanShape& shape, std::uint32_t rank) {
  const Places places(shape.collective);
  const std::uint32_t place = places.place_of(rank);
  std::vector<std::uint32_t> others;
  for (std::uint32_t other = 1; place == 0 && other < places.ranks; ++other) others.push_back(other);
  return {.channels = {pass_down(places, place, 0, others, kLane, 0)}};
}

Channel ring_at_root(const Places& places) {
  const std::uint32_t ranks = places.ranks;
  ChannelBuilder channel;
  for (std::uint32_t chunk = 1; chunk < ranks; ++chunk) {
    channel.step()
        .local(Space::kInput, chunk)
        .store(Space::kOutput, chunk)
        .send(channel.send_to(places.rank_at(chunk), kLane));
  }
  auto own = channel.step();
  own.local(Space::kInput, 0).store(Space::kOutput, 0);
  if (ranks == 1) return std::move(channel).build();
  const std::uint16_t to = channel.send_to(places.rank_at(1), kLane);
  own.send(to);
  for (std::uint32_t chunk = ranks - 1; chunk > 1; --chunk) channel.step().local(Space::kOutput, chunk).send(to);
  return std::move(channel).build();
}

Channel ring_at(const Places& places, std::uint32_t place) {
  const std::uint32_t ranks = places.ranks;
  const bool last = place + 1 == ranks;
  ChannelBuilder channel;
  for (std::uint32_t k = 0; k < ranks; ++k) {
    const std::uint32_t from = k == 0 ? 0 : place - 1;
    auto step = channel.step();
    step.receive(channel.receive_from(places.rank_at(from), kLane));
    step.store(Space::kOutput, (place + ranks - k) % ranks);
    // The next place has its own chunk from the root: it is the last to come round.
    if (!last && k + 1 < ranks) step.send(channel.send_to(places.rank_at(place + 1), kLane));
  }
  return std::move(channel).build();
}

RankPlan build_ring(const PlanShape& shape, std::uint32_t rank) {
  const Places places(shape.collective);
  const std::uint32_t place = places.place_of(rank);
  return {.channels = {place == 0 ? ring_at_root(places) : ring_at(places, place)}};
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

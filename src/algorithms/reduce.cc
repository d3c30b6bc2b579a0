// Reduce: the sum of all ranks' inputs becomes the root's output.
//
// Ranks stand in places 0 .. p-1, counted from the root (rooted.h). S is the length of the message.
//
// Binomial tree. A place's subtree is a run of places: it adds its own input and then its children's sums, nearest
// first, and sends the whole to its parent; the root has the complete value.
//   one step        in[0] (+) received from each child: send to the parent (the root: complete, store out[0])
// Longest way: floor(log2 p) messages. Nobody sends more than S; the root adds ceil(log2 p) + 1 values in one step.
// Order: cyclic from the root, grouped as the tree is. For small messages.
//
// Chain. Place 1 sends its input to place 2, which adds its own behind it, and so on; the root, place 0, comes last.
// The tile loop makes it a pipeline.
//   one step        received (+) in[0] (place 1: in[0]): send to the next place (the root: complete, store out[0])
// Longest way: p - 1 messages. Every rank but the root sends S, and adds once. Order: cyclic from the rank after the
// root, left to right. For long messages.
//
// Tree and double tree. The binary trees of the broadcast (broadcast.cc), upwards; the double tree adds one half of the
// message (chunk t) in each, so that the additions, like the bytes, are shared evenly.
//   channel t, lane t: one step     (lower child) (+) in[t] (+) (upper child): send to the parent
//                                   the root: in[t] (+) (its one child): complete, store out[t]
// Longest way: floor(log2(p-1)) + 1 messages. Order of tree 0: cyclic from the root, grouped as the tree is. For odd p
// tree 1 has the same; for even p it begins behind place 1 and ends with it, which is no cyclic order with the root in
// front: the double tree promises none then.
//
// Direct. Every other rank sends its input to the root, which adds all in rank order, in one step, rounded once.
//   root            r0 (+) r1 (+) ... (+) r(p-1), own input at its place, complete: store out[0]
//   others          send in[0]
// Longest way: 1 message. For the smallest messages, and where a sum must not depend on the root or be rounded twice.
//
// Ring: reduce-scatter, then gather. The message is cut into p chunks that go round the ring as in the all-reduce
// (ring.cc), on ranks rather than places; the rank at which a chunk is complete sends it to the root.
//   step 0            send in[rank] to the next rank
//   step k, 1..p-2    received (+) in[rank - k], send to the next rank
//   step p-1          received (+) in[rank + 1], complete: send to the root (the root: store out[rank + 1])
//   root, p-1 more    received from rank q: store out[q + 1], for q = root + 1, root + 2, ...
// Every rank sends S at most and adds S(p-1)/p, so the additions are shared evenly, and a message too short for many
// tiles is cut nevertheless. Longest way: p messages. Order of chunk c: ranks c, c + 1, ..., left to right: the bits
// do not depend on the root. Steps are fused, so connections must hold 2 messages where p > 2.
//
// Source: as in broadcast.cc; the ring's two halves as in ring.cc.
#include <utility>

#include "algorithms/rooted.h"

namespace tutti {
namespace {

constexpr std::uint16_t kLane = 0;

// Where the value of a step goes: to `parent`, or, complete, to the root's output.
void pass_up(ChannelBuilder& channel, ChannelBuilder::StepBuilder& step, const Places& places, std::uint32_t place,
             std::uint32_t parent, std::uint32_t chunk) {
  if (place == 0) {
    step.store(Space::kOutput, chunk).completes();
  } else {
    step.send(channel.send_to(places.rank_at(parent), static_cast<std::uint16_t>(chunk)));
  }
}

RankPlan build_binomial(const PlanShape& shape, std::uint32_t rank) {
  const Places places(shape.collective);
  const std::uint32_t place = places.place_of(rank);
  ChannelBuilder channel;
  auto step = channel.step();
  step.local(Space::kInput, 0);
  for_each_binomial_child(place, places.ranks, [&](std::uint32_t child) {
    step.receive(channel.receive_from(places.rank_at(child), kLane));
  });
  pass_up(channel, step, places, place, binomial_parent(place), 0);
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_chain(const PlanShape& shape, std::uint32_t rank) {
  const Places places(shape.collective);
  const std::uint32_t place = places.place_of(rank);
  ChannelBuilder channel;
  auto step = channel.step();
  if (place != 1 && places.ranks > 1) {
    step.receive(channel.receive_from(places.rank_at((place == 0 ? places.ranks : place) - 1), kLane));
  }
  step.local(Space::kInput, 0);
  pass_up(channel, step, places, place, place + 1, 0);
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_trees(const PlanShape& shape, std::uint32_t rank) {
  const Places places(shape.collective);
  const std::uint32_t place = places.place_of(rank);
  RankPlan plan;
  for (std::uint32_t tree = 0; tree < shape.chunks; ++tree) {
    const TreePlace in_tree = place_under_root(tree, place, places.ranks);
    const auto lane = static_cast<std::uint16_t>(tree);
    ChannelBuilder channel;
    auto step = channel.step();
    if (in_tree.lower != TreePlace::kNobody) step.receive(channel.receive_from(places.rank_at(in_tree.lower), lane));
    step.local(Space::kInput, tree);
    if (in_tree.upper != TreePlace::kNobody) step.receive(channel.receive_from(places.rank_at(in_tree.upper), lane));
    pass_up(channel, step, places, place, in_tree.parent, tree);
    plan.channels.push_back(std::move(channel).build());
  }
  return plan;
}

RankPlan build_direct(const PlanShape& shape, std::uint32_t rank) {
  const Places places(shape.collective);
  ChannelBuilder channel;
  auto step = channel.step();
  for (std::uint32_t r = 0; r < places.ranks; ++r) {
    if (r == rank) {
      step.local(Space::kInput, 0);
    } else if (rank == places.root) {
      step.receive(channel.receive_from(r, kLane));
    }
  }
  pass_up(channel, step, places, places.place_of(rank), 0, 0);
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

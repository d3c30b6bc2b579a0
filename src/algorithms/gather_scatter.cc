// Gather: every rank's block comes to the root. Scatter: every rank gets its block from the root.
//
// Ranks stand in places 0 .. p-1, counted from the root (rooted.h). A block has one chunk; S is its length. The root
// copies its own block in a step of its own: in place that is a copy of memory onto itself.
//
// Direct.
//   gather:  the root: in[0]: store out[root]; received from each place 1, 2, ...: store. The others: send in[0].
//   scatter: the root: send in[rank] to each place p-1, p-2, ..., 1; in[root]: store out[0]. The others: received:
//   store
//            out[0].
// Longest way: 1 message. The root has p - 1 peers, and sends or receives S(p-1), the least there is.
//
// Binomial tree. A place's subtree is a run of places that begins with it. In the gather it sends its own block to its
// parent and then hands on, without storing them, the blocks of its children's subtrees, nearest child first: so the
// blocks of a subtree go up in the order of their places. The scatter is the same backwards: the blocks of a subtree
// come down from the last place to the first, and the last block that comes is a place's own.
//   gather:  in[0]: send to the parent; then for each place of the subtree, ascending: received from the child that it
//            is below: send to the parent (the root: store)
//   scatter: for each place of the subtree, descending: received from the parent (the root: in[rank]): send to the
//   child
//            that it is below; then received: store out[0]
// Longest way of a block: floor(log2 p) messages. A place with s places in its subtree sends (gather) or receives
// (scatter) s blocks; the root as many as in the direct plan, since a message is one block, but with ceil(log2 p) peers
// only: for many ranks, where p - 1 connections to one of them, all at once, are too many.
//
// Source: folklore; the binomial tree without its aggregation of messages.
#include <utility>

#include "algorithms/rooted.h"

namespace tutti {
namespace {

constexpr std::uint16_t kLane = 0;

// The child of `place` below which `other`, another place of its subtree, stands; perhaps `other` itself.
std::uint32_t child_above(std::uint32_t place, std::uint32_t other) { return place + std::bit_floor(other - place); }

void gather_own(ChannelBuilder& channel, const Places& places, std::uint32_t place, std::uint32_t parent) {
  auto own = channel.step();
  own.local(Space::kInput, 0);
  if (place == 0) {
    own.store(Space::kOutput, places.root);
  } else {
    own.send(channel.send_to(places.rank_at(parent), kLane));
  }
}

RankPlan build_direct_gather(const PlanShape& shape, std::uint32_t rank) {
  const Places places(shape.collective);
  ChannelBuilder channel;
  gather_own(channel, places, places.place_of(rank), 0);
  for (std::uint32_t place = 1; rank == places.root && place < places.ranks; ++place) {
    const std::uint32_t from = places.rank_at(place);
    channel.step().receive(channel.receive_from(from, kLane)).store(Space::kOutput, from);
  }
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_binomial_gather(const PlanShape& shape, std::uint32_t rank) {
  const Places places(shape.collective);
  const std::uint32_t place = places.place_of(rank);
  const std::uint32_t parent = binomial_parent(place);
  ChannelBuilder channel;
  gather_own(channel, places, place, parent);
  const std::uint32_t end = place + binomial_size(place, places.ranks);
  for (std::uint32_t below = place + 1; below < end; ++below) {
    auto step = channel.step();
    step.receive(channel.receive_from(places.rank_at(child_above(place, below)), kLane));
    if (place == 0) {
      step.store(Space::kOutput, places.rank_at(below));
    } else {
      step.send(channel.send_to(places.rank_at(parent), kLane));
    }
  }
  return {.channels = {std::move(channel).build()}};
}

void scatter_own(ChannelBuilder& channel, const Places& places, std::uint32_t place, std::uint32_t parent) {
  auto own = channel.step();
  if (place == 0) {
    own.local(Space::kInput, places.root);
  } else {
    own.receive(channel.receive_from(places.rank_at(parent), kLane));
  }
  own.store(Space::kOutput, 0);
}

RankPlan build_direct_scatter(const PlanShape& shape, std::uint32_t rank) {
  const Places places(shape.collective);
  ChannelBuilder channel;
  for (std::uint32_t place = places.ranks - 1; rank == places.root && place > 0; --place) {
    const std::uint32_t to = places.rank_at(place);
    channel.step().local(Space::kInput, to).send(channel.send_to(to, kLane));
  }
  scatter_own(channel, places, places.place_of(rank), 0);
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_binomial_scatter(const PlanShape& shape, std::uint32_t rank) {
  const Places places(shape.collective);
  const std::uint32_t place = places.place_of(rank);
  const std::uint32_t parent = binomial_parent(place);
  ChannelBuilder channel;
  for (std::uint32_t below = place + binomial_size(place, places.ranks) - 1; below > place; --below) {
    auto step = channel.step();
    if (place == 0) {
      step.local(Space::kInput, places.rank_at(below));
    } else {
      step.receive(channel.receive_from(places.rank_at(parent), kLane));
    }
    step.send(channel.send_to(places.rank_at(child_above(place, below)), kLane));
  }
  scatter_own(channel, places, place, parent);
  return {.channels = {std::move(channel).build()}};
}

}  // namespace

Generator direct_gather(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kDirect}, .build = build_direct_gather};
}

Generator binomial_gather(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kBinomial}, .build = build_binomial_gather};
}

Generator direct_scatter(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kDirect}, .build = build_direct_scatter};
}

Generator binomial_scatter(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kBinomial}, .build = build_binomial_scatter};
}

}  // namespace tutti

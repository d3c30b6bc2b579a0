// Gather: the root obtains every rank's block. Scatter: every rank obtains its block from the root.
//
// The plans use virtual ranks (vranks) 0 .. p-1, counted from the root (rooted.h); p is the number of ranks. A
// block has one chunk, and S is its length. The root copies its own block from its input to its output in a
// separate step. In an in-place call, that step copies memory onto itself.
//
// Direct.
//   gather:  the root: in[0]: store out[rank]; received from each vrank 1, 2, ...: store.
//            the others: send in[0].
//   scatter: the root: in[rank]: send to each vrank p-1, p-2, ..., 1; in[root]: store out[0].
//            the others: received: store out[0].
// Longest path: 1 message. The root has p - 1 peers, and sends (scatter) or receives (gather) S(p-1) bytes, the
// minimum.
//
// Binomial tree. The subtree of a vrank consists of consecutive vranks and starts with it. In the gather, a vrank
// sends its own block to its parent, and then forwards the blocks of its children's subtrees, nearest child first,
// without storing them. So a vrank sends the blocks of its subtree to its parent in ascending order of vranks. The
// scatter runs in reverse: a vrank receives the blocks of its subtree from its parent in descending order of
// vranks and forwards them to its children. The last block that it receives is its own.
//   gather:  in[0]: send to the parent; then for each vrank of the subtree, ascending: received from the child above
//            it: send to the parent (the root: store).
//   scatter: for each vrank of the subtree, descending: received from the parent (the root: in[rank]): send to the
//            child above it; then received: store out[0].
// Longest path of a block: floor(log2 p) messages. A vrank other than the root, with s vranks in its subtree (itself
// included), sends (gather) or receives (scatter) s blocks. Each block is a separate message, so the root handles as
// many messages as in the direct plan, but it has only ceil(log2 p) peers. Suited for many ranks, if p - 1 connections
// of the root would be too many.
//
// Source: folklore. Other libraries join the blocks of a subtree to one message; here each block stays a message
// of its own.
#include <utility>

#include "algorithms/rooted.h"

namespace tutti {
namespace {

constexpr std::uint16_t kLane = 0;

// `other` must be a vrank in the subtree of `vrank`, but not `vrank` itself. Returns the child of `vrank` that has
// `other` in its subtree. This child may be `other` itself.
std::uint32_t child_above(std::uint32_t vrank, std::uint32_t other) { return vrank + std::bit_floor(other - vrank); }

void gather_own(ChannelBuilder& channel, const VirtualRanks& vranks, std::uint32_t vrank, std::uint32_t parent) {
  auto own = channel.step();
  own.local(Space::kInput, 0);
  if (vrank == 0) {
    own.store(Space::kOutput, vranks.root);
  } else {
    own.send(channel.send_to(vranks.rank_at(parent), kLane));
  }
}

RankPlan build_direct_gather(const PlanShape& shape, std::uint32_t rank) {
  const VirtualRanks vranks(shape.collective);
  ChannelBuilder channel;
  gather_own(channel, vranks, vranks.vrank_of(rank), 0);
  for (std::uint32_t vrank = 1; rank == vranks.root && vrank < vranks.ranks; ++vrank) {
    const std::uint32_t from = vranks.rank_at(vrank);
    channel.step().receive(channel.receive_from(from, kLane)).store(Space::kOutput, from);
  }
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_binomial_gather(const PlanShape& shape, std::uint32_t rank) {
  const VirtualRanks vranks(shape.collective);
  const std::uint32_t vrank = vranks.vrank_of(rank);
  const std::uint32_t parent = binomial_parent(vrank);
  ChannelBuilder channel;
  gather_own(channel, vranks, vrank, parent);
  const std::uint32_t end = vrank + binomial_size(vrank, vranks.ranks);
  for (std::uint32_t below = vrank + 1; below < end; ++below) {
    auto step = channel.step();
    step.receive(channel.receive_from(vranks.rank_at(child_above(vrank, below)), kLane));
    if (vrank == 0) {
      step.store(Space::kOutput, vranks.rank_at(below));
    } else {
      step.send(channel.send_to(vranks.rank_at(parent), kLane));
    }
  }
  return {.channels = {std::move(channel).build()}};
}

void scatter_own(ChannelBuilder& channel, const VirtualRanks& vranks, std::uint32_t vrank, std::uint32_t parent) {
  auto own = channel.step();
  if (vrank == 0) {
    own.local(Space::kInput, vranks.root);
  } else {
    own.receive(channel.receive_from(vranks.rank_at(parent), kLane));
  }
  own.store(Space::kOutput, 0);
}

RankPlan build_direct_scatter(const PlanShape& shape, std::uint32_t rank) {
  const VirtualRanks vranks(shape.collective);
  ChannelBuilder channel;
  for (std::uint32_t vrank = vranks.ranks - 1; rank == vranks.root && vrank > 0; --vrank) {
    const std::uint32_t to = vranks.rank_at(vrank);
    channel.step().local(Space::kInput, to).send(channel.send_to(to, kLane));
  }
  scatter_own(channel, vranks, vranks.vrank_of(rank), 0);
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_binomial_scatter(const PlanShape& shape, std::uint32_t rank) {
  const VirtualRanks vranks(shape.collective);
  const std::uint32_t vrank = vranks.vrank_of(rank);
  const std::uint32_t parent = binomial_parent(vrank);
  ChannelBuilder channel;
  for (std::uint32_t below = vrank + binomial_size(vrank, vranks.ranks) - 1; below > vrank; --below) {
    auto step = channel.step();
    if (vrank == 0) {
      step.local(Space::kInput, vranks.rank_at(below));
    } else {
      step.receive(channel.receive_from(vranks.rank_at(parent), kLane));
    }
    step.send(channel.send_to(vranks.rank_at(child_above(vrank, below)), kLane));
  }
  scatter_own(channel, vranks, vrank, parent);
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

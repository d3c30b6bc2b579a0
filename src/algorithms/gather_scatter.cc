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
// Binomial tree, with one chunk per message. The subtree of a vrank consists of consecutive vranks and starts with the
// vrank itself. In the gather, a vrank sends its own block to its parent, and then forwards the blocks of its
// children's subtrees, nearest child first, without storing them. So a vrank sends the blocks of its subtree to its
// parent in ascending order of vranks. The scatter runs in reverse: a vrank receives the blocks of its subtree from its
// parent in descending order of vranks and forwards them to its children. The last block that it receives is its own.
//   gather:  in[0]: send to the parent; then for each vrank of the subtree, ascending: received from the child above
//            it: send to the parent (the root: store).
//   scatter: for each vrank of the subtree, descending: received from the parent (the root: in[rank]): send to the
//            child above it; then received: store out[0].
// Longest path of a block: floor(log2 p) messages. A vrank other than the root, with s vranks in its subtree (itself
// included), sends (gather) or receives (scatter) s blocks. Each block is a separate message, so the root handles as
// many messages as in the direct plan, but it has only ceil(log2 p) peers. Suited for many ranks, if p - 1 connections
// of the root would be too many.
//
// Binomial tree, with runs (Messages in algorithms.h). The blocks of a subtree are one message, so a rank sends and
// receives at most ceil(log2 p) messages in all. A vrank v that has children and is not the root keeps the blocks of
// its subtree in scratch: the block of vrank v + i is in scratch[i]. The root uses its output (gather) or input
// (scatter) instead, in which the blocks of a subtree are a run, too (after the last block, a run goes on with block
// 0).
//   gather:  the own block, in[0]: store scratch[0] (the root: out[root]). For each child c, nearest first: received,
//            the blocks of c's subtree: store scratch[c - v] and so on (the root: out). Then the blocks of the own
//            subtree, scratch[0] and so on: send to the parent. A vrank without children only sends in[0].
//   scatter: received from the parent, the blocks of the own subtree: store scratch[0] and so on. For each child c,
//            farthest first: the blocks of c's subtree, scratch[c - v] and so on (the root: in): send. Then the own
//            block, scratch[0] (the root: in[root]): store out[0]. A vrank without children only stores the received
//            block to out[0].
//
// Source: folklore.
#include <algorithm>
#include <utility>
#include <vector>

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

RankPlan gather_in_runs(const VirtualRanks& vranks, std::uint32_t vrank) {
  ChannelBuilder channel;
  const std::uint32_t size = binomial_size(vrank, vranks.ranks);
  if (vrank == 0 || size == 1) {
    gather_own(channel, vranks, vrank, binomial_parent(vrank));
  } else {
    channel.step().local(Space::kInput, 0).store(Space::kScratch, 0);
  }
  for_each_binomial_child(vrank, vranks.ranks, [&](std::uint32_t child) {
    auto step = channel.step();
    step.run(binomial_size(child, vranks.ranks)).receive(channel.receive_from(vranks.rank_at(child), kLane));
    if (vrank == 0) {
      step.store(Space::kOutput, vranks.rank_at(child));
    } else {
      step.store(Space::kScratch, child - vrank);
    }
  });
  if (vrank != 0 && size > 1) {
    const std::uint16_t to = channel.send_to(vranks.rank_at(binomial_parent(vrank)), kLane);
    channel.step().run(size).local(Space::kScratch, 0).send(to);
  }
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_binomial_gather(const PlanShape& shape, std::uint32_t rank) {
  const VirtualRanks vranks(shape.collective);
  const std::uint32_t vrank = vranks.vrank_of(rank);
  if (shape.longest_run > 1) return gather_in_runs(vranks, vrank);
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

RankPlan scatter_in_runs(const VirtualRanks& vranks, std::uint32_t vrank) {
  ChannelBuilder channel;
  const std::uint32_t size = binomial_size(vrank, vranks.ranks);
  if (vrank != 0 && size > 1) {
    const std::uint16_t from = channel.receive_from(vranks.rank_at(binomial_parent(vrank)), kLane);
    channel.step().run(size).receive(from).store(Space::kScratch, 0);
  }
  std::vector<std::uint32_t> children;
  for_each_binomial_child(vrank, vranks.ranks, [&](std::uint32_t child) { children.push_back(child); });
  for (std::size_t i = children.size(); i-- > 0;) {
    auto step = channel.step();
    step.run(binomial_size(children[i], vranks.ranks));
    if (vrank == 0) {
      step.local(Space::kInput, vranks.rank_at(children[i]));
    } else {
      step.local(Space::kScratch, children[i] - vrank);
    }
    step.send(channel.send_to(vranks.rank_at(children[i]), kLane));
  }
  if (vrank == 0 || size == 1) {
    scatter_own(channel, vranks, vrank, binomial_parent(vrank));
  } else {
    channel.step().local(Space::kScratch, 0).store(Space::kOutput, 0);
  }
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_binomial_scatter(const PlanShape& shape, std::uint32_t rank) {
  const VirtualRanks vranks(shape.collective);
  const std::uint32_t vrank = vranks.vrank_of(rank);
  if (shape.longest_run > 1) return scatter_in_runs(vranks, vrank);
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

// Returns the generator in the form with runs. The longest message has the blocks of the largest subtree below the
// root. With up to 3 ranks, that is one block, so both forms are the same.
Generator in_runs(Generator generator) {
  const std::uint32_t ranks = generator.shape.collective.ranks;
  std::uint32_t longest = 1;
  for_each_binomial_child(0, ranks,
                          [&](std::uint32_t child) { longest = std::max(longest, binomial_size(child, ranks)); });
  generator.shape.longest_run = longest;
  generator.shape.scratch_chunks = longest > 1 ? longest : 0;
  return generator;
}

}  // namespace

Generator binomial_gather_in_runs(const Collective& collective) { return in_runs(binomial_gather(collective)); }

Generator binomial_scatter_in_runs(const Collective& collective) { return in_runs(binomial_scatter(collective)); }

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

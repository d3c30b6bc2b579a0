// Circulant reduce-scatter, all-gather and all-reduce. The all-reduce is the reduce-scatter followed by the
// all-gather. Each of these two halves needs the minimum number of rounds and the minimum number of bytes, for any
// number of ranks.
//
// Halve the number of ranks p, rounding up, until 1 is left: s(0) = p, s(k+1) = s(k) / 2 rounded up, s(q) = 1 with
// q = ceil(log2 p). The ranks are arranged in a circle. In round k, rank r exchanges data with the ranks at
// distance s(k+1), one on each side. The message has p blocks, and rank r numbers them starting with its own: its
// block i is block r + i (modulo p) of the message.
//
// Reduce-scatter. In round k = 0 .. q-1, rank r sends its blocks s(k+1) .. s(k)-1 to rank r + s(k+1), where they
// have the numbers 0, 1, ... It adds the blocks that it receives from rank r - s(k+1) to its own blocks 0, 1, ...
// It no longer needs the blocks that it has sent. So after round k, its blocks 0 .. s(k+1)-1 remain, and after the
// last round only block 0, which then holds every rank's contribution.
//   round k, message m   send (in or scratch)[s(k+1)+m] to r + s(k+1)
//                        (in or scratch)[m] (+) received: store scratch[m]; in the last round complete: store out
//
// All-gather. The rounds run in reverse. At the beginning of round k = q-1, ..., 0, rank r has its blocks 0 ..
// s(k+1)-1, and sends the first s(k) - s(k+1) of them to rank r - s(k+1), which numbers them s(k+1) .. s(k)-1.
//   round k, message m   send out[m] to r - s(k+1); received from r + s(k+1): store out[s(k+1)+m]
//
// All-reduce. The reduce-scatter, and then the all-gather.
//
// Rounds: ceil(log2 p) for each half, 2 ceil(log2 p) for the all-reduce. In each half, every rank sends p - 1 blocks in
// all. For a message of S bytes that is S(p-1)/p, and 2S(p-1)/p for the all-reduce, which is the minimum for every p.
// Neither a reduce-scatter nor an all-gather can have fewer rounds. An all-reduce can, if it sends more bytes (for
// example recursive_doubling.cc). Each block of a round is a message of its own (algorithms/rounds.h), so with more
// than 17 ranks the longest rounds (the first of the reduce-scatter, the last of the all-gather) take more than one
// latency.
//
// Order of addition: a rank's own value is first. The sums that it receives follow, round by round. For example,
// with p = 4, the result of block c is (rc + r(c+2)) + (r(c+3) + r(c+1)), where rc is the value of rank c. This is
// not the order of the ranks, so the plan promises no order (Order::kAny). But the sum of a block is computed by
// only one rank, so all ranks obtain the same bits.
//
// Windows: inputs that are sent unchanged (all sends of round 0 of the reduce-scatter and, for odd p, the last send of
// its round 1), and all results, can be read and written directly in registered buffers. Partial sums are in scratch
// memory, so they go through slots.
//
// Source: J. L. Traeff, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms", 2024 (arXiv:2410.14234).
// The all-gather is that of J. Bruck et al., "Efficient algorithms for all-to-all communications in multiport
// message-passing systems", IEEE Trans. Parallel Distrib. Syst. 8 (1997), with skips that are halved instead of
// doubled.
#include "algorithms/circulant.h"

#include "algorithms/generators.h"
#include "algorithms/rounds.h"
#include "base/assert.h"

namespace tutti {
namespace {

RankPlan build_copy() {
  ChannelBuilder channel;
  channel.step().local(Space::kInput, 0).store(Space::kOutput, 0);
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_one_rank_sum() {
  ChannelBuilder channel;
  channel.step().local(Space::kInput, 0).store(Space::kOutput, 0).completes();
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_reduce_scatter(const PlanShape& shape, std::uint32_t rank) {
  if (shape.collective.ranks == 1) return build_one_rank_sum();
  ChannelBuilder channel;
  add_circulant_reduce_scatter(channel, rank, shape.collective.ranks, 0);
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_all_gather(const PlanShape& shape, std::uint32_t rank) {
  if (shape.collective.ranks == 1) return build_copy();
  ChannelBuilder channel;
  add_circulant_all_gather(channel, rank, shape.collective.ranks, {.space = Space::kInput, .chunk = 0});
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_all_reduce(const PlanShape& shape, std::uint32_t rank) {
  const std::uint32_t ranks = shape.collective.ranks;
  if (ranks == 1) return build_one_rank_sum();
  ChannelBuilder channel;
  add_circulant_reduce_scatter(channel, rank, ranks, rank);
  add_circulant_all_gather(channel, rank, ranks, {.space = Space::kOutput, .chunk = rank});
  return {.channels = {std::move(channel).build()}};
}

PlanShape shape_of(const Collective& collective) {
  return {.collective = collective,
          .algorithm = Algorithm::kCirculant,
          .chunks = 1,
          .slots = kRoundSlots,
          .lanes = circulant_lanes(collective.ranks),
          .order = Order::kAny};
}

// Number of scratch chunks for partial sums. With 1 or 2 ranks there is at most one round, and its sum is the
// result, so no scratch is needed.
std::uint32_t scratch_chunks(std::uint32_t ranks) { return ranks > 2 ? ranks : 0; }

}  // namespace

std::vector<std::uint32_t> circulant_skips(std::uint32_t ranks) {
  TUTTI_ASSERT(ranks >= 1);
  std::vector<std::uint32_t> skips{ranks};
  while (skips.back() > 1) skips.push_back(skips.back() / 2 + skips.back() % 2);
  return skips;
}

std::uint16_t circulant_lanes(std::uint32_t ranks) { return round_lanes(ranks / 2); }

void add_circulant_reduce_scatter(ChannelBuilder& channel, std::uint32_t rank, std::uint32_t ranks,
                                  std::uint32_t result) {
  const std::vector<std::uint32_t> skips = circulant_skips(ranks);
  const std::uint16_t lanes = circulant_lanes(ranks);
  const auto block = [&](std::uint32_t i) { return (rank + i) % ranks; };
  // Blocks 0 .. summed-1 (in the numbering of this rank) are partial sums in scratch. The other blocks are still
  // this rank's inputs. No later round adds to more blocks than the first round, so `summed` does not change after
  // the first round.
  std::uint32_t summed = 0;
  const auto space = [&](std::uint32_t i) { return i < summed ? Space::kScratch : Space::kInput; };
  for (std::size_t k = 0; k + 1 < skips.size(); ++k) {
    const std::uint32_t skip = skips[k + 1];
    const std::uint32_t messages = skips[k] - skip;
    const auto lane = [&](std::uint32_t m) { return static_cast<std::uint16_t>(m % lanes); };
    const auto send = [&](std::uint32_t m) {
      channel.step().local(space(skip + m), block(skip + m)).send(channel.send_to(block(skip), lane(m)));
    };
    const auto receive = [&](std::uint32_t m) {
      auto step = channel.step();
      step.local(space(m), block(m)).receive(channel.receive_from(block(ranks - skip), lane(m)));
      if (k + 2 == skips.size()) {
        step.store(Space::kOutput, result).completes();
      } else {
        step.store(Space::kScratch, block(m));
      }
    };
    for_each_of_round(messages, lanes, send, receive);
    if (k == 0) summed = messages;
  }
}

void add_circulant_all_gather(ChannelBuilder& channel, std::uint32_t rank, std::uint32_t ranks, Slice own) {
  const std::vector<std::uint32_t> skips = circulant_skips(ranks);
  const std::uint16_t lanes = circulant_lanes(ranks);
  const auto block = [&](std::uint32_t i) { return (rank + i) % ranks; };
  for (std::size_t k = skips.size() - 1; k-- > 0;) {
    const std::uint32_t skip = skips[k + 1];
    const auto lane = [&](std::uint32_t m) { return static_cast<std::uint16_t>(m % lanes); };
    const auto send = [&](std::uint32_t m) {
      auto step = channel.step();
      if (k + 2 == skips.size() && own.space == Space::kInput) {
        step.local(own.space, own.chunk).store(Space::kOutput, rank);
      } else {
        step.local(Space::kOutput, block(m));
      }
      step.send(channel.send_to(block(ranks - skip), lane(m)));
    };
    const auto receive = [&](std::uint32_t m) {
      channel.step().receive(channel.receive_from(block(skip), lane(m))).store(Space::kOutput, block(skip + m));
    };
    for_each_of_round(skips[k] - skip, lanes, send, receive);
  }
}

Generator circulant_reduce_scatter(const Collective& collective) {
  PlanShape shape = shape_of(collective);
  shape.scratch_chunks = scratch_chunks(collective.ranks);
  return {.shape = shape, .build = build_reduce_scatter};
}

Generator circulant_all_gather(const Collective& collective) {
  return {.shape = shape_of(collective), .build = build_all_gather};
}

Generator circulant_all_reduce(const Collective& collective) {
  PlanShape shape = shape_of(collective);
  shape.chunks = collective.ranks;
  shape.scratch_chunks = scratch_chunks(collective.ranks);
  return {.shape = shape, .build = build_all_reduce};
}

}  // namespace tutti

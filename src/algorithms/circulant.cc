// Circulant reduce-scatter, all-gather and all-reduce. The all-reduce is the reduce-scatter followed by the
// all-gather. Each of these two halves needs the minimum number of rounds and the minimum number of bytes, for any
// number of ranks.
//
// Halve the number of ranks p, rounding up, until 1 is left: s(0) = p, s(k+1) = s(k) / 2 rounded up, s(q) = 1 with
// q = ceil(log2 p). The ranks are arranged in a circle. In round k, rank r exchanges data with the ranks at
// distance s(k+1), one on each side. The data of the call consists of p blocks, each of them one chunk of the plan.
// In a reduce-scatter or an all-gather, they are the blocks of the longer buffer. In an all-reduce, "block" stands
// for one of the p chunks of the buffer. Rank r numbers the blocks starting with its own: its block i is block
// r + i (modulo p).
//
// Reduce-scatter. In round k = 0 .. q-1, rank r sends its blocks s(k+1) .. s(k)-1 to rank r + s(k+1), where they
// have the numbers 0, 1, ... It adds the blocks that it receives from rank r - s(k+1) to its own blocks 0, 1, ...
// It no longer needs the blocks that it has sent. So after round k, its blocks 0 .. s(k+1)-1 remain, and after the
// last round only block 0, which then holds every rank's contribution.
//   round k, each m      send (in or scratch)[s(k+1)+m] to r + s(k+1)
//                        (in or scratch)[m] (+) received: store scratch[m]; in the last round complete: store out
//
// All-gather. The rounds run in reverse. At the beginning of round k = q-1, ..., 0, rank r has its blocks 0 ..
// s(k+1)-1, and sends the first s(k) - s(k+1) of them to rank r - s(k+1), which numbers them s(k+1) .. s(k)-1.
//   round k, each m      send out[m] to r - s(k+1); received from r + s(k+1): store out[s(k+1)+m]
//
// In both halves, m = 0 .. s(k)-s(k+1)-1 numbers the blocks that a rank sends in round k.
//
// All-reduce. The reduce-scatter, and then the all-gather.
//
// Rounds: ceil(log2 p) for each half, 2 ceil(log2 p) for the all-reduce. In each half, every rank sends p - 1 blocks in
// all. For S bytes of data that is S(p-1)/p, and 2S(p-1)/p for the all-reduce, which is the minimum for every p.
// Neither a reduce-scatter nor an all-gather can have fewer rounds. An all-reduce can, if it sends more bytes (for
// example recursive_doubling.cc).
//
// There are two forms of each plan (Messages in algorithms.h). With one chunk per message, each block that a rank sends
// in a round is a message of its own (algorithms/rounds.h). So with more than 17 ranks the longest rounds (the first of
// the reduce-scatter, the last of the all-gather) take more than one latency. With runs, the blocks that a rank sends
// in a round are one message, so a rank sends ceil(log2 p) messages in each half instead of p - 1.
//
// A rank's block i is consecutive with its block i + 1 in the buffers, so the blocks of a message are a run (after the
// last chunk of a buffer, a run goes on with chunk 0). With runs, the partial sum of block i is in scratch[i], so s(1)
// chunks of scratch are enough. If p is odd, the last block that a rank sends in round 1 is still an input, while the
// others are partial sums. It is copied to scratch at the beginning, so that all of them are in one buffer. Both forms
// do the same additions in the same order, so their results have the same bits.
//
// Order of addition: a rank's own value is first. The sums that it receives follow, round by round. For example,
// with p = 4, the result of block c is (rc + r(c+2)) + (r(c+3) + r(c+1)), where rc is the value of rank c. This is
// not the order of the ranks, so the plan promises no order (Order::kAny). But the sum of a block is computed by
// only one rank, so all ranks obtain the same bits.
//
// Windows (plan/windows.h): with one chunk per message, inputs that are sent unchanged (all sends of round 0 of the
// reduce-scatter and, for odd p, the last send of its round 1), and all results, can be read and written directly in
// registered buffers. Partial sums are in scratch memory, so they go through slots. Messages with several chunks always
// go through slots.
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

// The lane of the plans with runs. One is enough, because a rank sends one message per round.
constexpr std::uint16_t kRunLane = 0;

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

// Appends the reduce-scatter with runs to the channel of `rank`. The partial sum of the rank's block i is in
// scratch[i], and the sum of its own block over all ranks is stored to out[result].
void reduce_scatter_in_runs(ChannelBuilder& channel, std::uint32_t rank, std::uint32_t ranks, std::uint32_t result) {
  const std::vector<std::uint32_t> skips = circulant_skips(ranks);
  const auto block = [&](std::uint32_t i) { return (rank + i) % ranks; };
  // Round 0 makes partial sums of the blocks 0 .. ranks - skips[1] - 1, and round 1 sends blocks up to skips[1] - 1.
  // For an odd number of ranks, that last block has no partial sum, so its input is copied to scratch.
  const std::uint32_t last = skips[1] - 1;
  if (ranks % 2 != 0) channel.step().local(Space::kInput, block(last)).store(Space::kScratch, last);
  for (std::size_t k = 0; k + 1 < skips.size(); ++k) {
    const std::uint32_t skip = skips[k + 1];
    const std::uint32_t run = skips[k] - skip;
    // Makes this rank's values of the blocks i .. i+run-1 an operand of `step`: its inputs, or its partial sums.
    const auto own = [&](ChannelBuilder::StepBuilder& step, std::uint32_t i) {
      step.run(run).local(k == 0 ? Space::kInput : Space::kScratch, k == 0 ? block(i) : i);
    };
    auto sends = channel.step();
    own(sends, skip);
    sends.send(channel.send_to(block(skip), kRunLane));
    auto receives = channel.step();
    own(receives, 0);
    receives.receive(channel.receive_from(block(ranks - skip), kRunLane));
    if (k + 2 == skips.size()) {
      receives.store(Space::kOutput, result).completes();
    } else {
      receives.store(Space::kScratch, 0);
    }
  }
}

// Appends the all-gather with runs to the channel of `rank`. `own` is the slice that contains the block of this rank:
// out[rank] or a slice of the input. If it is a slice of the input, the plan also copies the block to out[rank].
void all_gather_in_runs(ChannelBuilder& channel, std::uint32_t rank, std::uint32_t ranks, Slice own) {
  const std::vector<std::uint32_t> skips = circulant_skips(ranks);
  const auto block = [&](std::uint32_t i) { return (rank + i) % ranks; };
  for (std::size_t k = skips.size() - 1; k-- > 0;) {
    const std::uint32_t skip = skips[k + 1];
    const std::uint32_t run = skips[k] - skip;
    auto sends = channel.step();
    if (k + 2 == skips.size() && own.space == Space::kInput) {
      sends.local(own.space, own.chunk).store(Space::kOutput, rank);
    } else {
      sends.run(run).local(Space::kOutput, rank);
    }
    sends.send(channel.send_to(block(ranks - skip), kRunLane));
    auto receives = channel.step();
    receives.run(run).receive(channel.receive_from(block(skip), kRunLane)).store(Space::kOutput, block(skip));
  }
}

// add_reduce_scatter() and add_all_gather() each append one half to the channel: with runs if shape.longest_run is
// above 1, otherwise with one chunk per message. The other arguments are those of the functions that they call.
void add_reduce_scatter(ChannelBuilder& channel, const PlanShape& shape, std::uint32_t rank, std::uint32_t result) {
  const auto add = shape.longest_run > 1 ? reduce_scatter_in_runs : add_circulant_reduce_scatter;
  add(channel, rank, shape.collective.ranks, result);
}
void add_all_gather(ChannelBuilder& channel, const PlanShape& shape, std::uint32_t rank, Slice own) {
  const auto add = shape.longest_run > 1 ? all_gather_in_runs : add_circulant_all_gather;
  add(channel, rank, shape.collective.ranks, own);
}

RankPlan build_reduce_scatter(const PlanShape& shape, std::uint32_t rank) {
  if (shape.collective.ranks == 1) return build_one_rank_sum();
  ChannelBuilder channel;
  add_reduce_scatter(channel, shape, rank, 0);
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_all_gather(const PlanShape& shape, std::uint32_t rank) {
  if (shape.collective.ranks == 1) return build_copy();
  ChannelBuilder channel;
  add_all_gather(channel, shape, rank, {.space = Space::kInput, .chunk = 0});
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_all_reduce(const PlanShape& shape, std::uint32_t rank) {
  if (shape.collective.ranks == 1) return build_one_rank_sum();
  ChannelBuilder channel;
  add_reduce_scatter(channel, shape, rank, rank);
  add_all_gather(channel, shape, rank, {.space = Space::kOutput, .chunk = rank});
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

// Returns the generator in the form with runs. With up to 3 ranks, a rank sends one block per round, so both forms are
// the same.
Generator in_runs(Generator generator) {
  PlanShape& shape = generator.shape;
  const std::uint32_t ranks = shape.collective.ranks;
  if (ranks <= 3) return generator;
  const std::uint32_t half = circulant_skips(ranks)[1];
  shape.longest_run = ranks - half;
  shape.lanes = 1;
  if (shape.scratch_chunks > 0) shape.scratch_chunks = half;
  return generator;
}

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

Generator circulant_reduce_scatter_in_runs(const Collective& collective) {
  return in_runs(circulant_reduce_scatter(collective));
}

Generator circulant_all_gather_in_runs(const Collective& collective) {
  return in_runs(circulant_all_gather(collective));
}

Generator circulant_all_reduce_in_runs(const Collective& collective) {
  return in_runs(circulant_all_reduce(collective));
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

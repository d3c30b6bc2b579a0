// Reduce-scatter: the sum of block q of all ranks' inputs becomes the output of rank q.
//
// A block has one chunk. S is its length, and p is the number of ranks. In an in-place call, a rank's output has
// the memory of the rank's own block of the input. A rank reads this block only in the step that writes the
// output, and never writes the other blocks. So no input is overwritten before it was read.
//
// Ring. Block q starts at rank q + 1 and travels around the ring. Every rank on the way adds its own input after
// the value that it receives. Rank q is the last to add its input, and stores the sum.
//   step 0            send in[rank - 1] to the next rank
//   step k, 1..p-2    received (+) in[rank - 1 - k], send to the next rank
//   step p-1          received (+) in[rank], complete: store out[0]
// Steps per rank: p. Bytes sent per rank: S(p-1), the minimum. A rank also adds S(p-1) bytes. Longest path: p - 1
// messages. Order of addition of block q: ranks q + 1, q + 2, ..., q, left to right. A step receives and sends, so
// connections must hold 2 messages if p > 2. Suited for long blocks.
//
// Direct. Every rank sends each block to its owner. The owner of block q is rank q. It adds the p inputs in rank
// order, in a single step, so that a sum of 16-bit or 8-bit floats, which is computed in float32, is rounded to
// the short type only once.
//   step k, 0..p-2    send in[q] to q = rank + 1 + k: each rank starts with another peer
//   step p-1          r0 (+) r1 (+) ... (+) r(p-1), own in[rank] at its position, complete: store out[0]
// Steps per rank: p. Bytes sent per rank: S(p-1). Longest path: 1 message. Suited for short blocks. With
// registered buffers (windows) it is suited for blocks of all lengths, because the owner then reads the p inputs
// directly. Also use it if sums must have the same bits as those of the direct all-reduces (direct.cc).
//
// Source: see ring.cc and direct.cc. The plans here are the first halves (the reduce-scatters) of the ring and of
// the two-shot all-reduce.
#include <utility>

#include "algorithms/generators.h"

namespace tutti {
namespace {

constexpr std::uint16_t kLane = 0;

RankPlan build_ring(const PlanShape& shape, std::uint32_t rank) {
  const std::uint32_t ranks = shape.collective.ranks;
  ChannelBuilder channel;
  for (std::uint32_t k = 0; k < ranks; ++k) {
    auto step = channel.step();
    if (k > 0) step.receive(channel.receive_from((rank + ranks - 1) % ranks, kLane));
    step.local(Space::kInput, (rank + 2 * ranks - 1 - k) % ranks);
    if (k + 1 < ranks) {
      step.send(channel.send_to((rank + 1) % ranks, kLane));
    } else {
      step.store(Space::kOutput, 0).completes();
    }
  }
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_direct(const PlanShape& shape, std::uint32_t rank) {
  const std::uint32_t ranks = shape.collective.ranks;
  ChannelBuilder channel;
  for (std::uint32_t k = 1; k < ranks; ++k) {
    const std::uint32_t owner = (rank + k) % ranks;
    channel.step().local(Space::kInput, owner).send(channel.send_to(owner, kLane));
  }
  auto sum = channel.step();
  for (std::uint32_t r = 0; r < ranks; ++r) {
    if (r == rank) {
      sum.local(Space::kInput, rank);
    } else {
      sum.receive(channel.receive_from(r, kLane));
    }
  }
  sum.store(Space::kOutput, 0).completes();
  return {.channels = {std::move(channel).build()}};
}

}  // namespace

Generator ring_reduce_scatter(const Collective& collective) {
  const std::uint16_t slots = collective.ranks <= 2 ? 1 : 2;
  return {.shape = {.collective = collective, .algorithm = Algorithm::kRing, .slots = slots, .order = Order::kCyclic},
          .build = build_ring};
}

Generator direct_reduce_scatter(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kDirect, .order = Order::kByRank},
          .build = build_direct};
}

}  // namespace tutti

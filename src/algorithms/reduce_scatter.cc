// Reduce-scatter: the sum of block q of all ranks' inputs becomes the output of rank q.
//
// A block has one chunk. S is its length, and p is the number of ranks. In an in-place call, a rank's output is
// its own block of the input. It reads that block only in the step that writes it, and never writes the blocks
// that it sends.
//
// Ring. Block q starts at rank q + 1 and travels around the ring. Every rank adds its own input after the value
// that it receives. Rank q, where all contributions are included, stores the sum.
//   step 0            send in[rank - 1] to the next rank
//   step k, 1..p-2    received (+) in[rank - 1 - k], send to the next rank
//   step p-1          received (+) in[rank], complete: store out[0]
// Steps per rank: p. Bytes sent per rank: S(p-1), the minimum, and as many are added. Longest path: p - 1
// messages. Order of addition of block q: ranks q + 1, q + 2, ..., q, left to right. A step receives and sends, so
// connections must hold 2 messages if p > 2. Suited for long blocks.
//
// Direct. Every rank sends each block to its owner. The owner adds all p of them in rank order, in one step, with
// one rounding.
//   step k, 0..p-2    send in[q] to q = rank + 1 + k: all start with different peers
//   step p-1          r0 (+) r1 (+) ... (+) r(p-1), own in[rank] at its position, complete: store out[0]
// Steps per rank: p. Bytes sent per rank: S(p-1). Longest path: 1 message. Suited for short blocks. With windows
// it is suited for all blocks, because the owner reads the p inputs directly. It is also suited if a sum must be
// equal to that of the direct all-reduces, bit for bit.
//
// Source: as in ring.cc and direct.cc; these are the first halves of those algorithms.
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

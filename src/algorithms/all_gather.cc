// All-gather: every rank obtains the blocks of all ranks.
//
// A block has one chunk. S is its length, and p is the number of ranks. Every rank copies its own block to its
// position in the output in the same step that first sends it. In an in-place call, the input and this position
// are the same memory. A later copy would write memory that a peer may be reading through a window at that time
// (plan/windows.h).
//
// Ring. Each block starts at its rank and travels around the ring. Every rank stores the blocks that it receives
// and forwards them. The last rank that receives a block only stores it.
//   step 0            in[0]: store out[rank], send to the next rank
//   step k, 1..p-2    received: store out[rank - k], send to the next rank
//   step p-1          received: store out[rank + 1]
// Steps per rank: p. Bytes sent per rank: S(p-1), the minimum. Longest path: p - 1 messages. A step receives and
// sends, so connections must hold 2 messages if p > 2. Suited for long blocks. Blocks of different lengths
// (all_gather_v) are as efficient as equal ones, unless one is much longer than the others.
//
// Direct. Every rank sends its block to all others in one step, and stores the blocks that it receives.
//   step 0            in[0]: store out[rank], send to all
//   step k, 1..p-1    received from rank + k: store out[rank + k]
// Steps per rank: p. Bytes sent per rank: S(p-1), in one step. Longest path: 1 message. Suited for short blocks,
// and for registered buffers (windows), because every rank then reads directly from the memory of the others.
//
// Source: folklore. The ring is the second half (the all-gather) of the ring all-reduce in ring.cc.
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
    if (k == 0) {
      step.local(Space::kInput, 0);
    } else {
      step.receive(channel.receive_from((rank + ranks - 1) % ranks, kLane));
    }
    step.store(Space::kOutput, (rank + ranks - k) % ranks);
    if (k + 1 < ranks) step.send(channel.send_to((rank + 1) % ranks, kLane));
  }
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_direct(const PlanShape& shape, std::uint32_t rank) {
  const std::uint32_t ranks = shape.collective.ranks;
  ChannelBuilder channel;
  auto own = channel.step();
  own.local(Space::kInput, 0).store(Space::kOutput, rank);
  for (std::uint32_t k = 1; k < ranks; ++k) own.send(channel.send_to((rank + k) % ranks, kLane));
  for (std::uint32_t k = 1; k < ranks; ++k) {
    const std::uint32_t peer = (rank + k) % ranks;
    channel.step().receive(channel.receive_from(peer, kLane)).store(Space::kOutput, peer);
  }
  return {.channels = {std::move(channel).build()}};
}

}  // namespace

Generator ring_all_gather(const Collective& collective) {
  const std::uint16_t slots = collective.ranks <= 2 ? 1 : 2;
  return {.shape = {.collective = collective, .algorithm = Algorithm::kRing, .slots = slots}, .build = build_ring};
}

Generator direct_all_gather(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kDirect}, .build = build_direct};
}

}  // namespace tutti

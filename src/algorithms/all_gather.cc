// All-gather: every rank's block comes to every rank.
//
// A block has one chunk; S is its length, p the number of ranks. Every rank copies its own block to its place in the
// step that sends it first: in place, where input and output are the same memory there, nothing is written after it was
// published.
//
// Ring. Each block goes round the ring from its rank on; every rank stores it and passes it on, the last one only
// stores.
//   step 0            in[0]: store out[rank], send to the next rank
//   step k, 1..p-2    received: store out[rank - k], send to the next rank
//   step p-1          received: store out[rank + 1]
// Steps per rank: p. Sent per rank: S(p-1), the least there is. Longest way: p - 1 messages. Steps are fused, so
// connections must hold 2 messages where p > 2. For long blocks, and for blocks of different lengths as good as for
// equal ones as long as none is much longer than the rest.
//
// Direct. Every rank sends its block to all others in one step, and stores what the others have sent.
//   step 0            in[0]: store out[rank], send to all
//   step k, 1..p-1    received from rank + k: store out[rank + k]
// Steps per rank: p. Sent per rank: S(p-1), by one step. Longest way: 1 message. For short blocks, and through windows,
// where every rank reads the others' memory.
//
// Source: folklore; the ring is the second half of ring.cc.
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

// Ring all-reduce.
//
// The ranks form a ring. Each rank sends only to the next one (rank + 1) and receives only from the previous one,
// modulo the number of ranks p. The message is divided into p chunks. Chunk c starts at rank c, which sends its own
// input. Every rank that receives the chunk adds its own input after it, (received) (+) (local), and sends the sum to
// the next rank. After p - 1 hops, at rank c - 1, the sum holds every contribution. That rank stores it, and sends it
// around the ring once more: every rank stores the chunk and forwards it, and the last one, rank c - 2, only stores it.
// All p chunks travel at the same time, so all connections are used at the same time.
//
// So the steps of rank r are, with chunk(k) = r - k modulo p:
//   step 0            send in[chunk(0)]
//   step k, 1..p-2    received (+) in[chunk(k)], send
//   step p-1          received (+) in[chunk(p-1)], complete: store out[chunk(p-1)], send
//   step p..2p-3      received: store out[chunk(k-p)], send
//   step 2p-2         received: store out[chunk(p-2)]
//
// Steps per rank: 2p - 1. Bytes sent per rank: 2S(p-1)/p for a message of S bytes, which is the minimum for an
// all-reduce without in-network reduction. Order of addition of chunk c: ranks c, c+1, ..., c-1, left to right. A
// step that receives and sends can run only if a message has arrived and a slot for its send is free. Therefore
// connections must hold 2 messages. If they held 1 message, after step 0 all connections would be full, and every
// rank would wait until the next rank has freed a slot (a deadlock).
//
// Source: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J.
// Parallel Distrib. Comput. 69 (2009).
#include "algorithms/generators.h"

namespace tutti {
namespace {

RankPlan build_ring(const PlanShape& shape, std::uint32_t rank) {
  const std::uint32_t ranks = shape.collective.ranks;
  ChannelBuilder channel;
  if (ranks == 1) {
    channel.step().local(Space::kInput, 0).store(Space::kOutput, 0).completes();
    return {.channels = {std::move(channel).build()}};
  }
  const std::uint16_t from = channel.receive_from((rank + ranks - 1) % ranks, 0);
  const std::uint16_t to = channel.send_to((rank + 1) % ranks, 0);
  const auto chunk = [&](std::uint32_t hops) { return (rank + ranks - hops) % ranks; };

  channel.step().local(Space::kInput, chunk(0)).send(to);
  for (std::uint32_t k = 1; k < ranks - 1; ++k) channel.step().receive(from).local(Space::kInput, chunk(k)).send(to);
  channel.step()
      .receive(from)
      .local(Space::kInput, chunk(ranks - 1))
      .store(Space::kOutput, chunk(ranks - 1))
      .completes()
      .send(to);
  for (std::uint32_t k = 0; k < ranks - 2; ++k) channel.step().receive(from).store(Space::kOutput, chunk(k)).send(to);
  channel.step().receive(from).store(Space::kOutput, chunk(ranks - 2));
  return {.channels = {std::move(channel).build()}};
}

}  // namespace

Generator ring_all_reduce(const Collective& collective) {
  const std::uint16_t slots = collective.ranks == 1 ? 1 : 2;
  return {.shape = {.collective = collective,
                    .algorithm = Algorithm::kRing,
                    .chunks = collective.ranks,
                    .slots = slots,
                    .order = Order::kCyclic},
          .build = build_ring};
}

}  // namespace tutti

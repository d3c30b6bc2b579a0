// All-to-all: block q of rank r's input becomes block r of rank q's output.
//
// A block has one chunk; S is its length, p the number of ranks. In place out[q] is the memory of in[q], which must
// have left before anything is received there. So every plan reads in[q] in an earlier step than it writes out[q], and
// a rank whose call is in place takes no part in windows (PlanShape::windows_in_place): nobody may read in[q] later,
// from afar, or write out[q] earlier.
//
// Pairwise. In round k, 0 .. p-1, rank r exchanges blocks with rank q = k - r modulo p: its partner's partner is r
// itself. Where q = r it copies its own block.
//   each round        send in[q] to q
//                     received from q: store out[q]
// Steps per rank: 2p - 1. Sent per rank: S(p-1), the least there is. Longest way: p rounds at most. One peer at a time,
// each link carries one block in each direction: for long blocks.
//
// Direct. All blocks leave before the first one is awaited. All ranks start with different peers.
//   step 0            in[rank]: store out[rank]
//   steps 1 .. p-1    send in[q] to q = rank + 1, rank + 2, ...
//   steps p .. 2p-2   received from q = rank - 1, rank - 2, ...: store out[q]
// Steps per rank: 2p - 1. Sent per rank: S(p-1). Longest way: 1 message. For short and middling blocks, and through
// windows.
//
// Bruck. Number the blocks of rank r by the distance i = 1 .. p-1 to the rank that they are for. Block i travels by the
// powers of two that i is the sum of, the least one first: in round k, with 2^k < p, every rank sends the blocks i that
// have bit k to rank r + 2^k and gets as many, with the same numbers, from rank r - 2^k. Between two rounds block i
// waits in scratch[i]. In its last round it comes to the rank that it is for, as out[r - i].
//   channel 0   in[rank]: store out[rank]; and what must make way in place: scratch[i] = in[r + i]
//               round k, each i with bit k, ascending: send scratch[i], or in its first round in[r + i], to r + 2^k;
//               what was received is sent after its receive
//   channel 1   round k, each i with bit k, ascending: received from r - 2^k: store scratch[i], or in its last round
//               out[r - i]; after the send of the same number in the same round, and so after all sends before it
// So nothing is written before it has left, with one exception, in place: out[r - i] is the memory of in[r + (p - i)],
// and block p - i may leave in a later round than i comes, or later in the same round. Such blocks make way: they are
// copied to scratch first. And channel 1 does not begin with a tile before channel 0 has, since scratch is used again.
// Longest way: at most ceil(log2 p) messages, and as many peers. A message is one block, so a rank sends about
// (p/2) log2 p of them, more than the p - 1 of the others: for very short blocks where connections are what is scarce.
//
// Source: pairwise and direct exchange are folklore; J. Bruck et al., "Efficient algorithms for all-to-all
// communications in multiport message-passing systems", IEEE TPDS 8 (1997).
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "algorithms/generators.h"

namespace tutti {
namespace {

constexpr std::uint16_t kLane = 0;

void copy_own(ChannelBuilder& channel, std::uint32_t rank) {
  channel.step().local(Space::kInput, rank).store(Space::kOutput, rank);
}

RankPlan build_pairwise(const PlanShape& shape, std::uint32_t rank) {
  const std::uint32_t ranks = shape.collective.ranks;
  ChannelBuilder channel;
  for (std::uint32_t round = 0; round < ranks; ++round) {
    const std::uint32_t partner = (round + ranks - rank) % ranks;
    if (partner == rank) {
      copy_own(channel, rank);
      continue;
    }
    channel.step().local(Space::kInput, partner).send(channel.send_to(partner, kLane));
    channel.step().receive(channel.receive_from(partner, kLane)).store(Space::kOutput, partner);
  }
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_direct(const PlanShape& shape, std::uint32_t rank) {
  const std::uint32_t ranks = shape.collective.ranks;
  ChannelBuilder channel;
  copy_own(channel, rank);
  for (std::uint32_t k = 1; k < ranks; ++k) {
    const std::uint32_t to = (rank + k) % ranks;
    channel.step().local(Space::kInput, to).send(channel.send_to(to, kLane));
  }
  for (std::uint32_t k = 1; k < ranks; ++k) {
    const std::uint32_t from = (rank + ranks - k) % ranks;
    channel.step().receive(channel.receive_from(from, kLane)).store(Space::kOutput, from);
  }
  return {.channels = {std::move(channel).build()}};
}

int first_round(std::uint32_t block) { return std::countr_zero(block); }
int last_round(std::uint32_t block) { return std::bit_width(block) - 1; }

// In place, block `block` would be overwritten before it has left: by what comes as out[r - i], with i = p - block.
bool must_make_way(std::uint32_t block, std::uint32_t ranks) {
  const std::uint32_t comes = ranks - block;
  if (first_round(block) != last_round(comes)) return first_round(block) > last_round(comes);
  return block > comes;
}

// Calls visit(round, block) in the order in which both channels of every rank go through them.
template <class Visit>
void for_each_bruck_message(std::uint32_t ranks, Visit visit) {
  for (int round = 0; (std::uint32_t{1} << round) < ranks; ++round) {
    for (std::uint32_t block = std::uint32_t{1} << round; block < ranks; ++block) {
      if ((block >> round & 1) != 0) visit(round, block);
    }
  }
}

RankPlan build_bruck(const PlanShape& shape, std::uint32_t rank) {
  const std::uint32_t ranks = shape.collective.ranks;
  ChannelBuilder sender;
  copy_own(sender, rank);
  for (std::uint32_t block = 1; block < ranks; ++block) {
    if (!must_make_way(block, ranks)) continue;
    sender.step().local(Space::kInput, (rank + block) % ranks).store(Space::kScratch, block);
  }
  const std::uint32_t first_send = sender.steps();
  ChannelBuilder receiver;
  std::vector<std::uint32_t> received(ranks);  // of each block: the step of the receiver that stored it last
  for_each_bruck_message(ranks, [&](int round, std::uint32_t block) {
    const std::uint32_t distance = std::uint32_t{1} << round;
    auto leaves = sender.step();
    if (round > first_round(block)) {
      leaves.local(Space::kScratch, block);
      sender.after(1, received[block]);
    } else if (must_make_way(block, ranks)) {
      leaves.local(Space::kScratch, block);
    } else {
      leaves.local(Space::kInput, (rank + block) % ranks);
    }
    leaves.send(sender.send_to((rank + distance) % ranks, kLane));

    auto comes = receiver.step();
    comes.receive(receiver.receive_from((rank + ranks - distance) % ranks, kLane));
    if (round < last_round(block)) {
      comes.store(Space::kScratch, block);
    } else {
      comes.store(Space::kOutput, (rank + ranks - block) % ranks);
    }
    received[block] = receiver.steps() - 1;
    receiver.after(0, first_send + received[block]);
  });
  return {.channels = {std::move(sender).build(), std::move(receiver).build()}};
}

}  // namespace

Generator pairwise_all_to_all(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kPairwise, .windows_in_place = false},
          .build = build_pairwise};
}

Generator direct_all_to_all(const Collective& collective) {
  return {.shape = {.collective = collective, .algorithm = Algorithm::kDirect, .windows_in_place = false},
          .build = build_direct};
}

Generator bruck_all_to_all(const Collective& collective) {
  return {.shape = {.collective = collective,
                    .algorithm = Algorithm::kBruck,
                    .scratch_chunks = collective.ranks > 2 ? collective.ranks : 0,  // scratch[0] is not used
                    .windows_in_place = false},
          .build = build_bruck};
}

}  // namespace tutti

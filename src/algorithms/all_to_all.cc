// All-to-all: block q of rank r's input becomes block r of rank q's output.
//
// A block has one chunk. S is its length, and p is the number of ranks. In an in-place call, out[q] and in[q] are
// the same memory, so a rank must send in[q] before it stores the received block to out[q]. For that reason every
// plan reads in[q] in an earlier step than the step that writes out[q] (its own block is read and written by the
// same step). PlanShape::windows_in_place is false: with windows, a peer could read in[q] after it was
// overwritten, or write out[q] before in[q] was sent.
//
// Pairwise. In round k = 0 .. p-1, rank r exchanges blocks with rank q = k - r modulo p. In this round, the
// partner of rank q is rank r. If q = r, the rank copies its own block.
//   each round        send in[q] to q
//                     received from q: store out[q]
// Steps per rank: 2p - 1. Bytes sent per rank: S(p-1), the minimum. Longest path: at most p rounds. Each rank
// communicates with one peer at a time, so each link carries one block in each direction. Suited for long blocks.
//
// Direct. A rank sends all of its blocks before it waits for the first one. The ranks start with different peers,
// so that no rank receives all blocks at the same time.
//   step 0            in[rank]: store out[rank]
//   steps 1 .. p-1    send in[q] to q = rank + 1, rank + 2, ...
//   steps p .. 2p-2   received from q = rank - 1, rank - 2, ...: store out[q]
// Steps per rank: 2p - 1. Bytes sent per rank: S(p-1). Longest path: 1 message. Suited for short and medium
// blocks, and for registered buffers (windows).
//
// Bruck. The blocks of rank r are numbered by the distance i = 1 .. p-1 to their destination. Block i travels in one or
// more hops. The distances of its hops are the powers of two in the binary representation of i, the smallest first
// (block 6 first travels 2 ranks, then 4). In round k, with 2^k < p, every rank sends its blocks i that have bit k set
// to rank r + 2^k, and receives blocks with the same numbers from rank r - 2^k. Between two of its rounds, block i is
// in scratch[i]. In its last round it reaches its destination, where it is stored to out[r - i].
//   channel 0   in[rank]: store out[rank]; and for the blocks that must be saved in an in-place call:
//               in[r + i]: store scratch[i]
//               round k, each i with bit k, ascending: send scratch[i] to r + 2^k; but in the first round of block i,
//               send in[r + i] if it was not saved. A block that was received is sent after its receive.
//   channel 1   round k, each i with bit k, ascending: received from r - 2^k: store scratch[i], or in the last round of
//               block i out[r - i]. This runs after the send of the same number in the same round, and so after all
//               earlier sends.
// So in most cases memory is not written before its old contents were sent. There is one exception, in in-place calls:
// out[r - i] has the memory of in[r + (p - i)], and block p - i may be sent in a later round than block i is received,
// or later in the same round. Such blocks are copied to scratch first, in all calls, because a plan does not depend on
// whether a call is in place. Because each step of channel 1 waits for a send of channel 0, channel 1 does not run
// ahead of channel 0 to the next tile. It must not, because all tiles use the same scratch. Longest path: at most
// ceil(log2 p) messages. A rank sends to at most ceil(log2 p) peers, and receives from as many. A message is one block,
// so a rank sends about (p/2) log2 p messages, which for p > 3 is more than the p - 1 messages of the other algorithms.
// Suited for very short blocks if the number of connections is limited.
//
// Source: pairwise and direct exchange are folklore. J. Bruck et al., "Efficient algorithms for all-to-all
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

// True if, in an in-place call of rank r, in[r + block] would be overwritten before it was sent. This input chunk has
// the same memory as the output chunk to which the received block number p - block is stored, because r + block =
// r - (p - block) modulo p.
bool must_make_way(std::uint32_t block, std::uint32_t ranks) {
  const std::uint32_t comes = ranks - block;
  if (first_round(block) != last_round(comes)) return first_round(block) > last_round(comes);
  return block > comes;
}

// Calls visit(round, block) for every message that a rank sends, in the order of the sends. For each send, the rank
// receives one message with the same round and block number from another rank, so both channels process their messages
// in this order. The order is the same on every rank.
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
  // indexed by block: the step of channel 1 (`receiver`) that last stored the block
  std::vector<std::uint32_t> received(ranks);
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
                    // Indexed by block. There is no block 0, so scratch[0] is not used.
                    .scratch_chunks = collective.ranks > 2 ? collective.ranks : 0,
                    .windows_in_place = false},
          .build = build_bruck};
}

}  // namespace tutti

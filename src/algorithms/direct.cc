// Direct all-reduces: every rank communicates with every other rank, and each sum is computed in rank order, in a
// single step, so that a sum of 16-bit or 8-bit floats, which is computed in float32, is rounded to the short type only
// once. p is the number of ranks, and S is the number of bytes of the message. The counts below are for p > 1.
//
// One-shot. Every rank sends its whole message to all others, and adds all p messages in rank order 0 .. p-1. Its
// own message is added at its own position. All ranks do the same additions, so all obtain the same bits.
//   step 0   send in[0] to all
//   step 1   r0 (+) r1 (+) ... (+) r(p-1), own input at its position, complete: store out[0]
// Steps per rank: 2. Bytes sent per rank: S(p-1). One round of messages. Suited for the smallest messages. In an
// in-place call, step 1 may overwrite the input before all peers have read it. So in an in-place call the input is
// copied to slots and never published through a window (PlanShape::windows_in_place is false).
//
// Two-shot. The message is divided into p chunks, and rank q owns chunk q. Every rank sends its input of each
// chunk to the owner. The owner adds the p inputs of its chunk in rank order, stores the result, and sends it to
// all.
//   steps 0 .. p-2      send in[q] to q, for q = rank + 1, rank + 2, ...: each rank starts with another peer
//   step p-1            r0 (+) r1 (+) ... (+) r(p-1), own in[rank] at its position, complete: store out[rank],
//                       send to all
//   steps p .. 2p-2     received from q: store out[q], for q = rank + 1, ...
// Steps per rank: 2p - 1. Bytes sent per rank: 2S(p-1)/p. Two rounds of messages. With registered buffers (windows),
// nothing is copied to slots, except inputs that a kPreMulSum multiplies or whose chunks are shorter than
// kLeastPublished (plan/windows.h): the owner reads p inputs and writes p outputs directly. Over all ranks, these are
// 2Sp bytes of loads and stores, the minimum. Step p-1 needs a free slot to every peer, but the slot with this rank's
// input becomes free only when the peer runs its own step p-1. So connections must hold 2 messages. If they held 1
// message, all ranks would wait for each other.
//
// Order of addition: ranks 0, 1, ..., p-1, left to right, in one step. It is the same for every chunk, message
// size and placement of ranks on machines.
//
// Source: the direct exchange is folklore. The names are those of the all-reduce kernels of vLLM and TensorRT-LLM.
// The split of the two-shot into a reduce-scatter and an all-gather: R. Rabenseifner, "Optimization of collective
// reduction operations", ICCS 2004.
#include "algorithms/generators.h"

namespace tutti {
namespace {

constexpr std::uint16_t kLane = 0;

// Calls `visit(peer)` for all other ranks, in the order rank + 1, rank + 2, ... (modulo `ranks`).
template <class Visit>
void for_each_peer(std::uint32_t rank, std::uint32_t ranks, Visit visit) {
  for (std::uint32_t distance = 1; distance < ranks; ++distance) visit((rank + distance) % ranks);
}

// Appends to `step` the values of `chunk` of all ranks as operands, in rank order (this rank's own value is read
// from the input), and the store of the sum to the output. Marks the step as completing (Step::completes).
void add_all_in_rank_order(ChannelBuilder& channel, ChannelBuilder::StepBuilder& step, std::uint32_t rank,
                           std::uint32_t ranks, std::uint32_t chunk) {
  for (std::uint32_t r = 0; r < ranks; ++r) {
    if (r == rank) {
      step.local(Space::kInput, chunk);
    } else {
      step.receive(channel.receive_from(r, kLane));
    }
  }
  step.store(Space::kOutput, chunk).completes();
}

RankPlan build_one_shot(const PlanShape& shape, std::uint32_t rank) {
  const std::uint32_t ranks = shape.collective.ranks;
  ChannelBuilder channel;
  if (ranks > 1) {
    auto send = channel.step();
    send.local(Space::kInput, 0);
    for_each_peer(rank, ranks, [&](std::uint32_t peer) { send.send(channel.send_to(peer, kLane)); });
  }
  auto add = channel.step();
  add_all_in_rank_order(channel, add, rank, ranks, 0);
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_two_shot(const PlanShape& shape, std::uint32_t rank) {
  const std::uint32_t ranks = shape.collective.ranks;
  ChannelBuilder channel;
  for_each_peer(rank, ranks, [&](std::uint32_t peer) {
    channel.step().local(Space::kInput, peer).send(channel.send_to(peer, kLane));
  });
  auto own = channel.step();
  add_all_in_rank_order(channel, own, rank, ranks, rank);
  for_each_peer(rank, ranks, [&](std::uint32_t peer) { own.send(channel.send_to(peer, kLane)); });
  for_each_peer(rank, ranks, [&](std::uint32_t peer) {
    channel.step().receive(channel.receive_from(peer, kLane)).store(Space::kOutput, peer);
  });
  return {.channels = {std::move(channel).build()}};
}

}  // namespace

Generator one_shot_all_reduce(const Collective& collective) {
  return {.shape = {.collective = collective,
                    .algorithm = Algorithm::kOneShot,
                    .chunks = 1,
                    .slots = 1,
                    .windows_in_place = false,
                    .order = Order::kByRank},
          .build = build_one_shot};
}

Generator two_shot_all_reduce(const Collective& collective) {
  const std::uint16_t slots = collective.ranks == 1 ? 1 : 2;
  return {.shape = {.collective = collective,
                    .algorithm = Algorithm::kTwoShot,
                    .chunks = collective.ranks,
                    .slots = slots,
                    .order = Order::kByRank},
          .build = build_two_shot};
}

}  // namespace tutti

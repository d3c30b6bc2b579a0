// Recursive doubling all-reduce: has few rounds (the minimum if the number of ranks is a power of two), but sends the
// whole message in each round.
//
// Let the number of ranks Q be a power of two. In round j = 0, 1, ..., log2 Q - 1, rank v and rank v xor 2^j
// exchange their values, and both add the two values in the order of the ranks. After round j, rank v has the sum
// of the 2^(j+1) ranks that agree with it in all higher bits. After the last round all ranks have the whole sum.
// The step that adds the two values of a round also sends the sum to the partner of the next round.
//   step 0         send in[0] to the partner of round 0
//   step j + 1     value (+) received, in the order of the ranks: store scratch[j modulo 2] and send to the partner of
//                  round j + 1; in the last round complete: store out[0]
//
// Any other number of ranks is folded (algorithms/folding.h): a core rank adds its helper's input in step 0, and
// sends the result to its helper in its last step.
//
// Rounds (messages one after the other): log2 Q. With helpers, 1 more if at most half of the core ranks have a
// helper, and otherwise 2 more, because then a path leads from a helper through all rounds to another helper.
// Bytes sent per rank for a message of S bytes: S log2 Q. A core rank with a helper sends S more, and a helper
// sends S. Suited for short messages, because their time depends on latency rather than on bandwidth. Order of
// addition: ranks 0, 1, ..., p-1, grouped as a balanced tree, the same on every rank. So all ranks obtain the same
// bits. In an in-place call, the last step may overwrite the input before the partner of round 0 has read it. So in
// an in-place call the input is never published through a window (PlanShape::windows_in_place is false).
//
// Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", Int. J.
// High Perform. Comput. Appl. 19 (2005). The exchange itself is folklore.
#include "algorithms/folding.h"
#include "algorithms/generators.h"

namespace tutti {
namespace {

constexpr std::uint16_t kLane = 0;

RankPlan build_helper(std::uint32_t core_rank) {
  ChannelBuilder channel;
  channel.step().local(Space::kInput, 0).send(channel.send_to(core_rank, kLane));
  channel.step().receive(channel.receive_from(core_rank, kLane)).store(Space::kOutput, 0);
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_core(const Folding& folding, std::uint32_t core) {
  const std::uint32_t helper = folding.helper_of(core);
  const auto partner = [&](std::uint32_t round) { return folding.rank_of(core ^ 1u << round); };
  ChannelBuilder channel;
  auto first = channel.step();
  first.local(Space::kInput, 0);
  const bool folds = helper != kNoHelper;
  if (folds) first.receive(channel.receive_from(helper, kLane)).store(Space::kScratch, 1);
  first.send(channel.send_to(partner(0), kLane));
  Slice value = folds ? Slice{.space = Space::kScratch, .chunk = 1} : Slice{.space = Space::kInput, .chunk = 0};
  for (std::uint32_t round = 0; round < folding.rounds(); ++round) {
    const bool last = round + 1 == folding.rounds();
    const bool partner_is_lower = (core >> round & 1) != 0;
    const std::uint16_t from = channel.receive_from(partner(round), kLane);
    auto step = channel.step();
    if (partner_is_lower) step.receive(from);
    step.local(value.space, value.chunk);
    if (!partner_is_lower) step.receive(from);
    if (last) {
      step.store(Space::kOutput, 0).completes();
      if (folds) step.send(channel.send_to(helper, kLane));
      break;
    }
    value = {.space = Space::kScratch, .chunk = round % 2};
    step.store(value.space, value.chunk).send(channel.send_to(partner(round + 1), kLane));
  }
  return {.channels = {std::move(channel).build()}};
}

RankPlan build_recursive_doubling(const PlanShape& shape, std::uint32_t rank) {
  const Folding folding(shape.collective.ranks);
  if (folding.cores == 1) {
    ChannelBuilder channel;
    channel.step().local(Space::kInput, 0).store(Space::kOutput, 0).completes();
    return {.channels = {std::move(channel).build()}};
  }
  const std::uint32_t core = folding.core_of(rank);
  return folding.is_helper(rank) ? build_helper(folding.rank_of(core)) : build_core(folding, core);
}

}  // namespace

Generator recursive_doubling_all_reduce(const Collective& collective) {
  return {.shape = {.collective = collective,
                    .algorithm = Algorithm::kRecursiveDoubling,
                    .chunks = 1,
                    .scratch_chunks = collective.ranks > 2 ? 2u : 0u,
                    .slots = 1,
                    .windows_in_place = false,
                    .order = Order::kByRank},
          .build = build_recursive_doubling};
}

}  // namespace tutti

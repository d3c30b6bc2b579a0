// All-reduce by recursive halving and doubling.
//
// A reduce-scatter by halving, and then an all-gather by doubling. Let the number of ranks Q be a power of two,
// and divide the message into Q chunks. In round j = 0, 1, ..., log2 Q - 1, rank v exchanges data with rank v xor
// 2^j. Initially all chunks remain. In each round, rank v sends those of its remaining chunks with a number that
// differs from v in bit j, and adds the received chunks to the others, which remain. After the last round only chunk
// v remains, and it holds every rank's contribution. In the doubling, the rounds run in reverse: in round j, rank v
// has the results of all chunks with numbers that agree with v in bits 0 .. j. It sends all of them to rank v xor
// 2^j, and receives and stores as many others.
//   halving, round j    send (in or scratch)[c] for c = v xor 2^j modulo 2^(j+1)
//                       received (+) (in or scratch)[c] for c = v modulo 2^(j+1), in the order of the ranks:
//                       store scratch[c]; in the last round complete: store out[c]
//   doubling, round j   send out[c] for c = v modulo 2^(j+1); received: store out[c] for c = v xor 2^j modulo 2^(j+1)
//
// Any other number of ranks is folded (algorithms/folding.h): v numbers the core ranks, and Q is their number. A
// helper sends its input to its core rank. The core rank adds it in the same steps that read its own input in
// round 0, so folding costs messages, but no extra pass over memory. The step of the core rank that stores a
// result chunk also sends it to the helper.
//   core of a helper, round 0    send in[c] (+) helper; received, in[c] and helper in the order of the ranks
//   helper                       send in[c], received: store out[c], in the order in which its core rank receives and
//                                stores them
//
// Rounds: 2 log2 Q, and 2 more if there are helpers. Bytes sent per rank for a message of S bytes: 2S(Q-1)/Q. A core
// rank with a helper sends S more, and a helper sends only S. The number of bytes is the minimum only for powers of
// two; circulant.cc sends the minimum for all p. Order of addition: ranks 0, 1, ..., p-1, grouped like a balanced tree:
// first a rank and its helper, then neighbouring core ranks, then neighbouring pairs of them, and so on. (One
// exception: in round 0, a core rank with a helper adds three values from left to right if its partner has the lower
// number.) So partners have near rank numbers in the early rounds, which have the most data. With consecutive ranks on
// each machine, much of the data then stays inside machines. Each chunk of a round is a message of its own
// (algorithms/rounds.h).
//
// Source: R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; R. Thakur, R. Rabenseifner, W.
// Gropp, "Optimization of collective communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005).
// Unlike here, in these papers the input of a helper is added in a separate step.
#include <vector>

#include "algorithms/folding.h"
#include "algorithms/generators.h"
#include "algorithms/rounds.h"

namespace tutti {
namespace {

std::uint16_t lanes_of(const Folding& folding) { return round_lanes(folding.cores / 2); }

// Builds the channel of one core rank. Also records the order in which it receives chunks from its helper
// (taken()) and sends result chunks to its helper (handed_on()), because the helper's channel must have the same
// order.
class CoreBuilder {
 public:
  CoreBuilder(const Folding& roles, std::uint32_t core)
      : roles_(roles), core_(core), lanes_(lanes_of(roles)), helper_(roles.helper_of(core)) {}

  void halve(std::uint32_t round) {
    const Pairing pair = pairing(round);
    const bool last = round + 1 == roles_.rounds();
    for_each_of_round(
        pair.messages, lanes_,
        [&](std::uint32_t m) {
          auto step = channel_.step();
          add_own(step, round, pair.theirs(m));
          step.send(channel_.send_to(pair.partner, lane(m)));
        },
        [&](std::uint32_t m) {
          auto step = channel_.step();
          const std::uint16_t from = channel_.receive_from(pair.partner, lane(m));
          if (pair.partner_is_lower) step.receive(from);
          add_own(step, round, pair.ours(m));
          if (!pair.partner_is_lower) step.receive(from);
          step.store(last ? Space::kOutput : Space::kScratch, pair.ours(m));
          if (!last) return;
          step.completes();
          hand_on(step, pair.ours(m));
        });
  }

  void double_back(std::uint32_t round) {
    const Pairing pair = pairing(round);
    for_each_of_round(
        pair.messages, lanes_,
        [&](std::uint32_t m) {
          channel_.step().local(Space::kOutput, pair.ours(m)).send(channel_.send_to(pair.partner, lane(m)));
        },
        [&](std::uint32_t m) {
          auto step = channel_.step();
          step.receive(channel_.receive_from(pair.partner, lane(m))).store(Space::kOutput, pair.theirs(m));
          hand_on(step, pair.theirs(m));
        });
  }

  const std::vector<std::uint32_t>& taken() const { return taken_; }
  const std::vector<std::uint32_t>& handed_on() const { return handed_on_; }
  Channel build() && { return std::move(channel_).build(); }

 private:
  struct Pairing {
    std::uint32_t core;
    std::uint32_t bit;
    std::uint32_t partner;  // the partner's rank, not its core number
    std::uint32_t messages;
    bool partner_is_lower;

    std::uint32_t ours(std::uint32_t m) const { return core % (2 * bit) + m * 2 * bit; }
    std::uint32_t theirs(std::uint32_t m) const { return (core ^ bit) % (2 * bit) + m * 2 * bit; }
  };

  Pairing pairing(std::uint32_t round) const {
    const std::uint32_t bit = 1u << round;
    return {.core = core_,
            .bit = bit,
            .partner = roles_.rank_of(core_ ^ bit),
            .messages = roles_.cores / (2 * bit),
            .partner_is_lower = (core_ & bit) != 0};
  }
  std::uint16_t lane(std::size_t message) const { return static_cast<std::uint16_t>(message % lanes_); }

  // Appends this rank's value of a chunk, as it is before round `round`, to the operands of a step. In round 0,
  // the value is its input, and the helper's input (if there is a helper) is another operand.
  void add_own(ChannelBuilder::StepBuilder& step, std::uint32_t round, std::uint32_t chunk) {
    step.local(round == 0 ? Space::kInput : Space::kScratch, chunk);
    if (round > 0 || helper_ == kNoHelper) return;
    step.receive(channel_.receive_from(helper_, lane(taken_.size())));
    taken_.push_back(chunk);
  }
  void hand_on(ChannelBuilder::StepBuilder& step, std::uint32_t chunk) {
    if (helper_ == kNoHelper) return;
    step.send(channel_.send_to(helper_, lane(handed_on_.size())));
    handed_on_.push_back(chunk);
  }

  const Folding& roles_;
  const std::uint32_t core_;
  const std::uint16_t lanes_;
  const std::uint32_t helper_;
  ChannelBuilder channel_;
  std::vector<std::uint32_t> taken_;      // chunks received from the helper, in order
  std::vector<std::uint32_t> handed_on_;  // chunks sent to the helper, in order
};

Channel build_helper(const CoreBuilder& core, std::uint32_t core_rank, std::uint16_t lanes) {
  ChannelBuilder channel;
  for (std::size_t i = 0; i < core.taken().size(); ++i) {
    const std::uint16_t to = channel.send_to(core_rank, static_cast<std::uint16_t>(i % lanes));
    channel.step().local(Space::kInput, core.taken()[i]).send(to);
  }
  for (std::size_t i = 0; i < core.handed_on().size(); ++i) {
    const std::uint16_t from = channel.receive_from(core_rank, static_cast<std::uint16_t>(i % lanes));
    channel.step().receive(from).store(Space::kOutput, core.handed_on()[i]);
  }
  return std::move(channel).build();
}

RankPlan build_halving_doubling(const PlanShape& shape, std::uint32_t rank) {
  const Folding roles(shape.collective.ranks);
  if (roles.cores == 1) {
    ChannelBuilder channel;
    channel.step().local(Space::kInput, 0).store(Space::kOutput, 0).completes();
    return {.channels = {std::move(channel).build()}};
  }
  const std::uint32_t core = roles.core_of(rank);
  CoreBuilder builder(roles, core);
  for (std::uint32_t round = 0; round < roles.rounds(); ++round) builder.halve(round);
  for (std::uint32_t round = roles.rounds(); round-- > 0;) builder.double_back(round);
  if (roles.is_helper(rank)) return {.channels = {build_helper(builder, roles.rank_of(core), lanes_of(roles))}};
  return {.channels = {std::move(builder).build()}};
}

}  // namespace

Generator halving_doubling_all_reduce(const Collective& collective) {
  const Folding roles(collective.ranks);
  return {.shape = {.collective = collective,
                    .algorithm = Algorithm::kHalvingDoubling,
                    .chunks = roles.cores,
                    .scratch_chunks = roles.cores > 2 ? roles.cores : 0,
                    .slots = kRoundSlots,
                    .lanes = lanes_of(roles),
                    .order = Order::kByRank},
          .build = build_halving_doubling};
}

}  // namespace tutti

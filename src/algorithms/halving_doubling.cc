// All-reduce by recursive halving and doubling.
//
// A reduce-scatter by halving, and then an all-gather by doubling. Let the number of ranks Q be a power of two, and
// divide the data of the call into Q chunks. Let rev(v) be the number v with its log2 Q bits in reverse order. The
// halving gives rank v the sum of chunk rev(v). In round j = 0, 1, ..., log2 Q - 1, rank v exchanges data with its
// partner, rank v xor 2^j. At first a rank keeps all chunks. In each round, rank v sends one half of the chunks that it
// has kept so far, keeps the half that contains chunk rev(v), and adds the received chunks to it. After the last round
// it keeps only chunk rev(v), which then holds every rank's contribution. In the doubling, the rounds run in reverse:
// in round j, rank v has the results of the chunks that it kept in round j. It sends all of them to its partner, and
// receives and stores as many others.
//
// The chunks that a rank keeps in a round are consecutive, and so are those that it sends, because of the reversed
// bits. Let K(v, j) be the Q / 2^(j+1) chunks that rank v keeps in round j. For example, with Q = 8, rev(1) is 4, and
// rank 1 keeps the chunks 4 .. 7 in round 0, 4 and 5 in round 1, and 4 in round 2. The partner keeps the other half of
// the chunks that both kept before.
//   halving, round j    send (in or scratch)[c] for c in K(v xor 2^j, j)
//                       received (+) (in or scratch)[c] for c in K(v, j), in the order of the ranks:
//                       store scratch[c]; in the last round complete: store out[c]
//   doubling, round j   send out[c] for c in K(v, j); received: store out[c] for c in K(v xor 2^j, j)
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
// each machine, much of the data then stays inside machines.
//
// There are two forms of the plan (Messages in algorithms.h). With one chunk per message, each chunk that a rank sends
// in a round is a message of its own (algorithms/rounds.h). With runs, all chunks that a rank sends to its partner in a
// round are one message. A helper then sends its input in two messages, one for each half of round 0, and receives one
// message for each run of results that its core rank stores. Both forms do the same additions in the same order, so
// their results have the same bits.
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

// The chunks of one message, and of the steps that send and receive it: a single one, or a run of them (Step::run).
struct Chunks {
  std::uint32_t first = 0;
  std::uint32_t count = 1;
};

// Builds the channel of one core rank. Also records the chunks of the messages that it receives from its helper
// (taken()) and of those that it sends to its helper (handed_on()), in their order, because the helper's channel must
// send and receive the same messages in the same order.
class CoreBuilder {
 public:
  CoreBuilder(const Folding& roles, std::uint32_t core, const PlanShape& shape)
      : roles_(roles),
        core_(core),
        lanes_(shape.lanes),
        in_runs_(shape.longest_run > 1),
        helper_(roles.helper_of(core)) {}

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
          step.store(last ? Space::kOutput : Space::kScratch, pair.ours(m).first);
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
          const std::uint16_t to = channel_.send_to(pair.partner, lane(m));
          channel_.step().run(pair.run).local(Space::kOutput, pair.ours(m).first).send(to);
        },
        [&](std::uint32_t m) {
          auto step = channel_.step();
          const std::uint16_t from = channel_.receive_from(pair.partner, lane(m));
          step.run(pair.run).receive(from).store(Space::kOutput, pair.theirs(m).first);
          hand_on(step, pair.theirs(m));
        });
  }

  const std::vector<Chunks>& taken() const { return taken_; }
  const std::vector<Chunks>& handed_on() const { return handed_on_; }
  Channel build() && { return std::move(channel_).build(); }

 private:
  struct Pairing {
    std::uint32_t partner;      // the partner's rank, not its core number
    std::uint32_t messages;     // number of messages in each direction
    std::uint32_t run;          // number of chunks of each of these messages
    std::uint32_t first_own;    // the first chunk that this core keeps (K in the comment at the top)
    std::uint32_t first_other;  // the first chunk that the partner keeps
    bool partner_is_lower;

    // ours(m): the chunks of message m in one direction, which this core keeps in this round of the halving. theirs(m):
    // the chunks of message m in the other direction, which the partner keeps.
    Chunks ours(std::uint32_t m) const { return {.first = first_own + m * run, .count = run}; }
    Chunks theirs(std::uint32_t m) const { return {.first = first_other + m * run, .count = run}; }
  };

  Pairing pairing(std::uint32_t round) const {
    const std::uint32_t bit = 1u << round;
    const std::uint32_t half = roles_.cores / (2 * bit);
    return {.partner = roles_.rank_of(core_ ^ bit),
            .messages = in_runs_ ? 1 : half,
            .run = in_runs_ ? half : 1,
            .first_own = first_kept(core_, round),
            .first_other = first_kept(core_ ^ bit, round),
            .partner_is_lower = (core_ & bit) != 0};
  }
  // The first chunk that a core keeps in a round, as a binary number of log2 Q bits: the lowest `round` + 1 bits of the
  // core's number in reverse order, followed by zeros.
  std::uint32_t first_kept(std::uint32_t core, std::uint32_t round) const {
    std::uint32_t first = 0;
    for (std::uint32_t j = 0; j <= round; ++j) first |= (core >> j & 1u) << (roles_.rounds() - 1 - j);
    return first;
  }
  std::uint16_t lane(std::size_t message) const { return static_cast<std::uint16_t>(message % lanes_); }

  // Appends this rank's values of some chunks, as they are before round `round`, to the operands of a step. In round 0,
  // the values are its input, and the helper's input (if there is a helper) is another operand.
  void add_own(ChannelBuilder::StepBuilder& step, std::uint32_t round, const Chunks& chunks) {
    step.run(chunks.count).local(round == 0 ? Space::kInput : Space::kScratch, chunks.first);
    if (round > 0 || helper_ == kNoHelper) return;
    step.receive(channel_.receive_from(helper_, lane(taken_.size())));
    taken_.push_back(chunks);
  }
  void hand_on(ChannelBuilder::StepBuilder& step, const Chunks& chunks) {
    if (helper_ == kNoHelper) return;
    step.send(channel_.send_to(helper_, lane(handed_on_.size())));
    handed_on_.push_back(chunks);
  }

  const Folding& roles_;
  const std::uint32_t core_;
  const std::uint16_t lanes_;
  const bool in_runs_;
  const std::uint32_t helper_;
  ChannelBuilder channel_;
  std::vector<Chunks> taken_;      // the chunks of each message received from the helper, in order
  std::vector<Chunks> handed_on_;  // the chunks of each message sent to the helper, in order
};

Channel build_helper(const CoreBuilder& core, std::uint32_t core_rank, std::uint16_t lanes) {
  ChannelBuilder channel;
  for (std::size_t i = 0; i < core.taken().size(); ++i) {
    const std::uint16_t to = channel.send_to(core_rank, static_cast<std::uint16_t>(i % lanes));
    channel.step().run(core.taken()[i].count).local(Space::kInput, core.taken()[i].first).send(to);
  }
  for (std::size_t i = 0; i < core.handed_on().size(); ++i) {
    const std::uint16_t from = channel.receive_from(core_rank, static_cast<std::uint16_t>(i % lanes));
    channel.step().run(core.handed_on()[i].count).receive(from).store(Space::kOutput, core.handed_on()[i].first);
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
  CoreBuilder builder(roles, core, shape);
  for (std::uint32_t round = 0; round < roles.rounds(); ++round) builder.halve(round);
  for (std::uint32_t round = roles.rounds(); round-- > 0;) builder.double_back(round);
  if (roles.is_helper(rank)) return {.channels = {build_helper(builder, roles.rank_of(core), shape.lanes)}};
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
                    .lanes = round_lanes(roles.cores / 2),
                    .order = Order::kByRank},
          .build = build_halving_doubling};
}

Generator halving_doubling_all_reduce_in_runs(const Collective& collective) {
  Generator generator = halving_doubling_all_reduce(collective);
  // With up to 3 ranks, there are at most two chunks, and a rank sends one per round. So both forms are the same.
  if (generator.shape.chunks <= 2) return generator;
  generator.shape.longest_run = generator.shape.chunks / 2;
  generator.shape.lanes = 1;
  return generator;
}

}  // namespace tutti

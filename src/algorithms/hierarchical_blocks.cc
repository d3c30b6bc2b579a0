// Hierarchical all-gather, which runs all_gather(across, one rail per local rank) at the same time as
// all_gather(inside), and hierarchical reduce-scatter, which is the same in reverse. "Inside" is within one
// machine, and "across" is between machines.
//
// There are N machines with L ranks each, and S is the length of a block. The ranks with index j on their machines
// form rail j, for j = 0 .. L-1. Each rail is a ring of its own through all machines, which uses the network ports
// of its ranks. All rails run at the same time.
//
// All-gather. As soon as a rank has a block of its rail, it sends the block to the other ranks of its machine.
//   channel 0   step 0            in[0]: store out[rank], send to the next machine and to all of the own machine
//               step k, 1..N-1    received: store out[the block from k machines back], send to the same ranks (the last
//                                 step only inside)
//   channel 1   block k, 0..N-1   of each other rank of the own machine: received: store out[...]
// Reduce-scatter. Rank q is to receive the sum of block q. The block travels around the ring of q's rail, and
// every machine adds the values of its ranks. It starts at the machine after that of q, and ends at q.
//   channel 1   block k, 0..N-1   of each other rail: send in[...] to the rank of that rail in the own machine
//   channel 0   step 0            r0 (+) r1 (+) ... (+) r(L-1) of the machine, own input at its position: send to the
//                                 next machine
//               step k, 1..N-2    received from the previous machine (+) the same: send to the next machine
//               step N-1          the same, complete: store out[0]
// Steps per rank: N + N(L-1). Bytes sent per rank: S(N-1) to other machines, NS(L-1) inside. Longest path: N - 1
// messages across and one inside. A ring of all ranks (a flat ring) has NL - 1. A step receives and sends, so
// connections must hold 2 messages.
//
// Order of addition of a block that belongs to a rank of machine m: the ranks of machine m + 1, then those of m +
// 2, ..., and last those of m, each machine in rank order, left to right.
//
// Instead of these plans, the flat ring (ring.cc's halves in all_gather.cc and reduce_scatter.cc) is used if machines
// have different sizes or one rank each, if there is only one machine, or if a machine has kMaxDirectRanks ranks or
// more, because a step would have too many operands or sends.
//
// Source: the stages are those of the hierarchical all-gathers of Horovod and of NCCL users. The overlap is our
// own.
#include <algorithm>
#include <memory>
#include <utility>

#include "algorithms/generators.h"
#include "algorithms/hierarchical.h"

namespace tutti {
namespace {

constexpr std::uint16_t kLane = 0;

// The machine of a rank, and its index on that machine (`member`), which is the number of its rail. `size` is the
// number of ranks of every machine.
struct RailPosition {
  RailPosition(const Machines& all, std::uint32_t rank)
      : machines(all), machine(all.machine_of(rank)), member(all.member_of(rank)), size(all.rails()) {}

  std::uint32_t ahead(std::uint32_t k) const { return (machine + k) % machines.count(); }
  std::uint32_t behind(std::uint32_t k) const { return (machine + machines.count() - k) % machines.count(); }
  std::uint32_t rank_at(std::uint32_t of_machine, std::uint32_t of_member) const {
    return machines.rank_at(of_machine, of_member);
  }
  std::uint32_t mate(std::uint32_t distance) const { return (member + distance) % size; }

  const Machines& machines;
  std::uint32_t machine, member, size;
};

RankPlan build_all_gather(const Machines& machines, std::uint32_t rank) {
  const RailPosition own(machines, rank);
  ChannelBuilder rail, inside;
  const auto send_inside = [&](ChannelBuilder::StepBuilder& step) {
    for (std::uint32_t distance = 1; distance < own.size; ++distance) {
      step.send(rail.send_to(own.rank_at(own.machine, own.mate(distance)), kLane));
    }
  };
  for (std::uint32_t k = 0; k < machines.count(); ++k) {
    auto step = rail.step();
    if (k == 0) {
      step.local(Space::kInput, 0);
    } else {
      step.receive(rail.receive_from(own.rank_at(own.behind(1), own.member), kLane));
    }
    step.store(Space::kOutput, own.rank_at(own.behind(k), own.member));
    if (k + 1 < machines.count()) step.send(rail.send_to(own.rank_at(own.ahead(1), own.member), kLane));
    send_inside(step);
    for (std::uint32_t distance = 1; distance < own.size; ++distance) {
      const std::uint32_t mate = own.mate(own.size - distance);
      inside.step()
          .receive(inside.receive_from(own.rank_at(own.machine, mate), kLane))
          .store(Space::kOutput, own.rank_at(own.behind(k), mate));
    }
  }
  return {.channels = {std::move(rail).build(), std::move(inside).build()}};
}

RankPlan build_reduce_scatter(const Machines& machines, std::uint32_t rank) {
  const RailPosition own(machines, rank);
  ChannelBuilder rail, inside;
  for (std::uint32_t k = 0; k < machines.count(); ++k) {
    // The machine of the ranks to which the blocks of this step belong. In the last step (k = N - 1) it is this
    // rank's own machine.
    const std::uint32_t of = own.behind(k + 1);
    for (std::uint32_t distance = 1; distance < own.size; ++distance) {
      const std::uint32_t mate = own.mate(distance);
      inside.step()
          .local(Space::kInput, own.rank_at(of, mate))
          .send(inside.send_to(own.rank_at(own.machine, mate), kLane));
    }
    auto step = rail.step();
    if (k > 0) step.receive(rail.receive_from(own.rank_at(own.behind(1), own.member), kLane));
    for (std::uint32_t member = 0; member < own.size; ++member) {
      if (member == own.member) {
        step.local(Space::kInput, own.rank_at(of, member));
      } else {
        step.receive(rail.receive_from(own.rank_at(own.machine, member), kLane));
      }
    }
    if (k + 1 < machines.count()) {
      step.send(rail.send_to(own.rank_at(own.ahead(1), own.member), kLane));
    } else {
      step.store(Space::kOutput, 0).completes();
    }
  }
  return {.channels = {std::move(rail).build(), std::move(inside).build()}};
}

using Build = RankPlan (*)(const Machines& machines, std::uint32_t rank);

Generator over_rails(const Collective& collective, Build build, Generator (*flat)(const Collective&), Order order) {
  // All copies of the generator share one immutable object, because generators are copied often, and the tables in
  // the object may have entries for every rank.
  const auto machines = std::make_shared<const Machines>(collective);
  bool equal = machines->count() > 1 && machines->rails() > 1 && machines->rails() < kMaxDirectRanks;
  for (std::uint32_t m = 0; equal && m < machines->count(); ++m) equal = machines->size(m) == machines->rails();
  if (!equal) {
    Generator ring = flat(collective);
    ring.shape.algorithm = Algorithm::kHierarchical;
    return ring;
  }
  return {.shape = {.collective = collective,
                    .algorithm = Algorithm::kHierarchical,
                    .slots = 2,
                    .order = machines->side_by_side() ? order : Order::kAny},
          .build = [machines, build](const PlanShape&, std::uint32_t rank) { return build(*machines, rank); }};
}

}  // namespace

Generator hierarchical_all_gather(const Collective& collective) {
  return over_rails(collective, build_all_gather, ring_all_gather, PlanShape{}.order);
}

Generator hierarchical_reduce_scatter(const Collective& collective) {
  return over_rails(collective, build_reduce_scatter, ring_reduce_scatter, Order::kCyclic);
}

}  // namespace tutti

// Hierarchical all-gather and reduce-scatter: all_gather(across, one rail per local rank) beside all_gather(inside),
// and their mirror image.
//
// The machines have L ranks each, there are N of them, and S is the length of a block. Rank j of every machine is of
// rail j, and each rail has a ring of its own, by the wires of its ranks. All rails run at once.
//
// All-gather. A rank gives every block of its rail to its machine as soon as it has it.
//   channel 0   step 0            in[0]: store out[rank], send to the next machine and to all of the own one
//               step k, 1..N-1    received: store out[that of k machines back], send likewise (the last one inside
//               only)
//   channel 1   block k, 0..N-1   of each rank of the own machine: received: store out[...]
// Reduce-scatter. The blocks of a rail are added up on every machine on their way round the rail's ring; block q begins
// its way at the machine behind its own.
//   channel 1   block k, 0..N-1   of each other rail: send in[...] to the rank of that rail in the own machine
//   channel 0   step 0            r0 (+) r1 (+) ... (+) r(L-1) of the machine, own input at its place: send to the next
//               step k, 1..N-2    received from the machine before (+) the same: send to the next machine
//               step N-1          the same, complete: store out[0]
// Steps per rank: N + N(L-1). Sent per rank: S(N-1) to other machines, NS(L-1) inside. Longest way: N - 1 messages
// across and one inside, where a flat ring has NL - 1. Steps are fused: connections must hold 2 messages.
//
// Order of addition of a block of machine m: machines m + 1, ..., m, each in rank order, left to right.
//
// Machines of different sizes, or of one rank, one machine alone, and machines of more ranks than a step takes
// operands: the flat ring.
//
// Source: the stages are those of Horovod's and of NCCL users' hierarchical all-gathers; the overlap is ours.
#include <algorithm>
#include <memory>
#include <utility>

#include "algorithms/generators.h"
#include "algorithms/hierarchical.h"

namespace tutti {
namespace {

constexpr std::uint16_t kLane = 0;

// Where a rank stands. Its rail's other ranks are at the same place of other machines.
struct Place {
  Place(const Machines& all, std::uint32_t rank)
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
  const Place own(machines, rank);
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
  const Place own(machines, rank);
  ChannelBuilder rail, inside;
  for (std::uint32_t k = 0; k < machines.count(); ++k) {
    const std::uint32_t of = own.behind(k + 1);  // the last one is the own machine
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
  // Shared, and never changed: generators are copied freely, and the tables may grow with the ranks.
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

// Hierarchical all-reduce: reduce_scatter(inside) >> all_reduce(across, one rail per local rank) >> all_gather(inside).
//
// Machines are joined by slower wires than the ranks of one machine, and each rank may have a wire of its own. So the
// message is cut into *rails*, one for each rank of the largest machine. On every machine each rail has an owner. First
// the ranks of a machine sum up their values of every rail at its owner; then the owners of one rail, one on each
// machine, all-reduce it among each other; then each owner gives the result to the ranks of its machine. Every byte of
// a rail crosses the wires once for the whole machine instead of once for each of its ranks, and all ranks' wires are
// in use at once.
//
// On a machine of L ranks, in rank order, rail g belongs to the one at place g modulo L. Where machines differ in size,
// a rank of a small one owns several rails and serves them one after the other; as many rails as the *largest* machine
// has ranks let all ranks of all machines do their share of the sums and wires. Each rail is cut into as many chunks as
// the all-reduce across wants. A rank's channels:
//   the first one    reduce-scatter inside (algorithms/inside.h): in[c] of all, stored as scratch[c] at c's owner
//   the next ones    the all-reduce across, with scratch[c] for its input: stores out[c]
//   the last one     all-gather inside: out[c] from c's owner, stored as out[c] by the others
// The chunks are dealt with inside in the order in which the stage across reads and stores them. Stages wait for each
// other chunk by chunk and overlap tile by tile (algorithms/compose.h): the time of a long message is that of the
// slowest stage, not the sum.
//
// On one machine only the stages inside are left, in one channel, and complete the sums; with one rank on each machine
// only the stage across, on one rail; a machine with one rank among larger ones has nothing to do inside.
//
// hierarchical: direct inside (a ring where a machine has more ranks than a step takes operands), a ring across.
// hierarchical_tree: a ring inside, the double binary tree across: for many machines.
//
// For N machines of L ranks and a message of S bytes, rounds (messages one after the other) and bytes sent per rank:
//   hierarchical       2 + 2(N-1) rounds; 2S(p-1)/p bytes, the least, of which 2S(N-1)/(NL) leave the machine
//   hierarchical_tree  2(L-1) + at most 2 floor(log2 N) rounds; 2S(L-1)/L inside and at most 2S/L across
// Order of addition: direct inside adds in rank order. So where each machine's ranks stand side by side, hierarchical
// adds in cyclic rank order (in rank order on one machine); a ring inside starts at another member for each owner, and
// the order is then one of no promise. All ranks get the same bits in any case.
//
// Source: the three stages are those of BlueConnect (M. Cho et al., "BlueConnect: decomposing all-reduce for deep
// learning on heterogeneous network hierarchy", MLSys 2019) and of Horovod's hierarchical all-reduce; the rule for
// unequal machines is ours.
#include "algorithms/hierarchical.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "algorithms/generators.h"
#include "base/assert.h"

namespace tutti {
namespace {

constexpr std::uint16_t kReduceLane = 0;  // the stages inside and the one across never join the same two ranks
constexpr std::uint16_t kGatherLane = 1;

// Chunks of one member of the stage across, in the order of its steps.
struct Sequence {
  std::vector<std::uint32_t> read;
  std::vector<std::uint32_t> stored;
};

std::vector<std::uint32_t> chunks_in_order(const RankPlan& plan, Space space, Slice Step::*slice) {
  std::vector<std::pair<std::size_t, std::uint32_t>> found;  // step, chunk
  for (const Channel& channel : plan.channels) {
    for (std::size_t s = 0; s < channel.steps.size(); ++s) {
      const Slice& each = channel.steps[s].*slice;
      if (each.space == space) found.emplace_back(s, each.chunk);
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::uint32_t> chunks;
  for (const auto& [step, chunk] : found) {
    if (std::find(chunks.begin(), chunks.end(), chunk) == chunks.end()) chunks.push_back(chunk);
  }
  return chunks;
}

// All that the ranks' builders share.
struct Hierarchy {
  Hierarchy(const Collective& collective, const HierarchyStages& chosen)
      : machines(collective),
        stages(chosen),
        across(chosen.across(
            {.kind = CollectiveKind::kAllReduce, .ranks = static_cast<std::uint32_t>(machines.teams.size())})),
        chunks(across.shape.chunks * machines.rails) {
    TUTTI_ASSERT(across.shape.scratch_chunks == 0 || across.shape.scratch_chunks == across.shape.chunks,
                 "scratch of a stage across has the lengths of its chunks");
    for (const Team& team : machines.teams) largest = std::max<std::size_t>(largest, team.ranks.size());
    if (largest > kMaxDirectRanks) stages.inside = Inside::kRing;
  }

  bool has_inside() const { return largest > 1; }
  bool has_across() const { return machines.teams.size() > 1; }
  std::uint32_t chunk_of(std::uint32_t rail, std::uint32_t piece) const { return rail * across.shape.chunks + piece; }

  // The chunks of every member of a machine, for each of its rails in the given order of pieces.
  Owned owned(const Team& team, const std::vector<std::uint32_t>& pieces) const {
    Owned all;
    for (const std::uint32_t rank : team.ranks) {
      std::vector<std::uint32_t>& own = all.emplace_back();
      for (const std::uint32_t rail : machines.rails_of(rank)) {
        for (const std::uint32_t piece : pieces) own.push_back(chunk_of(rail, piece));
      }
    }
    return all;
  }

  PlanShape shape(const Collective& collective) const;
  RankPlan build(std::uint32_t rank) const;
  void append_across(Composer& composer, const RankPlan& stage, std::uint32_t rank) const;

  Machines machines;
  HierarchyStages stages;
  Generator across;
  std::uint32_t chunks;
  std::size_t largest = 1;
};

Order order_of(const Hierarchy& hierarchy) {
  if (hierarchy.has_inside() && hierarchy.stages.inside == Inside::kRing) {
    return hierarchy.has_across() ? Order::kAny : Order::kCyclic;
  }
  if (!hierarchy.has_across()) return Order::kByRank;
  return hierarchy.machines.side_by_side ? hierarchy.across.shape.order : Order::kAny;
}

PlanShape Hierarchy::shape(const Collective& collective) const {
  const PlanShape& outer = across.shape;
  const std::uint32_t partial_sums = has_inside() && has_across() ? chunks : 0;
  return {.collective = collective,
          .algorithm = stages.name,
          .chunks = chunks,
          .scratch_chunks = outer.scratch_chunks > 0 ? 2 * chunks : partial_sums,
          .slots = std::max(outer.slots, has_inside() ? inside_slots(stages.inside) : std::uint16_t{1}),
          .lanes = std::max<std::uint16_t>(outer.lanes, has_inside() ? kGatherLane + 1 : 1),
          .windows_in_place = outer.windows_in_place || !has_across(),
          .order = order_of(*this)};
}

// Its rails one after the other. Where a rank is alone on its machine, the machine's sum is its input.
void Hierarchy::append_across(Composer& composer, const RankPlan& stage, std::uint32_t rank) const {
  const bool alone = machines.teams[machines.machine[rank]].ranks.size() == 1;
  for (const std::uint32_t rail : machines.rails_of(rank)) {
    const Team team = machines.across(rail);
    const auto place = [&](const Slice& slice) -> Slice {
      const std::uint32_t chunk = chunk_of(rail, slice.chunk);
      switch (slice.space) {
        case Space::kInput: return {.space = alone ? Space::kInput : Space::kScratch, .chunk = chunk};
        case Space::kScratch: return {.space = Space::kScratch, .chunk = chunks + chunk};  // as long as its chunk
        case Space::kOutput:
        case Space::kNone: break;
      }
      return {.space = slice.space, .chunk = chunk};
    };
    const auto first_channel = static_cast<std::uint16_t>(alone ? 0 : 1);
    composer.append(stage, {.team = team, .place = place, .first_channel = first_channel, .completes = true});
  }
}

RankPlan Hierarchy::build(std::uint32_t rank) const {
  const std::uint32_t machine = machines.machine[rank];
  const Team& team = machines.teams[machine];
  const RankPlan outer = across.build(across.shape, machine);
  Composer composer;
  if (team.ranks.size() == 1) {
    append_across(composer, outer, rank);
    return std::move(composer).build();
  }
  const Space sums = has_across() ? Space::kScratch : Space::kOutput;
  const auto at_sums = [&](const Slice& slice) -> Slice {
    return {.space = slice.space == Space::kOutput ? sums : slice.space, .chunk = slice.chunk};
  };
  const Owned read = owned(team, chunks_in_order(outer, Space::kInput, &Step::source));
  composer.append(inside_reduce_scatter(stages.inside, machines.member[rank], read),
                  {.team = team, .place = at_sums, .first_lane = kReduceLane, .completes = !has_across()});
  if (has_across()) append_across(composer, outer, rank);
  const auto at_home = [](const Slice& slice) { return slice; };
  const Owned stored = owned(team, chunks_in_order(outer, Space::kOutput, &Step::sink));
  const std::size_t gather_channel = has_across() ? 1 + outer.channels.size() : 0;
  composer.append(inside_all_gather(stages.inside, machines.member[rank], stored),
                  {.team = team,
                   .place = at_home,
                   .first_channel = static_cast<std::uint16_t>(gather_channel),
                   .first_lane = kGatherLane});
  return std::move(composer).build();
}

}  // namespace

Machines::Machines(const Collective& collective) {
  std::map<std::uint32_t, std::uint32_t> index;  // machine's number -> index into teams
  for (std::uint32_t rank = 0; rank < collective.ranks; ++rank) {
    const std::uint32_t number = collective.nodes.empty() ? 0 : collective.nodes[rank];
    const auto [place, added] = index.try_emplace(number, static_cast<std::uint32_t>(teams.size()));
    if (added) teams.emplace_back();
    Team& team = teams[place->second];
    side_by_side = side_by_side && (team.ranks.empty() || team.ranks.back() + 1 == rank);
    machine.push_back(place->second);
    member.push_back(static_cast<std::uint32_t>(team.ranks.size()));
    team.ranks.push_back(rank);
    rails = std::max(rails, static_cast<std::uint32_t>(team.ranks.size()));
  }
}

Team Machines::across(std::uint32_t rail) const {
  Team owners;
  for (const Team& team : teams) owners.ranks.push_back(team.ranks[rail % team.ranks.size()]);
  return owners;
}

std::vector<std::uint32_t> Machines::rails_of(std::uint32_t rank) const {
  std::vector<std::uint32_t> owned;
  const auto members = static_cast<std::uint32_t>(teams[machine[rank]].ranks.size());
  for (std::uint32_t rail = member[rank]; rail < rails; rail += members) owned.push_back(rail);
  return owned;
}

Generator composed_all_reduce(const Collective& collective, const HierarchyStages& stages) {
  TUTTI_ASSERT(collective.kind == CollectiveKind::kAllReduce || collective.kind == CollectiveKind::kBarrier);
  // Shared, and never changed: generators are copied freely, and this one's table grows with the ranks.
  const auto hierarchy = std::make_shared<const Hierarchy>(collective, stages);
  return {.shape = hierarchy->shape(collective),
          .build = [hierarchy](const PlanShape&, std::uint32_t rank) { return hierarchy->build(rank); }};
}

Generator hierarchical_all_reduce(const Collective& collective) {
  return composed_all_reduce(collective,
                             {.name = Algorithm::kHierarchical, .inside = Inside::kDirect, .across = ring_all_reduce});
}

Generator hierarchical_tree_all_reduce(const Collective& collective) {
  return composed_all_reduce(
      collective, {.name = Algorithm::kHierarchicalTree, .inside = Inside::kRing, .across = double_tree_all_reduce});
}

}  // namespace tutti

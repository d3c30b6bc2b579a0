// Hierarchical all-reduce: reduce_scatter(inside) >> all_reduce(across, one rail per local rank) >>
// all_gather(inside). "Inside" is within one machine, and "across" is between machines.
//
// The network between machines is slower than the links inside a machine, and each rank may have a network port of
// its own. So the message is divided into *rails*, one for each rank of the largest machine. On every machine each
// rail has an owner. First, the ranks of a machine add their values of every rail at its owner. Then the owners of
// one rail, one on each machine, all-reduce it among themselves. Finally, each owner sends the result to the ranks
// of its machine. Every byte of a rail crosses the network once for the whole machine instead of once for each of
// its ranks, and all network ports are in use at the same time.
//
// On a machine of L ranks, in rank order, rail g belongs to the rank with index g modulo L. If machines differ in
// size, a rank of a small machine owns several rails and processes them one after the other. There are as many
// rails as the *largest* machine has ranks, so that all ranks of all machines take part in the additions and use
// their ports. Each rail is divided into as many chunks as the all-reduce across requires. The channels of a rank:
//   the first one    reduce-scatter inside (algorithms/inside.h): in[c] of all, stored as scratch[c] at c's owner
//   the next ones    the all-reduce across, with scratch[c] as its input: stores out[c]
//   the last one     all-gather inside: out[c] from c's owner, stored as out[c] by the others
// The stages inside process the chunks in the order in which the stage across reads and stores them. Stages wait
// for each other chunk by chunk, and overlap tile by tile (algorithms/compose.h). So the time of a long message is
// that of the slowest stage, and not the sum over the stages. If the stage across uses trees, each chunk of a rail
// is a *strand* with a first and a last channel of its own. This is because a machine near the root of one tree
// processes each tile late, and is a leaf of the other tree. The tiles of that tree must not wait for it.
//
// On one machine, there are only the stages inside, in one channel, and they complete the sums. With one rank on
// each machine, there is only the stage across, on one rail. A machine with one rank among larger ones has no
// stages inside.
//
// hierarchical: direct inside (a ring if a machine has more ranks than a step can have operands), and a ring
// across.
//
// hierarchical_tree: direct inside up to 16 ranks (a ring beyond), and the double binary tree across. Suited for
// many machines.
//
// For N machines of L ranks and a message of S bytes, rounds (messages one after the other) and bytes sent per
// rank:
//   hierarchical       2 + 2(N-1) rounds; 2S(p-1)/p bytes, the minimum, of which 2S(N-1)/(NL) leave the machine
//   hierarchical_tree  2 + at most 2 floor(log2 N) rounds (if L > 16, 2(L-1) instead of the first 2);
//                      2S(L-1)/L bytes inside, and at most 2S/L across
// Order of addition: direct inside adds in rank order. If the ranks of each machine are consecutive, both
// algorithms add in the order of their stage across, with machines in place of ranks: cyclic for the ring, and
// rank order for the tree over an even number of machines. A ring inside starts at another member for each owner,
// so the plan promises no order. All ranks obtain the same bits in any case.
//
// Source: the three stages are those of BlueConnect (M. Cho et al., "BlueConnect: decomposing all-reduce for deep
// learning on heterogeneous network hierarchy", MLSys 2019) and of Horovod's hierarchical all-reduce. The rule for
// machines of different sizes is our own.
#include "algorithms/hierarchical.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "algorithms/generators.h"
#include "base/assert.h"

namespace tutti {
namespace {

// Largest machine for which hierarchical_tree uses the direct stages inside. hierarchical_tree is for many
// machines, and for messages that take a time in proportion to the number of rounds. Machines of 16 ranks are the
// largest that are built today with all GPUs at the same distance from each other. There, one round of 15 messages
// is faster than 15 rounds of one message. On larger machines, a rank's connections and the operands of its steps
// would grow with the machine, while a ring needs one neighbour.
constexpr std::uint32_t kMaxDirectInTree = 16;

// Returns the chunks of `space` that the plan of the stage across reads (or stores), in the order of its steps.
// `chunks` is the number of chunks of that space.
std::vector<std::uint32_t> chunks_in_order(const RankPlan& plan, std::uint32_t chunks, Space space,
                                           Slice Step::*slice) {
  std::vector<std::pair<std::size_t, std::uint32_t>> found;  // step, chunk
  for (const Channel& channel : plan.channels) {
    for (std::size_t s = 0; s < channel.steps.size(); ++s) {
      const Slice& each = channel.steps[s].*slice;
      if (each.space == space) found.emplace_back(s, each.chunk);
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::uint32_t> in_order;
  std::vector<bool> seen(chunks, false);
  for (const auto& [step, chunk] : found) {
    if (!seen[chunk]) in_order.push_back(chunk);
    seen[chunk] = true;
  }
  return in_order;
}

// The data that all ranks' builders share.
struct Hierarchy {
  Hierarchy(const Collective& collective, const HierarchyStages& chosen)
      : machines(collective),
        stages(chosen),
        across(chosen.across({.kind = CollectiveKind::kAllReduce, .ranks = machines.count()})),
        chunks(across.shape.chunks * machines.rails()) {
    TUTTI_ASSERT(across.shape.scratch_chunks == 0 || across.shape.scratch_chunks == across.shape.chunks,
                 "scratch of a stage across has the lengths of its chunks");
    if (machines.rails() > stages.most_direct) stages.inside = Inside::kRing;
  }

  bool has_inside() const { return machines.rails() > 1; }
  bool has_across() const { return machines.count() > 1; }
  std::uint32_t chunk_of(std::uint32_t rail, std::uint32_t rail_chunk) const {
    return rail * across.shape.chunks + rail_chunk;
  }
  // Chunks of the stage across are assigned to strands round-robin: chunk modulo strands.
  std::uint32_t strands() const { return has_across() && stages.strand_for_each_chunk ? across.shape.chunks : 1; }

  // Returns the chunks of every member of a machine. For each rail of a member, they are in the order of
  // `rail_chunks`.
  Owned owned(std::uint32_t machine, const std::vector<std::uint32_t>& rail_chunks) const {
    Owned all;
    for (std::uint32_t member = 0; member < machines.size(machine); ++member) {
      std::vector<std::uint32_t>& own = all.emplace_back();
      for (const std::uint32_t rail : machines.rails_of(machines.rank_at(machine, member))) {
        for (const std::uint32_t rail_chunk : rail_chunks) own.push_back(chunk_of(rail, rail_chunk));
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
};

Order order_of(const Hierarchy& hierarchy) {
  if (hierarchy.has_inside() && hierarchy.stages.inside == Inside::kRing) {
    return hierarchy.has_across() ? Order::kAny : Order::kCyclic;
  }
  if (!hierarchy.has_across()) return Order::kByRank;
  return hierarchy.machines.side_by_side() ? hierarchy.across.shape.order : Order::kAny;
}

PlanShape Hierarchy::shape(const Collective& collective) const {
  const PlanShape& outer = across.shape;
  const std::uint32_t partial_sums = has_inside() && has_across() ? chunks : 0;
  return {.collective = collective,
          .algorithm = stages.name,
          .chunks = chunks,
          .scratch_chunks = outer.scratch_chunks > 0 ? 2 * chunks : partial_sums,
          .slots = std::max(outer.slots, has_inside() ? inside_slots(stages.inside) : std::uint16_t{1}),
          .lanes = std::max(outer.lanes, static_cast<std::uint16_t>(has_inside() ? 2 * strands() : 1)),
          .windows_in_place = outer.windows_in_place || !has_across(),
          .order = order_of(*this)};
}

// Appends the stage across for each rail of the rank, one rail after the other. If the rank is alone on its
// machine, the machine's sum is the rank's input.
void Hierarchy::append_across(Composer& composer, const RankPlan& stage, std::uint32_t rank) const {
  const bool alone = machines.size(machines.machine_of(rank)) == 1;
  for (const std::uint32_t rail : machines.rails_of(rank)) {
    const auto owner = [&](std::uint32_t machine) { return machines.owner(rail, machine); };
    const auto place = [&](const Slice& slice) -> Slice {
      const std::uint32_t chunk = chunk_of(rail, slice.chunk);
      switch (slice.space) {
        case Space::kInput: return {.space = alone ? Space::kInput : Space::kScratch, .chunk = chunk};
        // Scratch of the stage has the same length as the chunk with its number.
        case Space::kScratch: return {.space = Space::kScratch, .chunk = chunks + chunk};
        case Space::kOutput:
        case Space::kNone: break;
      }
      return {.space = slice.space, .chunk = chunk};
    };
    const auto first_channel = static_cast<std::uint16_t>(alone ? 0 : strands());
    composer.append(stage, {.rank_of = owner, .place = place, .first_channel = first_channel, .completes = true});
  }
}

RankPlan Hierarchy::build(std::uint32_t rank) const {
  const std::uint32_t machine = machines.machine_of(rank);
  const std::uint32_t member = machines.member_of(rank);
  const RankPlan outer = across.build(across.shape, machine);
  Composer composer;
  if (machines.size(machine) == 1) {
    append_across(composer, outer, rank);
    return std::move(composer).build();
  }
  const Space sums = has_across() ? Space::kScratch : Space::kOutput;
  const auto at_sums = [&](const Slice& slice) -> Slice {
    return {.space = slice.space == Space::kOutput ? sums : slice.space, .chunk = slice.chunk};
  };
  const auto neighbour = [&](std::uint32_t of_machine) { return machines.rank_at(machine, of_machine); };
  const auto at_home = [](const Slice& slice) { return slice; };
  const std::uint32_t rail_chunks = across.shape.chunks;
  const auto of_strand = [&](std::vector<std::uint32_t> in_order, std::uint32_t strand) {
    std::erase_if(in_order, [&](std::uint32_t rail_chunk) { return rail_chunk % strands() != strand; });
    return owned(machine, in_order);
  };
  // The lanes of the stages inside start at 0, as those of the stage across do. They do not conflict, because the
  // stages inside and the stage across never connect the same two ranks.
  const std::vector<std::uint32_t> read = chunks_in_order(outer, rail_chunks, Space::kInput, &Step::source);
  for (std::uint32_t strand = 0; strand < strands(); ++strand) {
    composer.append(inside_reduce_scatter(stages.inside, member, of_strand(read, strand)),
                    {.rank_of = neighbour,
                     .place = at_sums,
                     .first_channel = static_cast<std::uint16_t>(strand),
                     .first_lane = static_cast<std::uint16_t>(strand),
                     .completes = !has_across()});
  }
  if (has_across()) append_across(composer, outer, rank);
  const std::vector<std::uint32_t> stored = chunks_in_order(outer, rail_chunks, Space::kOutput, &Step::sink);
  const std::size_t first_gather = has_across() ? strands() + outer.channels.size() : 0;
  for (std::uint32_t strand = 0; strand < strands(); ++strand) {
    composer.append(inside_all_gather(stages.inside, member, of_strand(stored, strand)),
                    {.rank_of = neighbour,
                     .place = at_home,
                     .first_channel = static_cast<std::uint16_t>(first_gather + strand),
                     .first_lane = static_cast<std::uint16_t>(strands() + strand)});
  }
  return std::move(composer).build();
}

}  // namespace

namespace {

// Returns the size of the machines if all of them have the same size, their ranks are consecutive, and their
// numbers ascend. Otherwise returns 0. It reads the number of each rank only once.
std::uint32_t equal_size(const Collective& collective) {
  const std::vector<std::uint32_t>& nodes = collective.nodes;
  if (nodes.empty()) return collective.ranks;
  const auto size = static_cast<std::uint32_t>(
      std::find_if(nodes.begin(), nodes.end(), [&](std::uint32_t node) { return node != nodes[0]; }) - nodes.begin());
  if (nodes.size() % size != 0) return 0;
  for (std::size_t rank = 1; rank < nodes.size(); ++rank) {
    const bool starts = rank % size == 0;
    if (starts ? nodes[rank] <= nodes[rank - 1] : nodes[rank] != nodes[rank - 1]) return 0;
  }
  return size;
}

}  // namespace

Machines::Machines(const Collective& collective) : equal_size_(equal_size(collective)) {
  if (equal_size_ == 0) {
    make_tables(collective);
  } else {
    count_ = collective.ranks / equal_size_;
    rails_ = equal_size_;
  }
}

void Machines::make_tables(const Collective& collective) {
  std::unordered_map<std::uint32_t, std::uint32_t> index;  // machine's number -> index into teams_
  for (std::uint32_t rank = 0; rank < collective.ranks; ++rank) {
    const auto [place, added] = index.try_emplace(collective.nodes[rank], static_cast<std::uint32_t>(teams_.size()));
    if (added) teams_.emplace_back();
    std::vector<std::uint32_t>& team = teams_[place->second];
    side_by_side_ = side_by_side_ && (team.empty() || team.back() + 1 == rank);
    machine_.push_back(place->second);
    member_.push_back(static_cast<std::uint32_t>(team.size()));
    team.push_back(rank);
    rails_ = std::max(rails_, static_cast<std::uint32_t>(team.size()));
  }
  count_ = static_cast<std::uint32_t>(teams_.size());
}

std::uint32_t Machines::size(std::uint32_t machine) const {
  return equal_size_ > 0 ? equal_size_ : static_cast<std::uint32_t>(teams_[machine].size());
}

std::uint32_t Machines::machine_of(std::uint32_t rank) const {
  return equal_size_ > 0 ? rank / equal_size_ : machine_[rank];
}

std::uint32_t Machines::member_of(std::uint32_t rank) const {
  return equal_size_ > 0 ? rank % equal_size_ : member_[rank];
}

std::uint32_t Machines::rank_at(std::uint32_t machine, std::uint32_t member) const {
  return equal_size_ > 0 ? machine * equal_size_ + member : teams_[machine][member];
}

std::vector<std::uint32_t> Machines::rails_of(std::uint32_t rank) const {
  std::vector<std::uint32_t> owned;
  const std::uint32_t members = size(machine_of(rank));
  for (std::uint32_t rail = member_of(rank); rail < rails_; rail += members) owned.push_back(rail);
  return owned;
}

Generator composed_all_reduce(const Collective& collective, const HierarchyStages& stages) {
  TUTTI_ASSERT(collective.kind == CollectiveKind::kAllReduce || collective.kind == CollectiveKind::kBarrier);
  // Shared and immutable, because generators are copied freely, and the tables of this one may grow with the
  // number of ranks.
  const auto hierarchy = std::make_shared<const Hierarchy>(collective, stages);
  return {.shape = hierarchy->shape(collective),
          .build = [hierarchy](const PlanShape&, std::uint32_t rank) { return hierarchy->build(rank); }};
}

Generator hierarchical_all_reduce(const Collective& collective) {
  return composed_all_reduce(collective, {.name = Algorithm::kHierarchical, .across = ring_all_reduce});
}

Generator hierarchical_tree_all_reduce(const Collective& collective) {
  return composed_all_reduce(collective, {.name = Algorithm::kHierarchicalTree,
                                          .most_direct = kMaxDirectInTree,
                                          .across = double_tree_all_reduce,
                                          .strand_for_each_chunk = true});
}

}  // namespace tutti

// Hierarchical all-reduce: reduce_scatter(inside) >> all_reduce(across, one rail per local rank) >>
// all_gather(inside). "Inside" is within one machine, "across" is between machines, and >> means that the next
// stage uses the results of the previous one.
//
// The network between machines is usually slower than the links inside a machine, and each rank may have a network port
// of its own. So the message is divided into *rails*, one for each rank of the largest machine. On every machine each
// rail has an owner. First, the values that the ranks of a machine have for a rail are added at the rail's owner on
// that machine (reduce-scatter). Then the owners of one rail, one on each machine, all-reduce it among themselves.
// Finally, each owner sends the result of its rails to the other ranks of its machine (all-gather). So each part of the
// message is exchanged over the network by only one rank of each machine, instead of by all its ranks, and the network
// ports of all ranks are in use at the same time.
//
// On a machine of L ranks, with indices 0 .. L-1 in rank order, rail g belongs to the rank with index g modulo L. If
// machines differ in size, some ranks of smaller machines own several rails and process them one after the other. There
// are as many rails as the *largest* machine has ranks, so that all ranks of all machines take part in the additions
// and use their ports. Each rail is divided into as many chunks as the plan of the all-reduce across requires
// (PlanShape::chunks). The channels of a rank:
//   the first one    reduce-scatter inside (algorithms/inside.h): in[c] of all, stored as scratch[c] at c's owner
//   the next ones    the all-reduce across, with scratch[c] as its input: stores out[c]
//   the last one     all-gather inside: out[c] from c's owner, stored as out[c] by the others
// The reduce-scatter inside processes the chunks in the order in which the stage across reads them, and the all-gather
// inside in the order in which the stage across stores them. Stages wait for each other chunk by chunk, and overlap
// tile by tile (algorithms/compose.h). So the time of a long message is about that of the slowest stage, and not the
// sum over the stages. If the stage across uses trees, chunk t of every rail belongs to *strand* t, and each strand has
// a first and a last channel of its own. This is because a machine near the root of one tree processes each tile of
// that tree late, but is a leaf of the other tree. In a common channel, the early tiles of the other tree would wait
// for the late ones.
//
// If all ranks are on one machine, there are only the stages inside, in one channel, and the reduce-scatter
// completes the sums. If every machine has one rank, there is only the stage across, on one rail. If only some
// machines have one rank, these machines have no stages inside.
//
// hierarchical: direct inside (a ring if a machine has more ranks than a step can have operands), and a ring
// across.
//
// hierarchical_tree: direct inside if no machine has more than 16 ranks (otherwise a ring), and the double binary
// tree across. Suited for many machines.
//
// For N machines of L ranks (p = N L) and a message of S bytes, the number of rounds (messages one after the
// other) and the bytes sent per rank are:
//   hierarchical       2 + 2(N-1) rounds; 2S(p-1)/p bytes, the minimum, of which 2S(N-1)/(NL) leave the machine
//   hierarchical_tree  2 + at most 2 floor(log2 N) rounds (if L > 16, 2(L-1) instead of the first 2);
//                      2S(L-1)/L bytes inside, and at most 2S/L across
// Order of addition: direct inside adds in rank order. If the ranks of each machine are consecutive, both algorithms
// then add in the order of their stage across, with machines in place of ranks: cyclic for the ring and for the tree
// over an odd number of machines, and rank order for the tree over an even number. A ring inside starts its additions
// at a different rank for each owner, so the plan then promises no order, unless there is only one machine (cyclic).
// All ranks obtain the same bits in any case.
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

// If a machine has more ranks than this, hierarchical_tree uses rings instead of the direct stages inside.
// hierarchical_tree is for many machines, and for messages that take mostly the number of rounds times the latency.
// In machines with up to 16 GPUs, usually all GPUs are at the same distance from each other. There, one round of 15
// messages is faster than 15 rounds of one message. On larger machines, direct stages would need more connections
// per rank and more operands per step, while a ring needs only one connection in each direction.
constexpr std::uint32_t kMaxDirectInTree = 16;

// Returns the chunks of `space` that `plan`, the plan of the stage across, reads (if `slice` is &Step::source) or
// stores to (if `slice` is &Step::sink). Each chunk occurs once, and the chunks are in the order of the steps. `chunks`
// is the number of chunks of `space`.
std::vector<std::uint32_t> chunks_in_order(const RankPlan& plan, std::uint32_t chunks, Space space,
                                           Slice Step::*slice) {
  std::vector<std::pair<std::size_t, std::uint32_t>> found;  // pairs of (step, chunk)
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

// The data of a hierarchical plan that are the same for all ranks. build() builds the plan of one rank.
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
  // Number of strands. Chunk c of the stage across belongs to strand c % strands().
  std::uint32_t strands() const { return has_across() && stages.strand_for_each_chunk ? across.shape.chunks : 1; }

  // Returns the chunks of the whole plan that each member of a machine owns. Of each rail that a member owns,
  // these are the chunks with the numbers `rail_chunks` within the rail, in this order.
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

// Appends the stage across for each rail that the rank owns, one rail after the other, to the same channels. The
// stage reads the machine's sum from scratch. If the rank is alone on its machine, the stage reads the rank's
// input instead.
void Hierarchy::append_across(Composer& composer, const RankPlan& stage, std::uint32_t rank) const {
  const bool alone = machines.size(machines.machine_of(rank)) == 1;
  for (const std::uint32_t rail : machines.rails_of(rank)) {
    const auto owner = [&](std::uint32_t machine) { return machines.owner(rail, machine); };
    const auto place = [&](const Slice& slice) -> Slice {
      const std::uint32_t chunk = chunk_of(rail, slice.chunk);
      switch (slice.space) {
        case Space::kInput: return {.space = alone ? Space::kInput : Space::kScratch, .chunk = chunk};
        // The scratch chunk c of the stage has the length of chunk c of the stage's message. In the whole plan it comes
        // after the `chunks` scratch chunks that hold the machine's sums.
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
  const std::vector<std::uint32_t> read = chunks_in_order(outer, rail_chunks, Space::kInput, &Step::source);
  // The stages inside use lanes from 0 on, and so does the stage across. The lanes do not conflict, because the
  // stages inside connect ranks of one machine, and the stage across connects ranks of different machines.
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

// If all machines have the same number of ranks, the ranks of each machine are consecutive, and the machine
// numbers ascend with the ranks, returns that number of ranks. Otherwise returns 0. Takes time proportional to the
// number of ranks.
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
  std::unordered_map<std::uint32_t, std::uint32_t> index;  // machine's number in Collective::nodes -> index into teams_
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
  // All copies of the generator share one immutable object, because generators are copied often, and the tables in
  // the object may have entries for every rank.
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

// Composer: builds a plan from the plans of stages that run on subsets of the ranks, for example
// `reduce_scatter(inside) >> all_reduce(across) >> all_gather(inside)`.
//
// A stage is a RankPlan of any algorithm, in the form with one chunk per message (Messages::kOneChunk). It runs on a
// *team*, a subset of the ranks. In the stage's plan, the ranks of the team (its *members*) are numbered from 0, and
// chunks, lanes and channels are numbered from 0, too. A Composer appends the stages of one rank, one after the other,
// to one RankPlan. While it copies a stage, it replaces member numbers by ranks, and the stage's slices, lanes and
// channels by those of the whole plan (see Embedding).
//
// Stages in the same channel run one after the other. Stages in different channels overlap: for example, while one
// tile is reduced between machines, the next tile is reduced inside each machine. Stages in different channels
// pass data to each other through output and scratch memory, and the Composer adds the waits (After) that this
// requires:
// - The first step of a channel that reads a slice waits for the last step of another channel that stores to it in the
//   same tile.
// - The first step that stores to a slice of scratch waits until other channels have read the slice's value of the
//   previous tile, because every tile uses the same scratch.
//
// Stages are appended in the order in which data passes from one to the next. So in the same tile, a stage waits only
// for stages that were appended before it, and the waits cannot form a cycle. In an in-place call, an input is always
// read before the output with the same memory is written, because the result that is written depends on the value that
// was read. Composed plans do not rely on this reasoning, because the verifier proves them in the same way as other
// plans.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/plan.h"

namespace tutti {

// How a stage is embedded in the whole plan.
struct Embedding {
  // Returns the rank of a member of the stage's team.
  std::function<std::uint32_t(std::uint32_t member)> rank_of;
  // Returns the slice of the whole plan that replaces a slice of the stage. Two stages must not use the same slice
  // of output or scratch, except to pass data from one to the other.
  std::function<Slice(const Slice& of_stage)> place;
  std::uint16_t first_channel = 0;
  std::uint16_t first_lane = 0;
  // True: complete sums of the stage are sums over all ranks, so Step::completes is copied. False: it becomes 0.
  bool completes = false;
};

// Builds one rank's plan from stages. Not thread-safe.
class Composer {
 public:
  // Appends this rank's part of a stage. Channel c of the stage is appended to channel first_channel + c of the
  // plan, after the steps that are already there. If stages share a connection, both ranks of that connection must
  // append these stages in the same order.
  void append(const RankPlan& stage, const Embedding& embedding);

  // Adds the waits and returns the plan. Every slice of output or scratch that the plan reads or stores to must be
  // stored to by exactly one channel (otherwise: assertion failure).
  RankPlan build() &&;

 private:
  std::vector<ChannelBuilder> channels_;
};

}  // namespace tutti

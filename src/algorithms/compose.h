// Composer: builds a plan from the plans of stages that run on subsets of the ranks, for example
// `reduce_scatter(inside) >> all_reduce(across) >> all_gather(inside)`.
//
// A stage is a rank plan of any algorithm. It runs on the members of a team, which are numbered from 0, and has
// chunks of its own. A Composer appends the stages of one rank, one after the other, to one rank plan. It converts
// members to ranks, the stage's slices to slices of the whole plan, and lanes and channels to those that the stage
// may use.
//
// Stages in the same channel run one after the other. Stages in channels of their own overlap tile by tile: for
// example, while one tile is reduced between machines, the next tile is reduced inside each machine. Such stages
// pass data to each other through memory, and the Composer adds the waits that this requires:
// - A step that reads data that another channel stores waits for that store in the same tile.
// - A step that stores to scratch waits until other channels have read the old data in the previous tile, because
//   every tile uses the same scratch.
//
// A wait never refers to a later stage of the same tile, so the waits cannot form a cycle. In an in-place call, an
// input is always read before the output in the same memory is written, because the result depends on every read
// of that input. Composed plans do not rely on this reasoning: they are verified like all others.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/plan.h"

namespace tutti {

// The position of a stage in the whole plan.
struct Embedding {
  // The team: member -> rank.
  std::function<std::uint32_t(std::uint32_t member)> rank_of;
  // Maps a slice of the stage to a slice of the whole plan. Two stages must not use the same slice, except to pass
  // data.
  std::function<Slice(const Slice& of_stage)> place;
  std::uint16_t first_channel = 0;
  std::uint16_t first_lane = 0;
  bool completes = false;  // the stage's complete sums are complete sums of the whole plan
};

// Builds one rank's plan. Not thread-safe.
class Composer {
 public:
  // Appends one member's part of a stage after the steps that its channels already have. If stages share a
  // connection, all ranks must append them in the same order.
  void append(const RankPlan& stage, const Embedding& embedding);

  // Requires that every slice is stored to by at most one channel.
  RankPlan build() &&;

 private:
  std::vector<ChannelBuilder> channels_;
};

}  // namespace tutti

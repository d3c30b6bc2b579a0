// Plans made of plans: stages over teams of ranks, `reduce_scatter(inside) >> all_reduce(across) >>
// all_gather(inside)`.
//
// A stage is any algorithm's rank plan, over the members of a team, numbered from 0 on, with chunks of its own. A
// Composer embeds the stages of one rank, one after the other, into one rank plan: it turns members into ranks, slices
// into slices of the whole plan, and lanes and channels into those that the stage may use.
//
// Stages that share a channel run one after the other. Stages in channels of their own overlap, tile by tile: while one
// tile goes across, the next one is summed up inside. What such stages hand to each other stands in memory, and the
// Composer adds the order that this needs:
//   a step that reads what another channel stores waits for that store in the same tile;
//   a step that stores to scratch, which every tile uses again, waits until other channels have read it in the tile
//   before.
// No wait leads back to an earlier stage of the same tile, so no cycle comes of them. That inputs which are the same
// memory as outputs, in place, have been read before they are overwritten follows from the values: a result depends on
// every read of what it replaces. Nothing of this is taken on trust: composed plans are proved like all others.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/plan.h"

namespace tutti {

// Where a stage stands in the whole plan.
struct Embedding {
  std::function<std::uint32_t(std::uint32_t member)> rank_of;  // the team, an ordered set of ranks
  std::function<Slice(const Slice& of_stage)> place;           // of no two stages the same, but for what is handed on
  std::uint16_t first_channel = 0;
  std::uint16_t first_lane = 0;
  bool completes = false;  // the stage's complete sums are complete sums of the whole plan
};

// Builds one rank's plan. By one thread.
class Composer {
 public:
  // Appends a member's share of a stage behind what its channels hold already. Ranks must append stages that share a
  // connection in the same order.
  void append(const RankPlan& stage, const Embedding& embedding);

  // Every place must be stored to by one channel only.
  RankPlan build() &&;

 private:
  std::vector<ChannelBuilder> channels_;
};

}  // namespace tutti

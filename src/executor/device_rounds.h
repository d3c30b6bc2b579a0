// How many launches a call takes where kernels must not wait: where several processes share a GPU, a kernel may keep
// the one that it waits for from running. There every launch has Call::patience_ns 0, so that a block stops at the
// first message or credit that is not there, and between launches all ranks meet (streams wait, not kernels). The first
// launch begins the call, the others resume; what lies between two meetings is a round.
//
// All ranks must launch equally often without asking each other, so the number is computed: plans are run here by
// counts of messages and credits alone, with the least that a launch can see, namely what was posted before the meeting
// in front of it. A launch may see more, and that never makes the number too small: whether a step can run depends on
// how far other channels have come and on nothing else, and never turns from yes to no as they come farther (a Kahn
// network: whoever gets its input earlier is not behind anywhere later). So by induction over the rounds every channel
// is at least where it is here.
//
// With the protocol simple only: a step of LL or LL128 waits for data after its block may stop.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti {

// What keeps a channel whose last step has run.
enum class Draining : std::uint8_t {
  kNothing,    // no rank has windows
  kPublished,  // peers may read in its memory what it has published: it ends when they have
};

// One plan's rounds, for any call. Built once for a plan and kept by the caller: it builds all ranks' plans. A value.
class DeviceRounds {
 public:
  static constexpr std::uint32_t kMaxTiles = 64;         // that are simulated
  static constexpr std::uint64_t kMaxSteps = 4'000'000;  // of all ranks and tiles together, past the first tile

  // `slots` of every connection, at least shape.slots. The plan is one that verifies: it ends (asserted).
  DeviceRounds(const Generator& generator, std::uint32_t slots, std::uint32_t max_tiles = kMaxTiles);

  // Launches by which the call has ended on all ranks, each with a meeting in front of it: the first one's shows that
  // the call before has ended everywhere. `tiles_per_slice` is that of the slice with the most, the first: slices do
  // not wait for each other, and more tiles never take fewer rounds.
  //
  // Past the tiles that were simulated this is an upper bound: when `a` tiles have ended everywhere all credits are
  // back, so further `b` tiles take no more than they do from the start: rounds(a + b) <= rounds(a) + rounds(b).
  std::uint64_t of(std::uint64_t tiles_per_slice, Draining draining) const;

  std::uint64_t simulated_tiles() const { return ended_.size(); }

 private:
  std::vector<std::uint64_t> ended_;    // by tile: the round in which the last channel has run its last step of it
  std::vector<std::uint64_t> drained_;  // by tile: the round in which all published messages up to it are seen as read
};

inline std::uint64_t device_rounds(const Generator& generator, std::uint64_t tiles_per_slice, std::uint32_t slots,
                                   Draining draining) {
  return DeviceRounds(generator, slots).of(tiles_per_slice, draining);
}

}  // namespace tutti

// DeviceRounds: the number of kernel launches that a call needs if kernels must not wait for each other. That is the
// case if several processes share a GPU, or if other communicators of the process have taken too many blocks of it,
// because a kernel that waits could then keep the kernel that it waits for from running. Every launch has
// Call::stop_after_ns 0, so that a block stops at the first message or credit that is missing. Before every launch,
// also the first one, all ranks meet at a stream barrier, in which streams wait, not kernels. The first launch begins
// the call, and the others resume it. The interval between two barriers is a round.
//
// All ranks must launch equally often without communicating about it, so the number is computed in advance. The
// plans are simulated with counts of messages and credits only. The simulation assumes that a launch sees only the
// messages and credits that were posted before the barrier in front of it. A real launch may see more, but then the
// computed number is still large enough: whether a step can run depends only on the progress of other channels, and
// more progress never makes a step that could run unable to run. (This is a Kahn process network: earlier input
// never delays any output.) By induction over the rounds, every real channel is at least as far as the simulated
// one.
//
// Valid for the simple protocol only, because a step of LL or LL128 waits for data at a point where its block may
// not stop any more.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti {

// The rounds of one plan, for any call. Construction builds the plans of all ranks, so the caller should keep this
// object. A value type.
class DeviceRounds {
 public:
  // What a channel still waits for after its last step.
  enum class Draining : std::uint8_t {
    kNothing,    // no rank has windows, so there is nothing to wait for
    kPublished,  // peers read published messages in this rank's memory; the channel ends when they have done so
  };
  static constexpr std::uint32_t kMaxTiles = 64;  // number of tiles that are simulated at most
  // Limit of simulated steps of all ranks and tiles together. The first tile is simulated in any case.
  static constexpr std::uint64_t kMaxSteps = 4'000'000;

  // `slots`: slots of every connection, at least shape.slots. The plan must have been verified, so that the
  // simulation ends (asserted).
  DeviceRounds(const Generator& generator, std::uint32_t slots, std::uint32_t max_tiles = kMaxTiles);

  // Returns the number of launches after which the call has ended on all ranks. Each launch has a barrier in front
  // of it; the first barrier shows that the previous call has ended on all ranks. `tiles_per_slice`: the number of
  // tiles of the first slice, which has the most. This suffices because slices do not wait for each other, and more
  // tiles never need fewer rounds.
  //
  // For more tiles than were simulated the result is an upper bound: when `a` tiles have ended on all ranks, all
  // credits have been returned, so `b` further tiles take no more rounds than they take from the start: rounds(a +
  // b) <= rounds(a) + rounds(b).
  std::uint64_t of(std::uint64_t tiles_per_slice, Draining draining) const;

  std::uint64_t simulated_tiles() const { return ended_.size(); }

 private:
  // Indexed by tile: the round in which the last channel has run its last step of the tile.
  std::vector<std::uint64_t> ended_;
  // Indexed by tile: the round in which all senders have seen that their published messages up to this tile were
  // read.
  std::vector<std::uint64_t> drained_;
};

inline std::uint64_t device_rounds(const Generator& generator, std::uint64_t tiles_per_slice, std::uint32_t slots,
                                   DeviceRounds::Draining draining) {
  return DeviceRounds(generator, slots).of(tiles_per_slice, draining);
}

}  // namespace tutti

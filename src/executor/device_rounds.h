// DeviceRounds: the number of kernel launches that a call needs if kernels must not wait for each other. Kernels
// must not wait if several processes share a GPU, or if other communicators of the process have taken too many
// blocks of the GPU: a kernel that waits occupies the GPU, and could prevent the kernel for which it waits from
// running. Every launch has Call::stop_after_ns 0, so that a block stops at the first message, credit or step of
// another channel that is missing. Before every launch, the first one included, all ranks meet at a stream barrier.
// There the streams wait, and no kernel of the call runs. The first launch begins the call, and the others resume it.
// The interval between two barriers is a round.
//
// All ranks must launch equally often, and they do not communicate about that, so each rank computes the number in
// advance. It simulates the plans of all ranks, but only counts messages and credits. The simulation assumes that a
// launch sees only the messages and credits that were posted before the barrier in front of it. A real launch may
// see more, but then the computed number is still large enough: whether a step can run depends only on the progress
// of other channels, and more progress never makes a step that could run unable to run. (This is a Kahn process
// network: earlier input never delays any output.) By induction over the rounds, every real channel is at least as
// far as the simulated one.
//
// Valid for the simple protocol only. With LL and LL128, a step waits for data at a point at which its block can no
// longer stop and be resumed by the next launch.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti {

// The rounds of one plan, for calls of any length. The constructor simulates the plans of all ranks, which takes
// time, so the caller should keep this object. A value type.
class DeviceRounds {
 public:
  // The event for which a channel still waits after its last step.
  enum class Draining : std::uint8_t {
    kNothing,  // no rank has windows, so the channel ends after its last step
    // Peers read published messages in this rank's memory. The channel ends when they have read them.
    kPublished,
  };
  static constexpr std::uint32_t kMaxTiles = 64;  // maximum number of tiles that are simulated
  // Limit for the simulated steps of all ranks and tiles together. Fewer tiles are simulated if necessary, but at
  // least one.
  static constexpr std::uint64_t kMaxSteps = 4'000'000;

  // `slots`: the number of slots of every connection, at least shape.slots. The plan must have been verified, so
  // that the simulation ends (asserted).
  DeviceRounds(const Generator& generator, std::uint32_t slots, std::uint32_t max_tiles = kMaxTiles);

  // Returns the number of launches after which the call has ended on all ranks. Each launch has a barrier in front
  // of it; the first barrier ensures that the previous call has ended on all ranks. A call is run by several slices
  // (copies of the plan, see kernels/device/call.h). `tiles_per_slice` is the number of tiles of the first slice,
  // which has the most. That is sufficient because slices do not wait for each other, and more tiles never need
  // fewer rounds.
  //
  // For more tiles than were simulated the result is an upper bound: when `a` tiles have ended on all ranks, all
  // credits have been returned, so `b` further tiles take no more rounds than they take from the start: rounds(a +
  // b) <= rounds(a) + rounds(b).
  std::uint64_t of(std::uint64_t tiles_per_slice, Draining draining) const;

  std::uint64_t simulated_tiles() const { return ended_.size(); }

 private:
  // Indexed by tile: the round (counted from 1) in which the last channel of all ranks runs its last step of the
  // tile.
  std::vector<std::uint64_t> ended_;
  // Indexed by tile: the round in which the last sender sees that its published messages up to this tile were read.
  std::vector<std::uint64_t> drained_;
};

// DeviceRounds::of() for one use, without keeping the simulation.
inline std::uint64_t device_rounds(const Generator& generator, std::uint64_t tiles_per_slice, std::uint32_t slots,
                                   DeviceRounds::Draining draining) {
  return DeviceRounds(generator, slots).of(tiles_per_slice, draining);
}

}  // namespace tutti

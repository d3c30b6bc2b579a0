// The max-plus sweep: every step begins when its channel is free and its messages, waits and credits have arrived.
// A port serves the messages of one channel one after the other, and there is no other contention. So one pass
// over the programs, in any order that respects the dependencies, computes all times. Internal to this folder:
// simulate() runs it. Used by one thread.
//
// The sweep runs tile by tile. The times that one tile passes to the next are in `state()`: when channels and
// ports are free, when credits are back, and when marked steps ended. If all of them are later by the same amount
// than they were one tile (or a few tiles) before, this also holds for all further tiles, because a max-plus
// system ends in such a periodic regime. These tiles can then be skipped.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/costs.h"
#include "model/programs.h"
#include "tutti/result.h"

namespace tutti {

using Progress = std::function<void(double part)>;

class TileRunner {
 public:
  virtual ~TileRunner() = default;
  // Runs one tile of all threads. Errors: kInvalidPlan if the plan does not run to its end. `progress` may be
  // empty.
  virtual Status run_tile(const Progress& progress) = 0;
  // The times that the next tile depends on; kNever for a resource that has not been used yet. The caller may add
  // a constant to all of them to skip tiles.
  virtual std::vector<double>& state() = 0;
  // The time at which the last thread ended its last step.
  virtual double latest() const = 0;
};

// Creates a sweep for any plan. `slots` is the number of messages that a connection holds. All arguments must
// outlive it. Errors: kUnsupported for more than kMostTimes numbers.
Result<std::unique_ptr<TileRunner>> make_sweep(const Programs& programs, const Costs& costs, std::uint32_t slots);

// The number of times that a sweep must store. `classes` and `places` are as in Programs and Costs, all other
// numbers are per class.
struct SweepSize {
  std::uint64_t classes = 1;
  std::uint64_t places = 1;
  double threads = 0;
  double connections = 0;
  double marks = 0;
};
// Errors: kUnsupported for more than kMostTimes.
Status check_size(const SweepSize& size, std::uint32_t slots);

// Creates a sweep for rings: plans in which every rank has one channel that receives from one rank and sends to
// one. It gives the same times, but works in blocks of ranks and steps that stay in the processor's cache. Returns
// null if the plan is not a ring.
std::unique_ptr<TileRunner> make_ring_sweep(const Programs& programs, const Costs& costs, std::uint32_t slots);

struct TileCounts {
  std::uint64_t full = 0;  // number of tiles with chunks of `full_bytes`
  double full_bytes = 0;
  std::uint64_t last = 0;  // 0 or 1 more, with chunks of `last_bytes`
  double last_bytes = 0;
};

// Runs all tiles. Returns the time at which the last thread has finished, without the launch. `extrapolate`: skip
// tiles of a periodic regime. Errors: those of run_tile().
Result<double> run_tiles(TileRunner& runner, Costs& costs, const TileCounts& tiles, bool extrapolate,
                         const Progress& progress);

}  // namespace tutti

// The max-plus sweep: every step begins when its channel is free and its messages, the steps that it waits for, and
// its credits have arrived. A port serves the messages of one channel one after the other. Nothing else delays a
// message, so it does not matter in which order the steps of different ranks are computed. One pass over the
// programs, in any order that respects the dependencies, computes all times. Internal to this folder: simulate()
// runs it. Used by one thread.
//
// The sweep runs tile by tile. The times that one tile passes to the next are in `state()`: when channels and ports are
// free, when credits are back, and when marked steps ended. Assume that all of these times are later by the same amount
// than they were one tile (or a few tiles) before. Then this will also hold for all further tiles of the same length,
// because a tile depends only on these times, and an amount by which all of them are later makes all of its results
// later by this amount. So the remaining tiles can be skipped: the amount is added once for each of them. (A max-plus
// system ends in such a periodic regime.)
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/costs.h"
#include "model/programs.h"
#include "tutti/result.h"

namespace tutti {

// Called with the completed part, 0 .. 1. May be empty.
using Progress = std::function<void(double part)>;

class TileRunner {
 public:
  virtual ~TileRunner() = default;
  // Runs one tile of all threads of the plan (channels, see model/programs.h). Errors: kInvalidPlan if the plan
  // does not run to its end.
  virtual Status run_tile(const Progress& progress) = 0;
  // The times on which the next tile depends, in microseconds. kNever stands for a resource that has not been used
  // yet. The caller may add a constant to all of them to skip tiles.
  virtual std::vector<double>& state() = 0;
  // The latest time, in microseconds, at which a thread ended its last step so far.
  virtual double latest() const = 0;
};

// Creates a sweep for any plan. `slots` is the number of messages that a connection can hold. `programs` and
// `costs` must outlive the sweep. Errors: those of check_size().
Result<std::unique_ptr<TileRunner>> make_sweep(const Programs& programs, const Costs& costs, std::uint32_t slots);

// The size of a sweep, to predict how many times (doubles) it must store. `classes` is as in Programs, and `places`
// as in Costs. The other numbers are averages for one class.
struct SweepSize {
  std::uint64_t classes = 1;
  std::uint64_t places = 1;
  double threads = 0;
  double connections = 0;
  double marks = 0;
};
// Errors: kUnsupported if a sweep of this size would store more than kMostTimes times.
Status check_size(const SweepSize& size, std::uint32_t slots);

// Creates a sweep for rings: plans in which all ranks run one program, with one channel that receives from the rank
// before and sends to the next rank, one message of one chunk in each step (but the first step only sends, and the last
// one only receives). It gives the same times as make_sweep() but is faster, because it works in blocks of ranks and
// steps that stay in the processor's cache. Returns null if the plan is not such a ring, if connections have fewer than
// 2 slots, or if costs.places() is below kLeastPlaces (ring_sweep.cc), so that make_sweep() is fast enough.
std::unique_ptr<TileRunner> make_ring_sweep(const Programs& programs, const Costs& costs, std::uint32_t slots);

// The tiles of one copy of the plan. A length of a chunk is an average, so it need not be a whole number.
struct TileCounts {
  // number of tiles with chunks of `full_bytes` bytes, at least 1
  std::uint64_t full = 0;
  double full_bytes = 0;
  // 1 if a shorter tile with chunks of `last_bytes` bytes follows, otherwise 0
  std::uint64_t last = 0;
  double last_bytes = 0;
};

// Runs all tiles. Returns the time in microseconds at which the last thread has finished, without
// Parameters::launch_us. Sets the length of messages in `costs` for the tiles. If `extrapolate` is true, tiles of a
// periodic regime are skipped, as the comment at the top of this file describes. Errors: those of run_tile().
Result<double> run_tiles(TileRunner& runner, Costs& costs, const TileCounts& tiles, bool extrapolate,
                         const Progress& progress);

}  // namespace tutti

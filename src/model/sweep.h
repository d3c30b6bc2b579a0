// The max-plus sweep: every step begins when its channel, its messages, its waits and its credits are there, and ports
// serve the messages of one channel in turn. Nothing else gets in the way, so one pass over the programs in any order
// that respects them gives all times at once. Internal to this folder: simulate() runs it. One thread.
//
// Time runs tile by tile. What one tile leaves behind for the next is `state()`: when channels and ports are free, when
// credits are back, when marked steps ended. Where all of it lies later by the same time than one tile (or a few)
// before, all further tiles will (max-plus systems end in such a regime), and can be left out.
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
  // All threads, one tile. Errors: kInvalidPlan where the plan does not end. `progress` may be empty.
  virtual Status run_tile(const Progress& progress) = 0;
  // Times that the next tile depends on; kNever where something has not been used yet. Changed by shift().
  virtual std::vector<double>& state() = 0;
  // When the last thread ended its last step.
  virtual double latest() const = 0;
};

// For any plan. `slots`: messages that a connection holds. All outlive it. Errors: kUnsupported for more than
// kMostTimes.
Result<std::unique_ptr<TileRunner>> make_sweep(const Programs& programs, const Costs& costs, std::uint32_t slots);

// How many times a sweep holds; `classes` and `places` as in Programs and Costs, all others of one class.
struct SweepSize {
  std::uint64_t classes = 1;
  std::uint64_t places = 1;
  double threads = 0;
  double connections = 0;
  double marks = 0;
};
// Errors: kUnsupported for more than kMostTimes.
Status check_size(const SweepSize& size, std::uint32_t slots);

// For plans in which every rank has one channel that receives from one rank and sends to one: rings. The same times,
// in blocks of ranks and steps that stay in the processor's cache. Null where the plan is no such plan.
std::unique_ptr<TileRunner> make_ring_sweep(const Programs& programs, const Costs& costs, std::uint32_t slots);

struct TileCounts {
  std::uint64_t full = 0;  // tiles of `full_bytes` to a chunk
  double full_bytes = 0;
  std::uint64_t last = 0;  // 0 or 1 more, of `last_bytes`
  double last_bytes = 0;
};

// All tiles; returns when the last thread is done, the launch left out. `extrapolate`: leave out tiles of a regular
// regime. Errors as run_tile's.
Result<double> run_tiles(TileRunner& runner, Costs& costs, const TileCounts& tiles, bool extrapolate,
                         const Progress& progress);

}  // namespace tutti

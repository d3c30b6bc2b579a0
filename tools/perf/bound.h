// The machine's own bound of an all-reduce, measured: how fast its cores can do the least work that any all-reduce
// within one machine needs. docs/run.md explains how to read it.
//
// P buffers in shared memory; min(cores, P) threads, each pinned to its own core, each sum their share of all P buffers
// and store the result to all P (2 P bytes of loads and stores together for each byte of the message), between barriers
// on which they spin. Nothing is copied, nobody waits for a sleeping peer. With more ranks than cores each core must
// also be handed from rank to rank: that hand-over is measured too and added.
#pragma once

#include <cstdint>
#include <optional>

#include "tutti/types.h"

namespace tutti::tool {

// Cores that this process may use.
int usable_cores();

class BoundMeter {
 public:
  explicit BoundMeter(std::int32_t ranks);

  // Microseconds: the median of several repetitions, about 20 ms of work or a few passes. Nothing where the buffers do
  // not fit in half of the memory that is available now, or where there are more ranks than a kernel takes sources.
  // Starts threads and ends them; blocks the caller meanwhile.
  std::optional<double> measure_us(DataType type, ReduceOp op, std::uint64_t count);

 private:
  std::int32_t ranks_;
  int cores_;
  std::optional<double> hand_over_us_;  // measured once, when first needed
};

// Microseconds from a thread's sched_yield to the moment when another thread runs on the same core. Nothing where
// threads can't be pinned.
std::optional<double> measure_hand_over_us();

}  // namespace tutti::tool

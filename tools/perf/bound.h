// BoundMeter: measures the machine's own limit for an all-reduce, which is the time that its cores need for the
// minimal work of any all-reduce inside one machine. docs/run.md explains how to read the result.
//
// The measurement uses P buffers in shared memory, one for each rank. min(cores, P) threads, each pinned to a core of
// its own, each sum their share of all P buffers and store the result to all P buffers. These are 2 P bytes of loads
// and stores together for each byte of the message. Before and after each pass, the threads spin at a barrier. No data
// is copied elsewhere, and no thread waits for a sleeping peer. If there are more ranks than cores, each core must
// also switch between ranks; the time of such a switch (a hand-over) is measured separately and added.
#pragma once

#include <cstdint>
#include <optional>

#include "tutti/types.h"

namespace tutti::tool {

// The number of cores that this process may use.
int usable_cores();

// Measures the limit for a number of ranks. Used by one thread.
class BoundMeter {
 public:
  explicit BoundMeter(std::int32_t ranks);

  // Returns the limit in microseconds: the minimum of several repetitions, which take about 20 ms together, or a few
  // passes if a pass is slow. Returns nothing if the buffers need more than half of the memory that is available now,
  // or if there are more ranks than a reduction kernel has sources. Starts threads, and blocks until they have ended.
  std::optional<double> measure_us(DataType type, ReduceOp op, std::uint64_t count);

 private:
  std::int32_t ranks_;
  int cores_;
  std::optional<double> switch_us_;  // measured once, when it is first needed
};

// Microseconds from the sched_yield() of one thread to the moment when another thread runs on the same core. Returns
// nothing if threads cannot be pinned.
std::optional<double> measure_switch_us();

}  // namespace tutti::tool

// ReferenceMeter: measures a reference for an all-reduce inside one machine: the time in which the machine's cores add
// and store the same values if all buffers lie in memory that each of them can access. `tutti perf` prints it beside
// the measured times. It is not a bound: a collective can be faster, for example if its buffers are in a nearer cache,
// or if another program took a core during the measurement. docs/run.md explains how to read it.
//
// The measurement uses P buffers in shared memory, one for each of the P ranks. min(cores, P) threads, each pinned to a
// core of its own, each reduce their share of all P buffers and store the result to all P buffers. For each byte of the
// message, these are P bytes of loads and P bytes of stores. Before and after each pass over the message, the threads
// spin at a barrier. No data is copied elsewhere, and no thread sleeps. With one rank, one thread copies one buffer to
// another instead. If there are more ranks than cores, a real job must also switch each core between ranks; the time of
// these switches is computed from a separate measurement and added.
#pragma once

#include <cstdint>
#include <optional>

#include "tutti/types.h"

namespace tutti::tool {

// The number of logical CPUs in the affinity mask of the calling thread. The CPU limit of a cgroup is ignored.
int usable_cores();

// Measures references for one number of ranks. Used by one thread.
class ReferenceMeter {
 public:
  explicit ReferenceMeter(std::int32_t ranks);

  // Returns the reference for an all-reduce of `count` elements in microseconds: the minimum of several repetitions,
  // which together take about 20 ms, or longer if one pass over the message takes longer than kRepetitionUs
  // (reference.cc).
  // Returns nothing if the buffers need more than half of the memory that is available now or cannot be created, if
  // there are more ranks than a reduction kernel can have sources (kernels::kMaxSources), or if `count` is 0. Starts
  // threads, and blocks until they have ended.
  std::optional<double> measure_us(DataType type, ReduceOp op, std::uint64_t count);

 private:
  std::int32_t ranks_;
  int cores_;
  std::optional<double> switch_us_;  // result of measure_switch_us(); empty: not needed yet, or failed
};

// Measures the time of a switch between two threads of one core: the microseconds from the sched_yield() of one thread
// to the moment when the other thread runs. Returns nothing if threads cannot be pinned to a core.
std::optional<double> measure_switch_us();

}  // namespace tutti::tool

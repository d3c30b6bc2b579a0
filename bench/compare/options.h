// The command line of the drivers of libraries. It is the same for all of them. compare.py generates it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::compare {

// kTime: the time of a collective. kLate: the processor time of waiting ranks, while rank 0 enters a call `pause_ms`
// late. kIdle: the processor time of ranks that have made calls, during `pause_ms` without a call.
enum class Measure : std::uint8_t { kTime, kLate, kIdle };

struct Options {
  Measure measure = Measure::kTime;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<std::uint64_t> sizes{8};  // sizes to measure, in bytes
  int trials = 3;                       // trials of each size
  double target_ms = 100;               // target duration of each of the two loops of a trial
  double pause_ms = 2000;
  bool pinned = true;             // pin rank r to the allowed core number r modulo the number of allowed cores
  bool tutti_registered = false;  // only Tutti: use buffers from Communicator::allocate()
  // Only Tutti: use buffers from malloc(). For buffers of 64 KiB or more, it must be the malloc() of the shared heap.
  bool tutti_malloc = false;
  std::string gloo_algorithm = "ring";
  std::string control;  // path of the file that all ranks map for the barriers of the benchmark (Control::create())
  std::string results;  // path of the file to which rank 0 appends its results, one JSON object per line
  // `rank` is the number of this rank, and `ranks` is how many ranks there are. They are read from the environment, so
  // that they are known before the library starts: from COMPARE_RANK and COMPARE_RANKS, or from the variables of Open
  // MPI's or MPICH's mpirun; -1 if none is set.
  int rank = -1;
  int ranks = -1;
};

// Parses the command line, and reads `rank` and `ranks` from the environment. Errors: kInvalidArgument.
Result<Options> parse_options(int argc, const char* const* argv);

}  // namespace tutti::compare

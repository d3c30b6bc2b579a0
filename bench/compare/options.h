// A driver's command line, the same for every library. compare.py writes it; nobody else needs to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::compare {

// kTime: the times of a collective. kLate: what the ranks that wait use of their cores while rank 0 comes to a call
// `pause_ms` late. kIdle: what ranks use that have made a call and do nothing for `pause_ms`.
enum class Measure : std::uint8_t { kTime, kLate, kIdle };

struct Options {
  Measure measure = Measure::kTime;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<std::uint64_t> sizes{8};  // bytes
  int trials = 3;                       // of each size
  double target_ms = 100;               // what each of a trial's two loops aims at
  double pause_ms = 2000;
  bool pinned = true;             // rank r to the core r modulo cores
  bool tutti_registered = false;  // Tutti's driver: buffers from allocate()
  std::string gloo_algorithm = "ring";
  std::string control;  // the control plane's file
  std::string results;  // rank 0 appends one JSON object a line
  // From the launcher's environment, before the library is started: COMPARE_RANK and COMPARE_RANKS, or what Open MPI's
  // or MPICH's mpirun says; -1 where none says it.
  int rank = -1;
  int ranks = -1;
};

// Errors: kInvalidArgument, with the text of what is wrong.
Result<Options> parse_options(int argc, const char* const* argv);

}  // namespace tutti::compare

// The second to fourth part of gpu_bench: all-reduce of several ranks on one GPU compared with the limit of the
// device, the cost of a step of a plan, and all-gather by kernels compared with copy engines.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/gpu/gpu.h"
#include "bench/gpu/kernels_part.h"
#include "bench/gpu/report.h"

namespace tutti::bench {

struct CallsOptions {
  std::vector<int> ranks;
  std::vector<std::size_t> sizes;  // bytes of each rank's vector, multiples of 4
  // bytes of the output of each of two ranks; multiples of 8
  std::vector<std::size_t> gather_sizes;
  Rounds rounds;
  std::vector<CopyRate> copies;  // KernelsResult::copies of the same run; not empty
  bool corrupt = false;          // true: change one byte of rank 0's output before each check, to test the check
};

struct CallsResult {
  std::vector<Section> sections;
  // number of outputs that differ from the correct result
  std::uint64_t wrong = 0;
};

// Runs the second to fourth part of gpu_bench. Errors: those of the driver and of the communicators.
Result<CallsResult> measure_calls(Gpu& gpu, const CallsOptions& options);

}  // namespace tutti::bench

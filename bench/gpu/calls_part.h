// The second to fourth part of gpu_bench: all-reduce of several ranks on one GPU beside what the device could do, what
// a step of a plan costs, and all-gather by kernels beside copy engines.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/gpu/gpu.h"
#include "bench/gpu/kernels_part.h"
#include "bench/gpu/report.h"

namespace tutti::bench {

struct CallsOptions {
  std::vector<int> ranks;
  std::vector<std::size_t> sizes;         // bytes of each rank's vector, multiples of 4
  std::vector<std::size_t> gather_sizes;  // bytes of each rank's output, multiples of 4 for each of two ranks
  Rounds rounds;
  std::vector<CopyRate> copies;  // measured in this run; not empty
  bool corrupt = false;          // as in KernelsOptions
};

struct CallsResult {
  std::vector<Section> sections;
  std::uint64_t wrong = 0;
};

Result<CallsResult> measure_calls(Gpu& gpu, const CallsOptions& options);

}  // namespace tutti::bench

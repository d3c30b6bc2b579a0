// The second and third part of gpu_bench: all-reduce of several ranks on one GPU beside what the device could do, and
// what a step of a plan costs.
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

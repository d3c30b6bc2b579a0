// The first part of gpu_bench: the library's kernels without connections, compared with the driver's own copy.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/gpu/gpu.h"
#include "bench/gpu/report.h"

namespace tutti::bench {

struct KernelsOptions {
  std::vector<std::size_t> sizes;  // bytes of each buffer, multiples of 16
  Rounds rounds;
  // If there are no kernels, only the driver's copy is measured, and a note in the report states this.
  bool smoke = false;
  // Changes one byte of each result before it is checked, to test that the check notices it.
  bool corrupt = false;
};

// The rate of a copy of one size: gigabytes read and written per second.
struct CopyRate {
  std::size_t bytes = 0;
  double gigabytes_per_s = 0;
};

struct KernelsResult {
  std::vector<Section> sections;
  std::vector<CopyRate> copies;  // rates of cuMemcpyDtoDAsync, one for each of KernelsOptions::sizes
  // number of destinations that differ from the correct result
  std::uint64_t wrong = 0;
};

Result<KernelsResult> measure_kernels(Gpu& gpu, const KernelsOptions& options);

}  // namespace tutti::bench

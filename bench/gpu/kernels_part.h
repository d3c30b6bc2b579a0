// The first part of gpu_bench: the library's kernels that need no connections (tutti_copy, tutti_reduce), compared with
// the driver's own copy.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/gpu/gpu.h"
#include "bench/gpu/report.h"

namespace tutti::bench {

struct KernelsOptions {
  std::vector<std::size_t> sizes;  // bytes of each buffer, multiples of 16
  Rounds rounds;
  // What measure_kernels() does if there are no kernels. True: measures only the driver's copy, and adds a note to the
  // report that states this. False: returns an error.
  bool smoke = false;
  // Changes one byte of the first destination before each check, to test that the check notices it.
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

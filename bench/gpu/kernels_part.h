// The first part of gpu_bench: the library's kernels without connections, beside the driver's own copy.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/gpu/gpu.h"
#include "bench/gpu/report.h"

namespace tutti::bench {

struct KernelsOptions {
  std::vector<std::size_t> sizes;  // bytes of each buffer, multiples of 16
  Rounds rounds;
  bool smoke = false;    // where there are no kernels, only the driver's copy is measured, and a note says so
  bool corrupt = false;  // one byte of each result, before it is checked: to show that the check notices
};

// What a copy reaches, by size: gigabytes read and written in a second.
struct CopyRate {
  std::size_t bytes = 0;
  double gigabytes_per_s = 0;
};

struct KernelsResult {
  std::vector<Section> sections;
  std::vector<CopyRate> copies;  // by the driver
  std::uint64_t wrong = 0;
};

Result<KernelsResult> measure_kernels(Gpu& gpu, const KernelsOptions& options);

}  // namespace tutti::bench

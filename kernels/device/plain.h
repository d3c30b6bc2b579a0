// Kernels without connections: a reduction and a copy that use the whole grid. Only benchmarks and tests launch them
// (for example bench/gpu, tests/device), to measure and check on a GPU the loops of reduce.h that the evaluator runs.
// reduce_plain() and copy() are the bodies of kernels, which every thread of the grid calls.
#pragma once

#include <cstdint>

#include "kernels/device/plain_work.h"
#include "kernels/device/port.h"
#include "kernels/device/reduce.h"

namespace tutti::device {

TUTTI_DEVICE Team whole_grid() {
  return {std::uint64_t{port::block()} * port::threads() + port::thread(),
          std::uint64_t{port::blocks()} * port::threads()};
}

TUTTI_DEVICE void reduce_plain(const PlainWork& work) {
  const Work all{work.sources, work.destinations, work.source_count, work.destination_count,
                 work.count,   work.how,          work.mode};
  if (only_sums(work.how)) return reduce_sums(all, whole_grid());
  reduce_any(all, whole_grid());
}

TUTTI_DEVICE void copy(const CopyWork& work) {
  const Team team = whole_grid();
  for (std::uint64_t i = team.thread; i < work.words; i += team.threads)
    port::store16(work.destination + i * kWordBytes, port::load16(work.source + i * kWordBytes));
}

}  // namespace tutti::device

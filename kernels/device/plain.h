// Kernels without connections: a reduction, a copy and a fill over a whole grid, for benchmarks and for calls of one
// rank. Bodies of kernels; every thread of the grid calls them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/call.h"
#include "kernels/device/port.h"
#include "kernels/device/reduce.h"

namespace tutti::device {

inline constexpr std::uint32_t kMaxPlainBuffers = 16;

// At most kMaxPlainBuffers sources and destinations.
struct PlainWork {
  const std::byte* sources[kMaxPlainBuffers];
  std::byte* destinations[kMaxPlainBuffers];
  std::uint32_t source_count;
  std::uint32_t destination_count;
  std::uint64_t count;  // elements
  Arithmetic how;
  Rung rung;
  std::uint32_t reserved;
};

// What a plain copy reaches: whole 16-byte words between buffers aligned to them.
struct CopyWork {
  const std::byte* source;
  std::byte* destination;
  std::uint64_t words;
};

struct FillWork {
  std::byte* destination;  // aligned to 16 bytes
  std::uint64_t words;     // of 16 bytes
  std::uint64_t pattern;   // twice in each
};

TUTTI_DEVICE Team whole_grid() {
  return {std::uint64_t{port::block()} * port::threads() + port::thread(),
          std::uint64_t{port::blocks()} * port::threads()};
}

TUTTI_DEVICE void reduce_plain(const PlainWork& work) {
  reduce({work.sources, work.destinations, work.source_count, work.destination_count, work.count, work.how, work.rung},
         whole_grid());
}

TUTTI_DEVICE void copy(const CopyWork& work) {
  const Team team = whole_grid();
  for (std::uint64_t i = team.thread; i < work.words; i += team.threads)
    port::store16(work.destination + i * kWordBytes, port::load16(work.source + i * kWordBytes));
}

TUTTI_DEVICE void fill(const FillWork& work) {
  const Team team = whole_grid();
  const auto low = static_cast<std::uint32_t>(work.pattern);
  const auto high = static_cast<std::uint32_t>(work.pattern >> 32);
  for (std::uint64_t i = team.thread; i < work.words; i += team.threads)
    port::store16(work.destination + i * kWordBytes, Word16{low, high, low, high});
}

}  // namespace tutti::device

// What the kernels without connections are given (plain.h): values that the host writes, with nothing of device code in
// them, so that any host program may launch those kernels by name.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/call.h"

namespace tutti::device {

// How a reduction goes: see the ladder in reduce.h.
enum class Rung : std::uint32_t { kSimple = 0, kFast = 1 };

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

}  // namespace tutti::device

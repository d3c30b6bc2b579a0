// The parameters of the kernels in plain.h: values that the host writes. This header contains no device code, so any
// host program can launch these kernels by name.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/call.h"

namespace tutti::device {

// Selects the implementation of a reduction: one element at a time (kSimple), or 16 bytes at a time (kFast). reduce.h
// explains both.
enum class ReduceMode : std::uint32_t { kSimple = 0, kFast = 1 };

inline constexpr std::uint32_t kMaxPlainBuffers = 16;

// A reduction of at most kMaxPlainBuffers sources into at most kMaxPlainBuffers destinations.
struct PlainWork {
  const std::byte* sources[kMaxPlainBuffers];
  std::byte* destinations[kMaxPlainBuffers];
  std::uint32_t source_count;
  std::uint32_t destination_count;
  std::uint64_t count;  // length of each source and of each destination, in elements
  Arithmetic how;
  ReduceMode mode;
  std::uint32_t reserved;
};

// A copy of whole 16-byte words between buffers that are aligned to 16 bytes.
struct CopyWork {
  const std::byte* source;
  std::byte* destination;
  std::uint64_t words;
};

}  // namespace tutti::device

// The 16-bit floating-point types in plain scalar code: their format, and the conversions to and from float32.
//
// Widening is exact. Narrowing rounds to the nearest value, and to an even last bit if two values are equally near. It
// overflows to infinity if the value rounds beyond the largest finite value, and it supports subnormals. Both
// directions keep the sign of a NaN and the payload bits that fit, and make the NaN quiet. The functions only use the
// bits, so they do not depend on the floating-point environment. The reference kernel uses them; the SIMD kernels give
// the same results with vectors (lanes-inl.h).
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/float32_bits.h"

namespace tutti::kernels {

// IEEE binary16: 1 sign bit, 5 exponent bits, 10 fraction bits.
struct Float16 {
  std::uint16_t bits = 0;
};

// The upper half of a float32: 1 sign bit, 8 exponent bits, 7 fraction bits.
struct Bfloat16 {
  std::uint16_t bits = 0;
};

static_assert(sizeof(Float16) == 2 && alignof(Float16) == 2);
static_assert(sizeof(Bfloat16) == 2 && alignof(Bfloat16) == 2);

// The bits of the canonical NaN of float64. The next constant is the bit that makes a NaN of float64 quiet.
// float32_bits.h defines the same two constants for float32 (kFloat32Nan, kFloat32QuietBit).
inline constexpr std::uint64_t kFloat64Nan = 0x7FF8000000000000u;
inline constexpr std::uint64_t kFloat64QuietBit = 0x0008000000000000u;

constexpr float widen(Bfloat16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  const bool nan = (bits & ~kFloat32Sign) > kFloat32Infinity;
  return std::bit_cast<float>(nan ? bits | kFloat32QuietBit : bits);
}

constexpr float widen(Float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7FFFu;
  if (magnitude > 0x7C00u) return std::bit_cast<float>(sign | kFloat32Nan | (magnitude & 0x3FFu) << 13);
  if (magnitude == 0x7C00u) return std::bit_cast<float>(sign | kFloat32Infinity);
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  if (magnitude == 0) return std::bit_cast<float>(sign);
  // A subnormal has the value magnitude * 2^-24. Its leading 1 becomes the implicit leading 1 of a normal float32.
  const int leading_bit = std::bit_width(magnitude) - 1;
  const auto exponent = static_cast<std::uint32_t>(leading_bit + 127 - 24);
  const std::uint32_t fraction = (magnitude << (23 - leading_bit)) & 0x007FFFFFu;
  return std::bit_cast<float>(sign | exponent << 23 | fraction);
}

constexpr Bfloat16 narrow_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool nan = (bits & ~kFloat32Sign) > kFloat32Infinity;
  return {static_cast<std::uint16_t>(nan ? (bits | kFloat32QuietBit) >> 16 : shift_right_to_even(bits, 16))};
}

constexpr Float16 narrow_to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits & kFloat32Sign) >> 16;
  const std::uint32_t magnitude = bits & ~kFloat32Sign;
  const std::uint32_t exponent = magnitude >> 23;
  std::uint32_t narrow = 0;
  if (magnitude > kFloat32Infinity) {
    narrow = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  } else if (exponent >= 127 + 16) {
    narrow = 0x7C00u;
  } else if (exponent >= 127 - 14) {
    // A carry out of the fraction increments the exponent, up to infinity. That is the correct rounding.
    narrow = shift_right_to_even(magnitude - (112u << 23), 13);
  } else if (exponent >= 127 - 25) {
    const std::uint32_t significand =
        // The value is this significand times 2^(exponent-150). The result counts in units of 2^-24.
        (magnitude & 0x007FFFFFu) | 0x00800000u;
    narrow = shift_right_to_even(significand, static_cast<int>(126 - exponent));
  }
  return {static_cast<std::uint16_t>(sign | narrow)};
}

}  // namespace tutti::kernels

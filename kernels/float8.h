// The 8-bit floating-point types in plain scalar code: their format, and the conversions to and from float32. Both
// types are those of the 8-bit floating point specification of the Open Compute Project (1.0, 2023).
//
// Widening is exact, and every NaN becomes kFloat32Nan. Narrowing rounds to nearest even, supports subnormals, and
// saturates: an infinity, or a value that rounds beyond the largest finite value, becomes the largest finite value
// of the same sign. Every NaN becomes kFloat8Nan. So widening can read an infinity of e5m2, but narrowing never returns
// one; only a copy of the bits writes an infinity.
//
// All functions are pure and use integers only, so that they work on host and device alike. The reference kernel uses
// them, and device code uses them for GPUs without conversions of their own (device/port_cuda.h). The SIMD kernels give
// the same results with vectors (cpu/float8-inl.h).
#pragma once

#include <cstdint>

#include "kernels/float32_bits.h"

namespace tutti::kernels {

// 1 sign bit, 4 exponent bits, 3 fraction bits. There is no infinity, and one NaN for each sign: 0x7F and 0xFF.
struct Float8E4M3 {
  std::uint8_t bits = 0;

  static constexpr int kFractionBits = 3;
  static constexpr int kBias = 7;
  static constexpr std::uint32_t kLargest = 0x7E;  // 448
  // e4m3 has no infinity. 0x80 is greater than every magnitude (the lower 7 bits), so no value compares equal to it.
  static constexpr std::uint32_t kInfinity = 0x80;
};

// The upper half of a float16: 1 sign bit, 5 exponent bits, 2 fraction bits. Infinity is 0x7C, NaN is 0x7D to 0x7F (and
// the same values with the sign bit).
struct Float8E5M2 {
  std::uint8_t bits = 0;

  static constexpr int kFractionBits = 2;
  static constexpr int kBias = 15;
  static constexpr std::uint32_t kLargest = 0x7B;  // 57344
  static constexpr std::uint32_t kInfinity = 0x7C;
};

static_assert(sizeof(Float8E4M3) == 1 && alignof(Float8E4M3) == 1);
static_assert(sizeof(Float8E5M2) == 1 && alignof(Float8E5M2) == 1);

// Narrowing returns this NaN for every NaN, in both types.
inline constexpr std::uint8_t kFloat8Nan = 0x7F;

// Returns the bits of the float32 that has the value of the given float8. A NaN becomes kFloat32Nan.
template <class Float8>
TUTTI_HOST_DEVICE constexpr std::uint32_t widened_bits(Float8 value) {
  constexpr int kShift = kFloat32FractionBits - Float8::kFractionBits;
  constexpr auto kRebias = static_cast<std::uint32_t>(kFloat32Bias - Float8::kBias);
  constexpr std::uint32_t kSmallestNormal = 1u << Float8::kFractionBits;
  const std::uint32_t sign = (value.bits & 0x80u) << 24;
  const std::uint32_t magnitude = value.bits & 0x7Fu;
  if (magnitude == Float8::kInfinity) return sign | kFloat32Infinity;
  if (magnitude > Float8::kLargest) return kFloat32Nan;
  if (magnitude >= kSmallestNormal) return sign | ((magnitude << kShift) + (kRebias << kFloat32FractionBits));
  if (magnitude == 0) return sign;
  // A subnormal. Its leading 1 becomes the implicit leading 1 of a normal float32.
  std::uint32_t significand = magnitude;
  std::uint32_t exponent = kRebias + 1;
  for (; significand < kSmallestNormal; significand <<= 1) --exponent;
  return sign | exponent << kFloat32FractionBits | ((significand << kShift) & kFloat32FractionMask);
}

// Returns the finite Float8 that is nearest to the float32 with these bits (ties to even), or kFloat8Nan for a NaN.
template <class Float8>
TUTTI_HOST_DEVICE constexpr Float8 narrowed_from_bits(std::uint32_t bits) {
  constexpr int kShift = kFloat32FractionBits - Float8::kFractionBits;
  constexpr std::uint32_t kLargest = widened_bits(Float8{static_cast<std::uint8_t>(Float8::kLargest)});
  // The exponent field of a float32 that has the value of the smallest normal Float8.
  constexpr int kSmallestExponent = kFloat32Bias + 1 - Float8::kBias;
  const std::uint32_t sign = bits >> 24 & 0x80u;
  const std::uint32_t magnitude = bits & ~kFloat32Sign;
  const auto exponent = static_cast<int>(magnitude >> kFloat32FractionBits);
  std::uint32_t narrow = 0;
  if (magnitude > kFloat32Infinity) return {kFloat8Nan};
  if (magnitude >= kLargest) {
    narrow = Float8::kLargest;
  } else if (exponent >= kSmallestExponent) {
    constexpr auto kRebias = static_cast<std::uint32_t>(kFloat32Bias - Float8::kBias);
    narrow = shift_right_to_even(magnitude - (kRebias << kFloat32FractionBits), kShift);
  } else if (exponent >= kSmallestExponent - Float8::kFractionBits - 1) {
    const std::uint32_t significand = (magnitude & kFloat32FractionMask) | (kFloat32FractionMask + 1);
    narrow = shift_right_to_even(significand, kShift + kSmallestExponent - exponent);
  }
  return {static_cast<std::uint8_t>(sign | narrow)};
}

}  // namespace tutti::kernels

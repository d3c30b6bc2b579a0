// A float32 as its 32 bits, and the rounding of such bits to fewer: what the conversions of the narrow floating types
// are made of. Integers only and no library, so that the same lines compile for the host and, by nvcc, for a device.
#pragma once

#include <cstdint>

// Before a function that device code may call too.
#ifndef TUTTI_HOST_DEVICE
#ifdef __CUDACC__
#define TUTTI_HOST_DEVICE __host__ __device__
#else
#define TUTTI_HOST_DEVICE
#endif
#endif

namespace tutti::kernels {

inline constexpr std::uint32_t kFloat32Infinity = 0x7F800000u;
inline constexpr std::uint32_t kFloat32Sign = 0x80000000u;
inline constexpr std::uint32_t kFloat32QuietBit = 0x00400000u;
inline constexpr std::uint32_t kFloat32FractionMask = 0x007FFFFFu;
inline constexpr int kFloat32FractionBits = 23;
inline constexpr int kFloat32Bias = 127;

// What every NaN that arithmetic produces is stored as: quiet, positive, no payload (narrowed: float16 0x7E00, bfloat16
// 0x7FC0; float8 0x7F by a rule of its own, float8.h).
inline constexpr std::uint32_t kFloat32Nan = 0x7FC00000u;

// Drops the lowest `shift` bits (1..31) of `bits`, rounding to nearest even.
TUTTI_HOST_DEVICE constexpr std::uint32_t shift_right_to_even(std::uint32_t bits, int shift) {
  const std::uint32_t half_below = (1u << (shift - 1)) - 1;
  return (bits + half_below + ((bits >> shift) & 1u)) >> shift;
}

}  // namespace tutti::kernels

// Constants for the 32 bits of a float32, and the rounding of these bits to fewer bits. The conversions of the 16-bit
// and 8-bit floating-point types use them. The code uses only integers and calls no library function, so that it
// compiles for the host and, with nvcc, for a GPU.
#pragma once

#include <cstdint>

// Precedes a function that both host code and device code may call.
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

// The canonical NaN of float32: every float32 NaN that results from arithmetic is stored as this one. It is quiet,
// positive and without payload. The canonical NaNs of the narrower types are float16 0x7E00, bfloat16 0x7FC0 and float8
// 0x7F (float8.h).
inline constexpr std::uint32_t kFloat32Nan = 0x7FC00000u;

// Drops the lowest `shift` bits (1..31) of `bits`, with rounding to nearest even. bits + 2^(shift-1) must fit into 32
// bits.
TUTTI_HOST_DEVICE constexpr std::uint32_t shift_right_to_even(std::uint32_t bits, int shift) {
  const std::uint32_t half_below = (1u << (shift - 1)) - 1;
  return (bits + half_below + ((bits >> shift) & 1u)) >> shift;
}

}  // namespace tutti::kernels

// mix_bits(): a function of 64 bits for hashes, and for random numbers that a seed determines.
#pragma once

#include <cstdint>

namespace tutti {

// Each bit of `x` affects all bits of the result. Different arguments have different results. The function is the
// finalizer of the random generator SplitMix64 (Steele, Lea and Flood, 2014).
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
static_assert(mix_bits(0x9e3779b97f4a7c15) == 0xe220a8397b1dcdaf);  // the first number of SplitMix64 for the seed 0

}  // namespace tutti

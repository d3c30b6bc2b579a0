// Test values for gpu_bench, and the check of results. Every input repeats one period of values. So the host computes
// the expected result only for one period, and compares the whole result with repetitions of it. The length of the
// period is a multiple of a large prime, because a check cannot detect values that are displaced by a multiple of the
// period. Typical displacements, for example by a power of two, are not multiples of it. Pure functions, except those
// that copy from and to the GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/gpu/gpu.h"
#include "tutti/types.h"

namespace tutti::bench {

using Period = std::vector<std::byte>;

inline constexpr std::size_t kPeriodBytes = 16 * 65'537;  // 16 bytes times the smallest prime greater than 2^16

// Random values. Floats have a random sign and fraction, and magnitudes between 1/8 and 8: sums of a few values stay
// in the range of every type, and many sums of float32 and float64 depend on the order of the additions. Integers
// have random bits.
Period random_period(DataType type, std::uint64_t seed);

// float32 whole numbers with one octal digit for each rank: the values of rank r are a digit times 8^r. So the sum of
// up to 8 ranks is exact in any order, and a digit that is missing, counted twice or misplaced changes most elements of
// the sum. 0 <= rank < 8.
Period rank_digits(int rank);
// The sum of the values of ranks 0 .. ranks - 1.
Period sum_of_digits(int ranks);

// Fills `memory` with repetitions of `period`, and waits until it is filled.
Status fill(const Gpu& gpu, const cuda::DeviceMemory& memory, const Period& period);
// The number of bytes in [begin, begin + bytes) that differ from repetitions of `period`.
Result<std::uint64_t> wrong_bytes(const Gpu& gpu, cuda::CUdeviceptr begin, std::size_t bytes, const Period& period);

}  // namespace tutti::bench

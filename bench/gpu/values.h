// Values for gpu_bench, and the check of results: every buffer repeats one period of values, whose length divides
// nothing, so that what a call must give is worked out on the host for one period and compared over the whole result.
// Pure functions but for the copies to and fro.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/gpu/gpu.h"
#include "tutti/types.h"

namespace tutti::bench {

using Period = std::vector<std::byte>;

inline constexpr std::size_t kPeriodBytes = 16 * 65'537;  // words of 16 bytes, the least prime past 2^16 of them

// Floats of random sign and fraction between 1/8 and 8: sums of a few stay in every type's range, and many of float32
// and float64 depend on the order in which they were made. Integers of any bits.
Period random_period(DataType type, std::uint64_t seed);

// float32 whole numbers, one octal digit for each rank: rank r gives a digit times 8^r, so the sum of up to 8 ranks is
// exact in any order, and shows which rank's digit is missing, doubled or displaced. 0 <= rank < 8.
Period rank_digits(int rank);
Period sum_of_digits(int ranks);

// Makes `memory` repeat `period`, from its beginning.
Status fill(const Gpu& gpu, const cuda::DeviceMemory& memory, const Period& period);
// How many of the `bytes` from `begin` are not `period`'s.
Result<std::uint64_t> wrong_bytes(const Gpu& gpu, cuda::CUdeviceptr begin, std::size_t bytes, const Period& period);

}  // namespace tutti::bench

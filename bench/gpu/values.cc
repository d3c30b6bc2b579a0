#include "bench/gpu/values.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "base/assert.h"

namespace tutti::bench {
namespace {

struct Format {
  int exponent_bits = 0;  // 0: the type is an integer
  int fraction_bits = 0;
};

Format format_of(DataType type) {
  switch (type) {
    case DataType::kFloat16: return {5, 10};
    case DataType::kBfloat16: return {8, 7};
    case DataType::kFloat32: return {8, 23};
    case DataType::kFloat64: return {11, 52};
    case DataType::kFloat8E4M3: return {4, 3};
    case DataType::kFloat8E5M2: return {5, 2};
    default: return {};
  }
}

std::uint64_t random_element(Format format, std::mt19937_64& random) {
  const std::uint64_t bits = random();
  if (format.exponent_bits == 0) return bits;
  constexpr std::uint64_t kExponents = 6;  // the number of exponents: 2^-3 .. 2^2
  const std::uint64_t bias = (std::uint64_t{1} << (format.exponent_bits - 1)) - 1;
  const std::uint64_t exponent = bias - 3 + (bits >> 60) % kExponents;
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << format.fraction_bits) - 1);
  const std::uint64_t sign = bits >> 59 & 1;
  return sign << (format.exponent_bits + format.fraction_bits) | exponent << format.fraction_bits | fraction;
}

constexpr std::size_t kFloats = kPeriodBytes / sizeof(float);

std::uint32_t digit(std::size_t i, int rank) {
  return static_cast<std::uint32_t>((i * 5 + i / 61 + static_cast<std::size_t>(rank) * 3) % 8);
}

Period period_of(const std::vector<float>& values) {
  Period period(values.size() * sizeof(float));
  std::memcpy(period.data(), values.data(), period.size());
  return period;
}

}  // namespace

Period random_period(DataType type, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const Format format = format_of(type);
  Period period(kPeriodBytes);
  for (std::size_t at = 0; at < period.size(); at += size_of(type)) {
    const std::uint64_t element = random_element(format, random);
    std::memcpy(period.data() + at, &element, size_of(type));  // stores the low bytes: the host is little endian
  }
  return period;
}

Period rank_digits(int rank) {
  TUTTI_ASSERT(rank >= 0 && rank < 8);
  std::vector<float> values(kFloats);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(digit(i, rank) << (3 * rank));
  return period_of(values);
}

Period sum_of_digits(int ranks) {
  TUTTI_ASSERT(ranks > 0 && ranks <= 8);
  std::vector<float> values(kFloats);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += digit(i, rank) << (3 * rank);
    values[i] = static_cast<float>(sum);
  }
  return period_of(values);
}

Status fill(const Gpu& gpu, const cuda::DeviceMemory& memory, const Period& period) {
  const std::size_t first = std::min(period.size(), memory.bytes());
  TUTTI_TRY(gpu.put(memory.address(), std::span(period).first(first)));
  for (std::size_t done = first; done < memory.bytes();) {  // each iteration at most doubles the filled part
    const std::size_t more = std::min(done, memory.bytes() - done);
    TUTTI_TRY(gpu.copy(memory.address() + done, memory.address(), more));
    done += more;
  }
  return gpu.synchronize();
}

Result<std::uint64_t> wrong_bytes(const Gpu& gpu, cuda::CUdeviceptr begin, std::size_t bytes, const Period& period) {
  auto pinned = cuda::PinnedMemory::allocate(gpu.driver(), period.size());
  if (!pinned) return std::move(pinned).error();
  std::uint64_t wrong = 0;
  for (std::size_t at = 0; at < bytes; at += period.size()) {
    const std::span<std::byte> part = pinned->bytes().first(std::min(period.size(), bytes - at));
    TUTTI_TRY(gpu.get(part, begin + at));
    if (std::memcmp(part.data(), period.data(), part.size()) == 0) continue;
    for (std::size_t i = 0; i < part.size(); ++i) wrong += part[i] != period[i] ? 1 : 0;
  }
  return wrong;
}

}  // namespace tutti::bench

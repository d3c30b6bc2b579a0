// What the kernel tests share: running on each Highway target of this machine, buffers that notice stray accesses,
// random elements, and an independent rounding to the 16-bit floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/reduce.h"

namespace tutti {

// How GoogleTest names the parameters of a test.
inline void PrintTo(DataType type, std::ostream* out) { *out << to_string(type); }
inline void PrintTo(ReduceOp op, std::ostream* out) { *out << to_string(op); }

}  // namespace tutti

namespace tutti::kernels::testing {

// Calls `body` once for each target that was compiled and that this machine supports, with reduce() held to that
// target. Names the target in the messages of failures within.
void for_each_target(const std::function<void()>& body);

// Names of those targets, fallback included.
std::vector<std::string> targets_here();

enum class Values {
  kOrdinary,  // floats in [-4, 4); integers of any bits
  kWild,      // the same, but every eighth float is a NaN, an infinity, a zero, subnormal, or of any bits
};

void fill(std::span<std::byte> buffer, DataType type, Values values, std::mt19937_64& random);

// Sources end where their memory ends, so that a sanitizer sees a read past them. Destinations stand between guard
// bytes. Everything starts at an odd number of elements from an aligned address, another one for each buffer if
// `staggered`.
struct Layout {
  DataType type = DataType::kFloat32;
  std::size_t sources = 1;
  std::size_t destinations = 1;
  std::size_t count = 0;
  bool in_place = false;  // destination i is source i, where there is one
  bool staggered = true;
};

class Buffers {
 public:
  Buffers(const Layout& layout, Values values, std::uint64_t seed);
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  std::span<const std::byte* const> sources() const { return sources_; }
  std::span<std::byte* const> destinations() const { return destinations_; }
  bool guards_intact() const;

 private:
  std::byte* add(std::size_t index, std::size_t tail_bytes);

  Layout layout_;
  std::size_t bytes_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> destinations_;
};

// Elements as raw bits in, one destination out, on the current target.
template <class T>
std::vector<T> reduce_vectors(const Reduction& reduction, const std::vector<std::vector<T>>& sources) {
  std::vector<const std::byte*> from;
  for (const auto& source : sources) from.push_back(reinterpret_cast<const std::byte*>(source.data()));
  std::vector<T> result(sources[0].size());
  std::byte* to = reinterpret_cast<std::byte*>(result.data());
  kernels::reduce(reduction, from, std::span(&to, 1), result.size());
  return result;
}

// The same for one element per source; computed in the first, a middle and the last lane of a few blocks, which must
// agree.
std::uint64_t reduce_bits(const Reduction& reduction, std::span<const std::uint64_t> source_bits);

// A binary floating format in 16 bits.
struct Format {
  int fraction_bits;
  int exponent_bias;
};
inline constexpr Format kFloat16Format{10, 15};
inline constexpr Format kBfloat16Format{7, 127};

// Written from the formats' definitions with double arithmetic, sharing nothing with the kernels. NaN: see each.
double decode(Format format, std::uint16_t bits);     // NaN for every NaN
std::uint16_t round_to(Format format, double value);  // nearest even; value is not NaN

}  // namespace tutti::kernels::testing

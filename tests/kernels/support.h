// Helpers for the tests of kernels: running on each Highway target of this machine, buffers that detect accesses
// outside of them, random elements, and an independent implementation of rounding to 16-bit floats.
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

// GoogleTest prints the parameters of tests with these functions.
inline void PrintTo(DataType type, std::ostream* out) { *out << to_string(type); }
inline void PrintTo(ReduceOp op, std::ostream* out) { *out << to_string(op); }

}  // namespace tutti

namespace tutti::kernels::testing {

// Calls `body` once for each target that was compiled and that this machine supports. During the call, reduce() uses
// that target, and messages of failures name it.
void for_each_target(const std::function<void()>& body);

// Returns the names of those targets, including the fallback.
std::vector<std::string> available_targets();

enum class Values {
  kOrdinary,  // floats in [-4, 4); integers with random bits
  kWild,      // the same, but about one float in eight is a NaN, an infinity, a zero, subnormal, or has random bits
};

void fill(std::span<std::byte> buffer, DataType type, Values values, std::mt19937_64& random);

// The sources and destinations of a reduction. A source is at the end of its memory, so that a sanitizer detects reads
// behind it. A destination is between guard bytes. Every buffer starts one element after an aligned address or, if
// `staggered`, a different number of elements (1 to 16) after it.
struct Layout {
  DataType type = DataType::kFloat32;
  std::size_t sources = 1;
  std::size_t destinations = 1;
  std::size_t count = 0;
  bool in_place = false;  // destination i is the same memory as source i, if there is a source i
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

// Reduces vectors of elements, given as raw bits, to one vector, on the current target.
template <class T>
std::vector<T> reduce_vectors(const Reduction& reduction, const std::vector<std::vector<T>>& sources) {
  std::vector<const std::byte*> from;
  for (const auto& source : sources) from.push_back(reinterpret_cast<const std::byte*>(source.data()));
  std::vector<T> result(sources[0].size());
  std::byte* to = reinterpret_cast<std::byte*>(result.data());
  kernels::reduce(reduction, from, std::span(&to, 1), result.size());
  return result;
}

// Reduces one element of each source, given as raw bits. The reduction is made with vectors that are filled with this
// element, so that every SIMD lane and the scalar rest compute it; all results must be equal.
std::uint64_t reduce_bits(const Reduction& reduction, std::span<const std::uint64_t> source_bits);

// A binary floating format in 16 bits.
struct Format {
  int fraction_bits;
  int exponent_bias;
};
inline constexpr Format kFloat16Format{10, 15};
inline constexpr Format kBfloat16Format{7, 127};

// These functions follow the definitions of the formats and use double arithmetic. They share no code with the kernels.
double decode(Format format, std::uint16_t bits);     // every NaN gives NaN
std::uint16_t round_to(Format format, double value);  // rounds to nearest, ties to even; `value` must not be NaN

}  // namespace tutti::kernels::testing

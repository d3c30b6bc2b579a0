// The 8-bit floats by their definition, in double arithmetic and with a search. This is slow, but shares no code with
// the kernels.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>

#include "support.h"

namespace tutti::kernels::testing {

// A format with a sign bit, then the exponent, then the fraction.
struct Format8 {
  DataType type;
  int fraction_bits;
  int exponent_bias;
  int largest;   // the bits of the largest finite value, without the sign
  int infinity;  // the bits of infinity, without the sign; larger than 0x7F if the format has none
};

inline constexpr Format8 kE4M3Format{DataType::kFloat8E4M3, 3, 7, 0x7E, 0x80};
inline constexpr Format8 kE5M2Format{DataType::kFloat8E5M2, 2, 15, 0x7B, 0x7C};

inline void PrintTo(const Format8& format, std::ostream* out) { *out << to_string(format.type); }

inline constexpr int kCanonicalNan = 0x7F;

// Returns the value of an encoding; NaN for every NaN.
inline double decode8(const Format8& format, int bits) {
  const int magnitude = bits & 0x7F;
  const int exponent = magnitude >> format.fraction_bits;
  const int fraction = magnitude % (1 << format.fraction_bits);
  const int unit = (exponent == 0 ? 1 : exponent) - format.exponent_bias - format.fraction_bits;
  double value = std::ldexp(exponent == 0 ? fraction : fraction + (1 << format.fraction_bits), unit);
  if (magnitude == format.infinity) value = std::numeric_limits<double>::infinity();
  if (magnitude > format.largest && magnitude != format.infinity) return std::numeric_limits<double>::quiet_NaN();
  return (bits & 0x80) != 0 ? -value : value;
}

// Returns all finite values that are not negative, in ascending order. The index of a value is its encoding.
inline std::array<double, 128> magnitudes(const Format8& format) {
  std::array<double, 128> values{};
  for (int bits = 0; bits <= format.largest; ++bits) values[static_cast<std::size_t>(bits)] = decode8(format, bits);
  return values;
}

// Rounds by a search of all values. The result is the nearest value, or the even one if two are equally near. It is
// never larger than the largest finite value.
class Rounding {
 public:
  explicit Rounding(const Format8& format) : format_(format), values_(magnitudes(format)) {}

  // Returns kCanonicalNan for NaN.
  std::uint8_t operator()(double value) const {
    if (std::isnan(value)) return kCanonicalNan;
    const double magnitude = std::fabs(value);
    int nearest = format_.largest;
    if (magnitude < at(format_.largest)) {
      for (int bits = format_.largest - 1; bits >= 0; --bits) {
        const double to_this = std::fabs(at(bits) - magnitude);
        const double to_nearest = std::fabs(at(nearest) - magnitude);
        if (to_this < to_nearest || (to_this == to_nearest && bits % 2 == 0)) nearest = bits;
      }
    }
    return static_cast<std::uint8_t>(nearest | (std::signbit(value) ? 0x80 : 0));
  }

  double at(int bits) const { return values_[static_cast<std::size_t>(bits)]; }

 private:
  Format8 format_;
  std::array<double, 128> values_;
};

}  // namespace tutti::kernels::testing

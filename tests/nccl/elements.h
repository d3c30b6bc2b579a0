// Buffers of every NCCL type. Their elements are set and read as small integers, which every type represents
// exactly.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "nccl.h"

namespace tutti::nccl_test {

class Elements {
 public:
  Elements(ncclDataType_t type, std::size_t count) : type_(type), bytes_(count * width(type)) {}

  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  void* at(std::size_t i) { return bytes_.data() + i * width(type_); }

  // Requires 0 <= value <= 16 if the type is a floating-point type.
  void set(std::size_t i, int value) {
    const std::uint64_t bits = bits_of(value);
    std::memcpy(at(i), &bits, width(type_));
  }
  // For a floating-point type: returns the value for which set() would store these bits, or -1 if there is none.
  int get(std::size_t i) const {
    std::uint64_t bits = 0;
    std::memcpy(&bits, bytes_.data() + i * width(type_), width(type_));
    if (exponent_bits() == 0) return static_cast<int>(bits);
    for (int value = 0; value <= 16; ++value) {
      if (bits_of(value) == bits) return value;
    }
    return -1;
  }

  static std::size_t width(ncclDataType_t type) {
    constexpr std::size_t kWidths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return kWidths[type];
  }

 private:
  int exponent_bits() const {
    constexpr int kBits[] = {0, 0, 0, 0, 0, 0, 5, 8, 11, 8, 4, 5};
    return kBits[type_];
  }
  // The bits of a small integer in the floating-point format of this type: the exponent, followed by the fraction.
  std::uint64_t bits_of(int value) const {
    const int exponent = exponent_bits();
    if (exponent == 0 || value == 0) return static_cast<std::uint64_t>(value);
    const int fraction = static_cast<int>(8 * width(type_)) - 1 - exponent;
    const int top = std::bit_width(static_cast<unsigned>(value)) - 1;
    const auto bias = static_cast<std::uint64_t>((1 << (exponent - 1)) - 1 + top);
    const auto rest = static_cast<std::uint64_t>(value - (1 << top));
    return bias << fraction | (fraction >= top ? rest << (fraction - top) : rest >> (top - fraction));
  }

  ncclDataType_t type_;
  std::vector<std::byte> bytes_;
};

}  // namespace tutti::nccl_test

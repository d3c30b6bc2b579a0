// Element types in device code, and how their values are combined: the rules of kernels/cpu/reduce.h for rounding, NaN
// and wrapping, with identical bits. To add a type, add its struct here, its case in with_element(), and its size in
// element_log2_of(); for a signed integer also a case in is_signed_integer().
//
// An element type has, among others, the members Bits, its form in memory, and Value, the type in which values are
// combined. A Word is the unit of one memory access (16 bytes, 8 bytes, or one element). An Accumulator contains the
// values of one Word.
#pragma once

#include <cstdint>

#include "kernels/device/call.h"
#include "kernels/device/port.h"
#include "kernels/float8.h"

namespace tutti::device {

inline constexpr std::uint32_t kFloatInfinity = 0x7F800000u;
inline constexpr std::uint32_t kFloatQuietBit = 0x00400000u;
inline constexpr std::uint32_t kFloatNan = 0x7FC00000u;  // every float32 NaN of arithmetic is stored as this one
inline constexpr std::uint64_t kDoubleInfinity = 0x7FF0000000000000u;
inline constexpr std::uint64_t kDoubleQuietBit = 0x0008000000000000u;
inline constexpr std::uint64_t kDoubleNan = 0x7FF8000000000000u;

template <class To, class From>
TUTTI_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

TUTTI_DEVICE bool is_nan(float value) { return (bits_as<std::uint32_t>(value) & 0x7FFFFFFFu) > kFloatInfinity; }
TUTTI_DEVICE bool is_nan(double value) { return (bits_as<std::uint64_t>(value) << 1 >> 1) > kDoubleInfinity; }
TUTTI_DEVICE float canonicalized(float value) { return is_nan(value) ? bits_as<float>(kFloatNan) : value; }
TUTTI_DEVICE double canonicalized(double value) { return is_nan(value) ? bits_as<double>(kDoubleNan) : value; }
TUTTI_DEVICE float quieted(float value) {
  return is_nan(value) ? bits_as<float>(bits_as<std::uint32_t>(value) | kFloatQuietBit) : value;
}
TUTTI_DEVICE double quieted(double value) {
  return is_nan(value) ? bits_as<double>(bits_as<std::uint64_t>(value) | kDoubleQuietBit) : value;
}

// For signed and unsigned integers alike; B is the unsigned type. Rules contains the operations in which signed and
// unsigned integers differ.
template <class B>
struct Integer {
  using Bits = B;
  using Value = B;
  static constexpr bool kFloating = false;
  TUTTI_DEVICE static Value widen(Bits bits) { return bits; }
  TUTTI_DEVICE static Bits narrow(Value value) { return value; }
};

struct Float32 {
  using Bits = std::uint32_t;
  using Value = float;
  static constexpr bool kFloating = true;
  TUTTI_DEVICE static Value widen(Bits bits) { return bits_as<float>(bits); }
  TUTTI_DEVICE static Bits narrow(Value value) { return bits_as<std::uint32_t>(value); }
};

struct Float64 {
  using Bits = std::uint64_t;
  using Value = double;
  static constexpr bool kFloating = true;
  TUTTI_DEVICE static Value widen(Bits bits) { return bits_as<double>(bits); }
  TUTTI_DEVICE static Bits narrow(Value value) { return bits_as<std::uint64_t>(value); }
};

// widen() and narrow() keep the sign of a NaN and the payload bits that fit, and make the NaN quiet.
struct Float16 {
  using Bits = std::uint16_t;
  using Value = float;
  static constexpr bool kFloating = true;
  TUTTI_DEVICE static Value widen(Bits bits) {
    const std::uint32_t magnitude = bits & 0x7FFFu;
    const std::uint32_t sign = (bits & 0x8000u) << 16;
    if (magnitude > 0x7C00u) return bits_as<float>(sign | kFloatNan | (magnitude & 0x3FFu) << 13);
    return port::half_to_float(bits);
  }
  TUTTI_DEVICE static Bits narrow(Value value) {
    const auto bits = bits_as<std::uint32_t>(value);
    if (is_nan(value)) return static_cast<Bits>((bits & 0x80000000u) >> 16 | 0x7E00u | (bits >> 13 & 0x3FFu));
    return port::float_to_half(value);
  }
  // For sums, which need not keep the bits of a NaN: widen_number() may return any NaN for a NaN, and narrow_sum()
  // stores every NaN as the canonical one.
  TUTTI_DEVICE static Value widen_number(Bits bits) { return port::half_to_float(bits); }
  TUTTI_DEVICE static Bits narrow_sum(Value value) {
    return is_nan(value) ? Bits{0x7E00u} : port::float_to_half(value);
  }
};

struct Bfloat16 {
  using Bits = std::uint16_t;
  using Value = float;
  static constexpr bool kFloating = true;
  TUTTI_DEVICE static Value widen(Bits bits) { return quieted(bits_as<float>(static_cast<std::uint32_t>(bits) << 16)); }
  TUTTI_DEVICE static Bits narrow(Value value) {
    const auto bits = bits_as<std::uint32_t>(value);
    if (is_nan(value)) return static_cast<Bits>((bits | kFloatQuietBit) >> 16);
    return static_cast<Bits>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);  // round to nearest even
  }
  // For sums: narrow_sum() stores every NaN as the canonical one. The addition that rounds does not change this NaN.
  TUTTI_DEVICE static Value widen_number(Bits bits) { return bits_as<float>(static_cast<std::uint32_t>(bits) << 16); }
  TUTTI_DEVICE static Bits narrow_sum(Value value) {
    const auto bits = bits_as<std::uint32_t>(canonicalized(value));
    return static_cast<Bits>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
  }
};

// narrow() returns the largest finite value of the same sign for an infinity, also if min or max has selected the
// infinity; see kernels/float8.h.
template <class Format>
struct Float8 {
  using Bits = std::uint8_t;
  using Value = float;
  static constexpr bool kFloating = true;
  using Conversion = port::Float8Conversion<Format>;
  TUTTI_DEVICE static Value widen(Bits bits) {
    Value value = 0;
    Value unused = 0;
    Conversion::widen(bits, value, unused);
    return value;
  }
  TUTTI_DEVICE static Bits narrow(Value value) { return static_cast<Bits>(Conversion::narrow(value, 0)); }
};

enum class Combine : std::uint8_t { kAdd, kMultiply, kMin, kMax };

TUTTI_DEVICE Combine combine_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProd: return Combine::kMultiply;
    case ReduceOp::kMin: return Combine::kMin;
    case ReduceOp::kMax: return Combine::kMax;
    default: return Combine::kAdd;
  }
}

TUTTI_DEVICE bool is_signed_integer(DataType type) {
  return type == DataType::kInt8 || type == DataType::kInt32 || type == DataType::kInt64;
}

// The operations of an Arithmetic for elements of type E.
template <class E>
struct Rules {
  using Value = typename E::Value;
  Combine combine;
  bool divides;
  std::int32_t scaled_source;
  std::uint32_t divisor;
  // For signed integers: the sign bit. After an XOR of both values with it, an unsigned comparison gives the result of
  // the signed comparison. 0 for all other types.
  typename E::Bits bias;
  Value scale;

  TUTTI_DEVICE explicit Rules(const Arithmetic& how)
      : combine(combine_of(how.op)),
        divides(how.divisor != 1),
        scaled_source(how.scaled_source),
        divisor(how.divisor),
        bias(0),
        scale(0) {
    if constexpr (E::kFloating) {
      scale = static_cast<Value>(how.scale_real);
    } else {
      scale = static_cast<Value>(how.scale_integer);
      if (is_signed_integer(how.type)) bias = static_cast<Value>(Value{1} << (8 * sizeof(Value) - 1));
    }
  }

  TUTTI_DEVICE Value times(Value a, Value b) const {
    if constexpr (E::kFloating)
      return canonicalized(port::multiply(a, b));
    else
      return static_cast<Value>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  }
  TUTTI_DEVICE Value plus(Value a, Value b) const {
    if constexpr (E::kFloating)
      return canonicalized(port::add(a, b));
    else
      return static_cast<Value>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
  // If two values are equal, or the first one is NaN, the first one is kept.
  template <bool kMin>
  TUTTI_DEVICE Value better(Value value, Value next) const {
    if constexpr (E::kFloating) {
      if (is_nan(value)) return value;
      if (is_nan(next)) return next;
      return (kMin ? next < value : next > value) ? next : value;
    } else {
      const auto a = static_cast<Value>(value ^ bias);
      const auto b = static_cast<Value>(next ^ bias);
      return (kMin ? b < a : b > a) ? next : value;
    }
  }
  TUTTI_DEVICE Value divided(Value value) const {
    if constexpr (E::kFloating) {
      return canonicalized(port::divide(value, static_cast<Value>(divisor)));
    } else {
      if (bias == 0) return static_cast<Value>(std::uint64_t{value} / divisor);
      const auto biased = static_cast<std::int64_t>(std::uint64_t{static_cast<Value>(value ^ bias)} - bias);
      return static_cast<Value>(biased / static_cast<std::int64_t>(divisor));  // truncates towards zero
    }
  }
};

// The values of one word of the result. begin() takes the first source, and add() combines each further source with
// them, one after the other, as the rules specify (sum, product, minimum or maximum).
template <class E, class Word>
class Accumulator {
 public:
  using Bits = typename E::Bits;
  // Number of elements in one Word.
  static constexpr unsigned kLanes = sizeof(Word) / sizeof(Bits);  // NOLINT(bugprone-sizeof-expression): may give 1

  TUTTI_DEVICE void begin(const Rules<E>& rules, const Word& word, bool scaled) { load(rules, word, scaled, values_); }

  TUTTI_DEVICE void add(const Rules<E>& rules, const Word& word, bool scaled) {
    typename E::Value next[kLanes];
    load(rules, word, scaled, next);
    switch (rules.combine) {
      case Combine::kAdd:
        TUTTI_UNROLL
        for (unsigned i = 0; i < kLanes; ++i) values_[i] = rules.plus(values_[i], next[i]);
        return;
      case Combine::kMultiply:
        TUTTI_UNROLL
        for (unsigned i = 0; i < kLanes; ++i) values_[i] = rules.times(values_[i], next[i]);
        return;
      case Combine::kMin:
        TUTTI_UNROLL
        for (unsigned i = 0; i < kLanes; ++i) values_[i] = rules.template better<true>(values_[i], next[i]);
        return;
      case Combine::kMax:
        TUTTI_UNROLL
        for (unsigned i = 0; i < kLanes; ++i) values_[i] = rules.template better<false>(values_[i], next[i]);
        return;
    }
  }

  TUTTI_DEVICE Word finished(const Rules<E>& rules) {
    if (rules.divides) {
      TUTTI_UNROLL
      for (unsigned i = 0; i < kLanes; ++i) values_[i] = rules.divided(values_[i]);
    }
    Bits bits[kLanes];
    TUTTI_UNROLL
    for (unsigned i = 0; i < kLanes; ++i) {
      if constexpr (E::kFloating)
        bits[i] = E::narrow(quieted(values_[i]));
      else
        bits[i] = values_[i];
    }
    Word word;
    __builtin_memcpy(&word, bits, sizeof(word));
    return word;
  }

 private:
  TUTTI_DEVICE static void load(const Rules<E>& rules, const Word& word, bool scaled, typename E::Value* values) {
    Bits bits[kLanes];
    __builtin_memcpy(bits, &word, sizeof(word));
    TUTTI_UNROLL
    for (unsigned i = 0; i < kLanes; ++i) values[i] = E::widen(bits[i]);
    if (!scaled) return;
    TUTTI_UNROLL
    for (unsigned i = 0; i < kLanes; ++i) values[i] = rules.times(values[i], rules.scale);
  }

  typename E::Value values_[kLanes];
};

// Unpacks the words of a sum into values and packs them again, one Unit of memory at a time. A Unit has one value, or
// two values of 8-bit floats. widen() need not keep the bits of a NaN, because narrow() stores every NaN of a sum as
// the canonical one.
template <class E>
struct Units {
  using Unit = typename E::Bits;
  static constexpr unsigned kValues = 1;
  TUTTI_DEVICE static void widen(Unit unit, typename E::Value* values) {
    if constexpr (sizeof(Unit) == 2)
      values[0] = E::widen_number(unit);
    else
      values[0] = E::widen(unit);
  }
  TUTTI_DEVICE static Unit narrow(const typename E::Value* values) {
    if constexpr (sizeof(Unit) == 2)
      return E::narrow_sum(values[0]);
    else
      return E::narrow(canonicalized(values[0]));
  }
};

template <class Format>
struct Units<Float8<Format>> {
  using Unit = std::uint16_t;
  static constexpr unsigned kValues = 2;
  using Conversion = port::Float8Conversion<Format>;
  TUTTI_DEVICE static void widen(Unit unit, float* values) { Conversion::widen(unit, values[0], values[1]); }
  TUTTI_DEVICE static Unit narrow(const float* values) { return Conversion::narrow(values[0], values[1]); }
};

// The sum of at least two sources, for one word of 16 bytes with floating-point values. Gives the same bits as an
// Accumulator that adds, in fewer instructions.
template <class E>
class Sum {
 public:
  TUTTI_DEVICE explicit Sum(const Word16& word) { widen(word, values_); }

  TUTTI_DEVICE void add(const Word16& word) {
    typename E::Value next[kValues];
    widen(word, next);
    TUTTI_UNROLL
    for (unsigned i = 0; i < kValues; ++i) values_[i] = port::add(values_[i], next[i]);
  }

  TUTTI_DEVICE Word16 finished() const {
    Unit units[kUnits];
    TUTTI_UNROLL
    for (unsigned i = 0; i < kUnits; ++i) units[i] = Units<E>::narrow(values_ + i * Units<E>::kValues);
    Word16 word;
    __builtin_memcpy(&word, units, sizeof(word));
    return word;
  }

 private:
  using Unit = typename Units<E>::Unit;
  static constexpr unsigned kUnits = sizeof(Word16) / sizeof(Unit);
  static constexpr unsigned kValues = kUnits * Units<E>::kValues;

  TUTTI_DEVICE static void widen(const Word16& word, typename E::Value* values) {
    Unit units[kUnits];
    __builtin_memcpy(units, &word, sizeof(word));
    TUTTI_UNROLL
    for (unsigned i = 0; i < kUnits; ++i) Units<E>::widen(units[i], values + i * Units<E>::kValues);
  }

  typename E::Value values_[kValues];
};

// Calls body(E{}), where E is the element type.
template <class Body>
TUTTI_DEVICE void with_element(DataType type, Body body) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8: return body(Integer<std::uint8_t>{});
    case DataType::kInt32:
    case DataType::kUint32: return body(Integer<std::uint32_t>{});
    case DataType::kInt64:
    case DataType::kUint64: return body(Integer<std::uint64_t>{});
    case DataType::kFloat16: return body(Float16{});
    case DataType::kFloat32: return body(Float32{});
    case DataType::kFloat64: return body(Float64{});
    case DataType::kBfloat16: return body(Bfloat16{});
    case DataType::kFloat8E4M3: return body(Float8<kernels::Float8E4M3>{});
    case DataType::kFloat8E5M2: return body(Float8<kernels::Float8E5M2>{});
  }
}

// Calls body(Bits{}), where Bits is the unsigned integer of 1 << element_log2 bytes. For values that are only copied,
// so that the code depends only on the size of an element.
template <class Body>
TUTTI_DEVICE void with_bits(std::uint32_t element_log2, Body body) {
  switch (element_log2) {
    case 0: return body(std::uint8_t{});
    case 1: return body(std::uint16_t{});
    case 2: return body(std::uint32_t{});
    default: return body(std::uint64_t{});
  }
}

TUTTI_DEVICE std::uint32_t element_log2_of(DataType type) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8:
    case DataType::kFloat8E4M3:
    case DataType::kFloat8E5M2: return 0;
    case DataType::kFloat16:
    case DataType::kBfloat16: return 1;
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kFloat32: return 2;
    default: return 3;
  }
}

}  // namespace tutti::device

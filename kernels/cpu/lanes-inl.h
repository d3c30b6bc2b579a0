// Vectors of one target (one instruction set, for example AVX2): how each element type is loaded, combined, finished
// and stored. Only reduce-inl.h and float8-inl.h include this file, which is compiled once for each of the build's
// Highway targets that has vectors. Everything is in the namespace of that target.
//
// A value is one vector, or a Pair of values: 16-bit floats are widened into a pair of float32 vectors, 8-bit floats
// into a pair of such pairs, and a block is a Pair of values or of smaller blocks (BlockOf). combined(), scaled() and
// finished() take a vector, and an overload of each applies it to both halves of a Pair. So the code for a block of any
// depth is like that for a single vector, and the block can stay in registers.
//
// NaN: additions, multiplications and divisions may produce any NaN. finished() replaces each NaN with the canonical
// one, because the bits of the NaN depend on the order in which the compiler passes two operands to an instruction. min
// and max keep the first NaN, and finished() makes that NaN quiet (or canonical, if it divides). For 8-bit floats,
// store() makes every NaN canonical instead.
#if defined(TUTTI_KERNELS_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_CPU_LANES_INL_H_
#undef TUTTI_KERNELS_CPU_LANES_INL_H_
#else
#define TUTTI_KERNELS_CPU_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/float16.h"
#include "kernels/float8.h"

static_assert(std::endian::native == std::endian::little,
              "multiply() of bytes and the codecs of bfloat16 and float8 split words");

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

enum class Combine : std::uint8_t { kAdd, kMultiply, kMin, kMax };

template <class V>
struct Pair {
  V first;
  V second;
};

template <class V>
inline constexpr bool kIsFloatVector = std::is_floating_point_v<hn::TFromV<V>>;

// --- one vector ------------------------------------------------------------

// A quiet, positive NaN without payload, for float32 and float64.
template <class D>
HWY_INLINE hn::VFromD<D> canonical_nan(D d) {
  const hn::RebindToUnsigned<D> bits;
  if constexpr (sizeof(hn::TFromD<D>) == 4)
    return hn::BitCast(d, hn::Set(bits, kFloat32Nan));
  else
    return hn::BitCast(d, hn::Set(bits, kFloat64Nan));
}

template <class V>
HWY_INLINE V canonicalized(V value) {
  const hn::DFromV<V> d;
  return hn::IfThenElse(hn::IsNaN(value), canonical_nan(d), value);
}

template <class V>
HWY_INLINE V quieted(V value) {
  const hn::DFromV<V> d;
  const hn::RebindToUnsigned<decltype(d)> bits;
  using Bits = hn::TFromD<decltype(bits)>;
  constexpr Bits kQuietBit = sizeof(Bits) == 4 ? kFloat32QuietBit : static_cast<Bits>(kFloat64QuietBit);
  return hn::IfThenElse(hn::IsNaN(value), hn::Or(value, hn::BitCast(d, hn::Set(bits, kQuietBit))), value);
}

template <class V>
HWY_INLINE V multiply(V a, V b) {
  const hn::DFromV<V> d;
  if constexpr (sizeof(hn::TFromV<V>) == 1) {
    const hn::Repartition<std::uint16_t, decltype(d)> words;
    const auto a16 = hn::BitCast(words, a);
    const auto b16 = hn::BitCast(words, b);
    const auto low_byte = hn::Set(words, 0x00FF);
    const auto even = hn::And(hn::Mul(a16, b16), low_byte);
    const auto odd = hn::Mul(hn::AndNot(low_byte, a16), hn::ShiftRight<8>(b16));
    return hn::BitCast(d, hn::Or(even, odd));
  } else {
    return hn::Mul(a, b);
  }
}

// Returns value (+) next, where (+) is the operation. If two floats are equal, or `value` is NaN, min and max keep
// `value`.
template <Combine kOp, class V>
HWY_INLINE V combined(V value, V next) {
  if constexpr (kOp == Combine::kAdd) {
    return hn::Add(value, next);
  } else if constexpr (kOp == Combine::kMultiply) {
    return multiply(value, next);
  } else if constexpr (kIsFloatVector<V>) {
    const auto in_order = kOp == Combine::kMin ? hn::Le(value, next) : hn::Ge(value, next);
    return hn::IfThenElse(hn::Or(in_order, hn::IsNaN(value)), value, next);
  } else {
    return kOp == Combine::kMin ? hn::Min(value, next) : hn::Max(value, next);
  }
}

// Multiplies each element by `scale`. inf * 0 gives a NaN. The NaN is made canonical here, because a min or max that
// follows would keep its bits, and finished() only makes it quiet.
template <class V>
HWY_INLINE V scaled(V value, hn::TFromV<V> scale) {
  const auto product = multiply(value, hn::Set(hn::DFromV<V>(), scale));
  if constexpr (kIsFloatVector<V>)
    return canonicalized(product);
  else
    return product;
}

// Divides integers one at a time, because neither x86 nor NEON has a vector instruction for it. Averages of integers
// are too rare to justify a faster method.
template <class T>
HWY_NOINLINE void divide_lanes(T* lanes, std::size_t lane_count, std::uint32_t divisor) {
  using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    lanes[lane] = static_cast<T>(static_cast<Wide>(lanes[lane]) / static_cast<Wide>(divisor));
  }
}

template <class V>
HWY_INLINE V divided(V value, std::uint32_t divisor) {
  using T = hn::TFromV<V>;
  const hn::DFromV<V> d;
  if constexpr (kIsFloatVector<V>) {
    return hn::Div(value, hn::Set(d, static_cast<T>(divisor)));
  } else {
    HWY_ALIGN T lanes[hn::MaxLanes(hn::DFromV<V>())];
    hn::Store(value, d, lanes);
    divide_lanes(lanes, hn::Lanes(d), divisor);
    return hn::Load(d, lanes);
  }
}

// Divides by `divisor` if it is not 1, and then treats NaNs according to the rules at the top of this file. kAnyNan:
// store() of this element type replaces every NaN with the canonical one, so finished() need not replace NaNs.
template <Combine kOp, bool kAnyNan, class V>
HWY_INLINE V finished(V value, std::uint32_t divisor) {
  constexpr bool kSelects = kOp == Combine::kMin || kOp == Combine::kMax;
  if (divisor != 1) {
    value = divided(value, divisor);
    if constexpr (kIsFloatVector<V> && kSelects) value = canonicalized(value);
  }
  if constexpr (kAnyNan || !kIsFloatVector<V>)
    return value;
  else if constexpr (kSelects)
    return quieted(value);
  else
    return canonicalized(value);
}

// --- pairs ------------------------------------------------------------

template <Combine kOp, class V>
HWY_INLINE Pair<V> combined(Pair<V> value, Pair<V> next) {
  return {combined<kOp>(value.first, next.first), combined<kOp>(value.second, next.second)};
}

template <class V, class Scalar>
HWY_INLINE Pair<V> scaled(Pair<V> value, Scalar scale) {
  return {scaled(value.first, scale), scaled(value.second, scale)};
}

template <Combine kOp, bool kAnyNan, class V>
HWY_INLINE Pair<V> finished(Pair<V> value, std::uint32_t divisor) {
  return {finished<kOp, kAnyNan>(value.first, divisor), finished<kOp, kAnyNan>(value.second, divisor)};
}

// --- memory ------------------------------------------------------------

// kStreamed: the stores bypass the caches, if the target has such stores. Each stored block must begin at a multiple of
// kStreamAlignment.
enum class StoreMode : std::uint8_t { kCached, kStreamed };

// In bytes: the usual size of a cache line. No target has longer vectors.
inline constexpr std::size_t kStreamAlignment = 64;
static_assert(hn::MaxLanes(hn::ScalableTag<std::uint8_t>()) <= kStreamAlignment);

template <StoreMode kStoreMode, class D>
HWY_INLINE void store_vector(hn::VFromD<D> value, D d, hn::TFromD<D>* to) {
  if constexpr (kStoreMode == StoreMode::kStreamed)
    hn::Stream(value, d, to);
  else
    hn::StoreU(value, d, to);
}

// Defaults for the codecs.
struct CodecBase {
  // A block has 2^kDepth vectors of memory. All of them are loaded before the first one is stored.
  static constexpr int kDepth = 2;
  static constexpr bool kStoresAnyNan = false;  // true: store() replaces every NaN with the canonical one
};

// Codec<T> converts between elements of type T in memory, kLanes of them at a time, and a Value in registers. Scalar
// is the type in which values are combined.
template <class T>
struct Codec : CodecBase {
  using Scalar = T;
  using D = hn::ScalableTag<T>;
  using Value = hn::VFromD<D>;
  static constexpr std::size_t kLanes = hn::MaxLanes(D());

  static HWY_INLINE Value load(const T* from) { return hn::LoadU(D(), from); }

  template <StoreMode kStoreMode>
  static HWY_INLINE void store(Value value, T* to) {
    store_vector<kStoreMode>(value, D(), to);
  }
};

// A 32-bit word contains two bfloat16: the element with the even index in the lower half, the one with the odd index in
// the upper half. A bfloat16 in the upper half, with zeros in the lower half, is a float32 with the same value.
template <>
struct Codec<Bfloat16> : CodecBase {
  using Scalar = float;
  using D = hn::ScalableTag<float>;
  using Bits = hn::RebindToUnsigned<D>;
  using Value = Pair<hn::VFromD<D>>;
  static constexpr std::size_t kLanes = 2 * hn::MaxLanes(D());

  static HWY_INLINE Value load(const Bfloat16* from) {
    const auto words = hn::LoadU(Bits(), reinterpret_cast<const std::uint32_t*>(from));
    return {hn::BitCast(D(), hn::ShiftLeft<16>(words)), hn::BitCast(D(), hn::And(words, upper_half()))};
  }

  template <StoreMode kStoreMode>
  static HWY_INLINE void store(Value value, Bfloat16* to) {
    const auto words = hn::Or(hn::ShiftRight<16>(rounded(value.first)), hn::And(rounded(value.second), upper_half()));
    store_vector<kStoreMode>(words, Bits(), reinterpret_cast<std::uint32_t*>(to));
  }

 private:
  static HWY_INLINE hn::VFromD<Bits> upper_half() { return hn::Set(Bits(), 0xFFFF0000u); }

  // Rounds to nearest even, into the upper half. The addition does not damage a NaN, because in every NaN that
  // finished() returns the lower half is zero.
  static HWY_INLINE hn::VFromD<Bits> rounded(hn::VFromD<D> value) {
    const auto bits = hn::BitCast(Bits(), value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(Bits(), 1u));
    return hn::Add(hn::Add(bits, hn::Set(Bits(), 0x7FFFu)), odd);
  }
};

// On x86 with AVX2 or AVX-512, one instruction per direction (F16C) converts float16 by the rules of float16.h; tests
// compare the results with the definition. On other targets the conversions of Highway 1.0 do not follow these rules
// (NaN, ties to even), so Float16Lanes implements them with operations on the bits and on float32.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
inline constexpr bool kNativeFloat16 = true;
#else
inline constexpr bool kNativeFloat16 = false;
#endif

// Conversions of float16. One vector of memory contains as many float16 as two float32 vectors have elements.
struct Float16Lanes {
  using D = hn::ScalableTag<float>;
  using Bits = hn::RebindToUnsigned<D>;
  using Half = hn::Rebind<std::uint16_t, D>;
  using Whole = hn::Repartition<std::uint16_t, D>;
  using Native = hn::Rebind<hwy::float16_t, D>;

  static HWY_INLINE hn::VFromD<D> widened(hn::VFromD<Half> half) {
    if constexpr (kNativeFloat16) return hn::PromoteTo(D(), hn::BitCast(Native(), half));
    const Bits bits;
    const auto word = hn::PromoteTo(bits, half);
    const auto magnitude = hn::And(word, hn::Set(bits, 0x7FFFu));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(word, magnitude));
    const auto shifted = hn::ShiftLeft<13>(magnitude);
    const auto normal = hn::Add(shifted, hn::Set(bits, 112u << 23));
    const auto special = hn::Or(shifted, hn::Set(bits, kFloat32Infinity));  // infinity, or a NaN that is not quiet yet
    const auto as_number = hn::ConvertTo(D(), hn::BitCast(hn::RebindToSigned<D>(), magnitude));
    const auto subnormal = hn::BitCast(bits, hn::Mul(as_number, hn::Set(D(), 0x1p-24f)));
    auto wide = hn::IfThenElse(hn::Lt(magnitude, hn::Set(bits, 0x0400u)), subnormal, normal);
    wide = hn::IfThenElse(hn::Gt(magnitude, hn::Set(bits, 0x7BFFu)), special, wide);
    return hn::BitCast(D(), hn::Or(wide, sign));
  }

  static HWY_INLINE hn::VFromD<Half> narrowed(hn::VFromD<D> value) {
    if constexpr (kNativeFloat16) return hn::BitCast(Half(), hn::DemoteTo(Native(), value));
    const Bits bits;
    const auto word = hn::BitCast(bits, value);
    const auto magnitude = hn::And(word, hn::Set(bits, ~kFloat32Sign));
    const auto sign = hn::ShiftRight<16>(hn::Xor(word, magnitude));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(bits, 1u));
    const auto rebiased = hn::Sub(magnitude, hn::Set(bits, (112u << 23) - 0xFFFu));
    const auto infinity = hn::Set(bits, 0x7C00u);
    const auto normal = hn::Min(hn::ShiftRight<13>(hn::Add(rebiased, odd)), infinity);
    // The last fraction bit of a float32 in [0.5, 1) is worth 2^-24, like the last bit of a subnormal float16. So the
    // addition of 0.5 rounds the value to a multiple of 2^-24.
    const auto half = hn::Set(D(), 0.5f);
    const auto counted = hn::Add(hn::BitCast(D(), magnitude), half);
    const auto subnormal = hn::Sub(hn::BitCast(bits, counted), hn::BitCast(bits, half));
    const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(bits, 0x3FFu));
    auto narrow = hn::IfThenElse(hn::Lt(magnitude, hn::Set(bits, 113u << 23)), subnormal, normal);
    narrow = hn::IfThenElse(hn::Gt(magnitude, hn::Set(bits, kFloat32Infinity)), hn::Or(payload, hn::Set(bits, 0x7E00u)),
                            narrow);
    return hn::TruncateTo(Half(), hn::Or(narrow, sign));
  }
};

template <>
struct Codec<Float16> : CodecBase {
  using Scalar = float;
  using F16 = Float16Lanes;
  using Value = Pair<hn::VFromD<F16::D>>;
  static constexpr std::size_t kHalfLanes = hn::MaxLanes(F16::D());
  static constexpr std::size_t kLanes = 2 * kHalfLanes;

  static HWY_INLINE Value load(const Float16* from) {
    const auto* bits = reinterpret_cast<const std::uint16_t*>(from);
    return {F16::widened(hn::LoadU(F16::Half(), bits)), F16::widened(hn::LoadU(F16::Half(), bits + kHalfLanes))};
  }

  template <StoreMode kStoreMode>
  static HWY_INLINE void store(Value value, Float16* to) {
    const F16::Whole whole;
    store_vector<kStoreMode>(hn::Combine(whole, F16::narrowed(value.second), F16::narrowed(value.first)), whole,
                             reinterpret_cast<std::uint16_t*>(to));
  }
};

// A block is 2^kDepth consecutive vectors of memory.
template <class Value, int kDepth>
struct BlockOf {
  using Type = Pair<typename BlockOf<Value, kDepth - 1>::Type>;
};

template <class Value>
struct BlockOf<Value, 0> {
  using Type = Value;
};

template <class C, int kDepth, class T>
HWY_INLINE typename BlockOf<typename C::Value, kDepth>::Type load_block(const T* from) {
  if constexpr (kDepth == 0)
    return C::load(from);
  else
    return {load_block<C, kDepth - 1>(from), load_block<C, kDepth - 1>(from + (C::kLanes << (kDepth - 1)))};
}

template <class C, int kDepth, StoreMode kStoreMode, class Value, class T>
HWY_INLINE void store_block(const Value& value, T* to) {
  if constexpr (kDepth == 0) {
    C::template store<kStoreMode>(value, to);
  } else {
    store_block<C, kDepth - 1, kStoreMode>(value.first, to);
    store_block<C, kDepth - 1, kStoreMode>(value.second, to + (C::kLanes << (kDepth - 1)));
  }
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

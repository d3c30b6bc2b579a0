// Conversions between 8-bit floats and vectors of float32, by the rules of float8.h. They go through float16, because
// most machines have instructions that convert float16. Only reduce-inl.h includes this file, once for each of the
// build's Highway targets that has vectors.
//
// A 16-bit word contains two float8: the element with the even index in the lower byte, the one with the odd index in
// the upper byte. First, each float8 is brought into the upper byte of a word of its own: the even one is shifted up,
// and the odd one is already there. From then on even and odd elements are converted by the same code.
//
// - Widening: e5m2 is the upper half of a float16. If the exponent field of e4m3 is widened to that of float16, the
//   result is a float16 with 2^-8 times the value, and subnormals remain subnormals. So one multiplication by a
//   power of two remains.
// - Narrowing: float16 can represent each float8 and each midpoint between two neighbouring float8 (for e4m3, after
//   the multiplication by 2^-8, which comes first). The float32 is cut to 6 fraction bits, so that float16 represents
//   it exactly. The last remaining bit is set if any bit that was cut off was set (rounding to odd). Therefore the
//   value is rounded to nearest even only once, in 16-bit words, in the same way for normal values and subnormals.
//   float16 cannot represent the cut value exactly in two cases. If the magnitude is below half of the smallest float8,
//   the result is 0 in any case. If the magnitude is too large for float16, the result is the largest finite float8 in
//   any case.
#if defined(TUTTI_KERNELS_CPU_FLOAT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_CPU_FLOAT8_INL_H_
#undef TUTTI_KERNELS_CPU_FLOAT8_INL_H_
#else
#define TUTTI_KERNELS_CPU_FLOAT8_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/lanes-inl.h"
#include "kernels/float8.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

template <class Float8>
struct Float8Codec : CodecBase {
  using Scalar = float;
  using F16 = Float16Lanes;
  using Wide = hn::VFromD<F16::D>;
  using Words = hn::VFromD<F16::Whole>;
  using Value = Pair<Pair<Wide>>;  // the even elements, then the odd elements
  static constexpr bool kStoresAnyNan = true;
  static constexpr std::size_t kLanes = 4 * hn::MaxLanes(F16::D());
  // A block has 2^kDepth vectors of memory. The values of one vector take four registers, so a block of four vectors
  // (kDepth 2) would need 16. A block therefore has two vectors (kDepth 1), unless two vectors are shorter than
  // kStreamAlignment bytes, the least length of a block that Pass (reduce-inl.h) permits.
  static constexpr int kDepth = 2 * kLanes >= kStreamAlignment ? 1 : 2;

  static HWY_INLINE Value load(const Float8* from) {
    const auto words = hn::BitCast(F16::Whole(), hn::LoadU(Bytes(), reinterpret_cast<const std::uint8_t*>(from)));
    return {widened(hn::ShiftLeft<8>(words)), widened(words)};
  }

  template <StoreMode kStoreMode>
  static HWY_INLINE void store(Value value, Float8* to) {
    const auto even = hn::ShiftRight<8>(narrowed(value.first));
    const auto odd = hn::And(narrowed(value.second), hn::Set(F16::Whole(), 0xFF00));
    store_vector<kStoreMode>(hn::BitCast(Bytes(), hn::Or(even, odd)), Bytes(), reinterpret_cast<std::uint8_t*>(to));
  }

 private:
  using Bytes = hn::Repartition<std::uint8_t, F16::D>;
  static constexpr bool kE4M3 = std::is_same_v<Float8, Float8E4M3>;
  static constexpr int kScaleBits = kE4M3 ? 8 : 0;  // the float16 has 2^-kScaleBits times the value of the float8
  // The largest finite float8, as the bits of the float16 that widened() and narrowed() use for it (with 2^-kScaleBits
  // times the value).
  static constexpr std::uint16_t kLargest = Float8::kLargest << (8 - (kE4M3 ? 1 : 0));

  // Widens the float8 in the upper byte of each word. The lower byte is ignored.
  static HWY_INLINE Pair<Wide> widened(Words words) {
    const F16::Whole d;
    Words half;
    if constexpr (kE4M3) {
      const hn::RebindToSigned<F16::Whole> with_sign;
      const auto shifted = hn::BitCast(d, hn::ShiftRight<1>(hn::BitCast(with_sign, words)));
      half = hn::And(shifted, hn::Set(d, 0xBF80));  // the sign, a gap of one bit, the 7 bits of the magnitude
      // Only for a NaN, with all 7 bits set, does this addition carry into the gap. That completes the exponent
      // field of a NaN in float16.
      half = hn::Or(half, hn::And(hn::Add(half, hn::Set(d, 0x0080)), hn::Set(d, 0x4000)));
    } else {
      half = hn::And(words, hn::Set(d, 0xFF00));
    }
    const Pair<Wide> value = {F16::widened(hn::LowerHalf(F16::Half(), half)),
                              F16::widened(hn::UpperHalf(F16::Half(), half))};
    return scaled_by_power_of_two<kScaleBits>(value);
  }

  // Narrows each value to a float8, and returns it in the upper byte of a word. The lower byte of the word is
  // unspecified.
  static HWY_INLINE Words narrowed(Pair<Wide> value) {
    const F16::Whole d;
    const hn::RebindToSigned<F16::Whole> with_sign;
    value = scaled_by_power_of_two<-kScaleBits>(value);
    const auto half = hn::Combine(d, F16::narrowed(cut_to_odd(value.second)), F16::narrowed(cut_to_odd(value.first)));
    const auto sign = hn::And(half, hn::Set(d, 0x8000));
    const auto magnitude = hn::BitCast(with_sign, hn::Xor(half, sign));
    const auto nan = hn::RebindMask(d, hn::Gt(magnitude, hn::Set(with_sign, 0x7C00)));
    auto limited = hn::BitCast(d, hn::Min(magnitude, hn::Set(with_sign, kLargest)));
    if constexpr (kE4M3) limited = hn::Add(limited, limited);
    const auto word = hn::IfThenElse(nan, hn::Set(d, kFloat8Nan << 8), hn::Or(limited, sign));
    const auto odd = hn::And(hn::ShiftRight<8>(word), hn::Set(d, 1));
    return hn::Add(hn::Add(word, hn::Set(d, 0x007F)), odd);
  }

  // Multiplies by 2^kExponent. The product is exact unless it underflows, which happens only for values far below the
  // smallest float8.
  template <int kExponent>
  static HWY_INLINE Pair<Wide> scaled_by_power_of_two(Pair<Wide> value) {
    if constexpr (kExponent == 0) return value;
    const auto factor = hn::Set(F16::D(), kExponent > 0 ? 0x1p8f : 0x1p-8f);
    static_assert(kExponent == 0 || kExponent == 8 || kExponent == -8);
    return {hn::Mul(value.first, factor), hn::Mul(value.second, factor)};
  }

  // Keeps six of the 23 fraction bits. The last of them is also set if any bit below it was set.
  static HWY_INLINE Wide cut_to_odd(Wide value) {
    const F16::Bits bits;
    const auto below = hn::Set(bits, 0x0001FFFFu);
    const auto word = hn::BitCast(bits, value);
    const auto carried = hn::Add(hn::And(word, below), below);
    return hn::BitCast(F16::D(), hn::AndNot(below, hn::Or(word, carried)));
  }
};

template <>
struct Codec<Float8E4M3> : Float8Codec<Float8E4M3> {};

template <>
struct Codec<Float8E5M2> : Float8Codec<Float8E5M2> {};

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// The 8-bit floats against vectors of float32: the rules of float8.h, by way of float16, for which most machines have
// conversions. Included once per Highway target, by reduce-inl.h only.
//
// A word of 16 bits holds two float8: its even byte, shifted up, and its odd one each stand in the upper byte of a
// word, and from there on both are treated alike.
//
// - e5m2 is the upper half of a float16. e4m3 with its exponent field widened to float16's is a float16 of 2^-8 times
//   its value, and the subnormals of the one are subnormals of the other: one multiplication by a power of two is left.
// - Back: float16 holds each float8 and each midpoint between two of them, and the float32 is first cut to so few bits
//   that float16 holds it exactly, the last of them set where a bit was lost (rounding to odd). So the rounding to
//   nearest even happens once, in words, and is the same for subnormals. Cut to fewer bits than the midpoints need are
//   only values below half of the smallest float8, which become 0 either way.
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
  using Value = Pair<Pair<Wide>>;  // the even elements, the odd ones
  static constexpr bool kStoresAnyNan = true;
  static constexpr std::size_t kLanes = 4 * hn::MaxLanes(F16::D());
  // Each vector of memory takes four registers: two of them are enough, where they make the least block that may be.
  static constexpr int kDepth = 2 * kLanes >= kStreamAlignment ? 1 : 2;

  static HWY_INLINE Value load(const Float8* from) {
    const auto words = hn::BitCast(F16::Whole(), hn::LoadU(Bytes(), reinterpret_cast<const std::uint8_t*>(from)));
    return {widened(hn::ShiftLeft<8>(words)), widened(words)};
  }

  template <Stores kStores>
  static HWY_INLINE void store(Value value, Float8* to) {
    const auto even = hn::ShiftRight<8>(narrowed(value.first));
    const auto odd = hn::And(narrowed(value.second), hn::Set(F16::Whole(), 0xFF00));
    store_vector<kStores>(hn::BitCast(Bytes(), hn::Or(even, odd)), Bytes(), reinterpret_cast<std::uint8_t*>(to));
  }

 private:
  using Bytes = hn::Repartition<std::uint8_t, F16::D>;
  static constexpr bool kE4M3 = std::is_same_v<Float8, Float8E4M3>;
  static constexpr int kScaleBits = kE4M3 ? 8 : 0;  // the float16 is 2^-kScaleBits times the value
  // The largest finite value as that float16.
  static constexpr std::uint16_t kLargest = Float8::kLargest << (8 - (kE4M3 ? 1 : 0));

  // The float8 in the upper byte of each word; the lower byte is not looked at.
  static HWY_INLINE Pair<Wide> widened(Words words) {
    const F16::Whole d;
    Words half;
    if constexpr (kE4M3) {
      const hn::RebindToSigned<F16::Whole> with_sign;
      const auto shifted = hn::BitCast(d, hn::ShiftRight<1>(hn::BitCast(with_sign, words)));
      half = hn::And(shifted, hn::Set(d, 0xBF80));  // the sign, a gap, the 7 bits of the magnitude
      // Only a NaN, all 7 set, carries into the gap; with it float16's exponent is full too.
      half = hn::Or(half, hn::And(hn::Add(half, hn::Set(d, 0x0080)), hn::Set(d, 0x4000)));
    } else {
      half = hn::And(words, hn::Set(d, 0xFF00));
    }
    const Pair<Wide> value = {F16::widened(hn::LowerHalf(F16::Half(), half)),
                              F16::widened(hn::UpperHalf(F16::Half(), half))};
    return scaled_by_power_of_two<kScaleBits>(value);
  }

  // The float8 in the upper byte of each word, anything in the lower.
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

  // Exact but where it underflows, far below the smallest float8.
  template <int kExponent>
  static HWY_INLINE Pair<Wide> scaled_by_power_of_two(Pair<Wide> value) {
    if constexpr (kExponent == 0) return value;
    const auto factor = hn::Set(F16::D(), kExponent > 0 ? 0x1p8f : 0x1p-8f);
    static_assert(kExponent == 0 || kExponent == 8 || kExponent == -8);
    return {hn::Mul(value.first, factor), hn::Mul(value.second, factor)};
  }

  // Six fraction bits of the 23, the last of them also set where any below it was.
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

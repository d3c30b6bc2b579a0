// reduce_reference(): the reduction element by element, in plain scalar code. Tests compare the SIMD targets with it
// bit for bit. reduce() runs it as well, for few elements and on machines without vectors. It is written for
// readability and not for speed. It converts with the scalar functions of float16.h and float8.h. Tests check widening
// for every value, narrowing to float8 for every float32, and narrowing to 16-bit floats beside every value and every
// midpoint. The SIMD code uses only the types and constants of these two headers.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/float16.h"
#include "kernels/cpu/reduce.h"
#include "kernels/float8.h"

namespace tutti::kernels {
namespace {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;
template <class T>
inline constexpr bool kIsFloat8 = std::is_same_v<T, Float8E4M3> || std::is_same_v<T, Float8E5M2>;

// The type in which elements of T are combined: float for 16-bit and 8-bit floats, otherwise T.
template <class T>
using Wide = std::conditional_t<kIsHalf<T> || kIsFloat8<T>, float, T>;

template <class T>
Wide<T> load(const std::byte* buffer, std::size_t index) {
  T element;
  std::memcpy(&element, buffer + index * sizeof(T), sizeof(T));
  if constexpr (kIsHalf<T>)
    return widen(element);
  else if constexpr (kIsFloat8<T>)
    return std::bit_cast<float>(widened_bits(element));
  else
    return element;
}

template <class T>
void store(Wide<T> value, std::byte* buffer, std::size_t index) {
  T element;
  if constexpr (std::is_same_v<T, Float16>)
    element = narrow_to_float16(value);
  else if constexpr (std::is_same_v<T, Bfloat16>)
    element = narrow_to_bfloat16(value);
  else if constexpr (kIsFloat8<T>)
    element = narrowed_from_bits<T>(std::bit_cast<std::uint32_t>(value));
  else
    element = value;
  std::memcpy(buffer + index * sizeof(T), &element, sizeof(T));
}

// Replaces any NaN with the canonical NaN.
template <class W>
W canonicalized(W value) {
  if constexpr (std::is_same_v<W, float>)
    return std::isnan(value) ? std::bit_cast<float>(kFloat32Nan) : value;
  else if constexpr (std::is_same_v<W, double>)
    return std::isnan(value) ? std::bit_cast<double>(kFloat64Nan) : value;
  else
    return value;
}

// Makes a NaN quiet. Its sign and payload are kept.
template <class W>
W quieted(W value) {
  if constexpr (std::is_same_v<W, float>) {
    return std::isnan(value) ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | kFloat32QuietBit) : value;
  } else if constexpr (std::is_same_v<W, double>) {
    return std::isnan(value) ? std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) | kFloat64QuietBit) : value;
  } else {
    return value;
  }
}

template <class W>
W plus(W a, W b) {
  if constexpr (std::is_integral_v<W>)
    return static_cast<W>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  else
    return canonicalized(a + b);
}

template <class W>
W times(W a, W b) {
  if constexpr (std::is_integral_v<W>)
    return static_cast<W>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  else
    return canonicalized(a * b);
}

template <class W>
W combine(ReduceOp op, W value, W next) {
  if (op == ReduceOp::kProd) return times(value, next);
  if (op != ReduceOp::kMin && op != ReduceOp::kMax) return plus(value, next);
  if constexpr (std::is_floating_point_v<W>) {
    if (std::isnan(value)) return value;
    if (std::isnan(next)) return next;
  }
  const bool better = op == ReduceOp::kMin ? next < value : next > value;
  return better ? next : value;
}

template <class W>
W scaled(W value, const Scale& scale) {
  if constexpr (std::is_floating_point_v<W>)
    return times(value, static_cast<W>(scale.real));
  else
    return times(value, static_cast<W>(scale.integer));
}

template <class W>
W divided(W value, std::uint32_t divisor) {
  if constexpr (std::is_floating_point_v<W>)
    return canonicalized(value / static_cast<W>(divisor));
  else if constexpr (std::is_signed_v<W>)
    return static_cast<W>(std::int64_t{value} / std::int64_t{divisor});
  else
    return static_cast<W>(std::uint64_t{value} / divisor);
}

template <class T>
void reduce_elements(const Reduction& reduction, std::span<const std::byte* const> sources,
                     std::span<std::byte* const> destinations, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    Wide<T> value{};
    for (std::size_t source = 0; source < sources.size(); ++source) {
      Wide<T> operand = load<T>(sources[source], i);
      if (std::cmp_equal(source, reduction.scaled_source)) operand = scaled(operand, reduction.scale);
      value = source == 0 ? operand : combine(reduction.op, value, operand);
    }
    if (reduction.divisor != 1) value = divided(value, reduction.divisor);
    for (std::byte* destination : destinations) store<T>(quieted(value), destination, i);
  }
}

void copy(const std::byte* source, std::span<std::byte* const> destinations, std::size_t bytes) {
  for (std::byte* destination : destinations) {
    for (std::size_t i = 0; i < bytes; ++i) destination[i] = source[i];
  }
}

}  // namespace

void reduce_reference(const Reduction& reduction, std::span<const std::byte* const> sources,
                      std::span<std::byte* const> destinations, std::size_t count) {
  if (sources.size() == 1 && reduction.scaled_source < 0 && reduction.divisor == 1) {
    return copy(sources[0], destinations, count * size_of(reduction.type));
  }
  const auto run = [&]<class T>(T) { reduce_elements<T>(reduction, sources, destinations, count); };
  switch (reduction.type) {
    case DataType::kInt8: return run(std::int8_t{});
    case DataType::kUint8: return run(std::uint8_t{});
    case DataType::kInt32: return run(std::int32_t{});
    case DataType::kUint32: return run(std::uint32_t{});
    case DataType::kInt64: return run(std::int64_t{});
    case DataType::kUint64: return run(std::uint64_t{});
    case DataType::kFloat16: return run(Float16{});
    case DataType::kFloat32: return run(float{});
    case DataType::kFloat64: return run(double{});
    case DataType::kBfloat16: return run(Bfloat16{});
    case DataType::kFloat8E4M3: return run(Float8E4M3{});
    case DataType::kFloat8E5M2: return run(Float8E5M2{});
  }
}

}  // namespace tutti::kernels

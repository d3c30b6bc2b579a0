#include "nccl/scalar.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/assert.h"
#include "kernels/cpu/float16.h"
#include "kernels/float8.h"
#include "nccl/streams.h"

namespace tutti::nccl {
namespace {

template <class T>
T element(const void* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

template <class T>
Scale integer(const void* bytes) {
  return {.real = 1.0, .integer = static_cast<std::int64_t>(element<T>(bytes))};
}

template <class T>
Scale real(const void* bytes) {
  return {.real = static_cast<double>(element<T>(bytes)), .integer = 1};
}

template <class T>
Scale narrow(const void* bytes) {
  return {.real = static_cast<double>(kernels::widen(element<T>(bytes))), .integer = 1};
}

template <class Float8>
Scale float8(const void* bytes) {
  return {.real = static_cast<double>(std::bit_cast<float>(kernels::widened_bits(element<Float8>(bytes)))),
          .integer = 1};
}

}  // namespace

Scale decode_scale(DataType type, const void* bytes) {
  switch (type) {
    case DataType::kInt8: return integer<std::int8_t>(bytes);
    case DataType::kUint8: return integer<std::uint8_t>(bytes);
    case DataType::kInt32: return integer<std::int32_t>(bytes);
    case DataType::kUint32: return integer<std::uint32_t>(bytes);
    case DataType::kInt64: return integer<std::int64_t>(bytes);
    case DataType::kUint64: return integer<std::uint64_t>(bytes);
    case DataType::kFloat16: return narrow<kernels::Float16>(bytes);
    case DataType::kFloat32: return real<float>(bytes);
    case DataType::kFloat64: return real<double>(bytes);
    case DataType::kBfloat16: return narrow<kernels::Bfloat16>(bytes);
    case DataType::kFloat8E4M3: return float8<kernels::Float8E4M3>(bytes);
    case DataType::kFloat8E5M2: return float8<kernels::Float8E5M2>(bytes);
  }
  return {};
}

Result<Scale> scale_of(const CustomOp& op, void* stream) {
  if (op.scalar == nullptr) return op.scale;
  std::array<std::byte, 8> bytes{};
  TUTTI_TRY(
      read_in_stream("reading the factor of a pre-multiplied sum", op.scalar, bytes.data(), size_of(op.type), stream));
  return decode_scale(op.type, bytes.data());
}

}  // namespace tutti::nccl

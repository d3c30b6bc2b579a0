// CPU reduction kernels: reduce any number of sources into any number of destinations, in one pass, in registers.
//
//   value[i] = s0[i] (+) s1[i] (+) ... (+) s(n-1)[i]        left to right, in the order of `sources`
//   every destination[i] = finish(value[i])                 finish: division by `divisor` if it is not 1
//
// Thread-safe, without state and without allocations. The SIMD code uses Google Highway, which selects the best
// target of the machine once, at run time.
//
// The rules for rounding and NaN are the same on every target, for every length and every alignment:
// - 16-bit and 8-bit floats are widened to float32, reduced as float32, and rounded to nearest even once, when they
//   are stored. A reduction of one source without a factor and with divisor 1 copies the bits.
// - If a value is out of the range of float8 when it is stored, it becomes the largest finite value of the same
//   sign: 448 for e4m3, 57344 for e5m2. This also holds for infinities, even if min or max selects an infinity of
//   e5m2. Other floats overflow to infinity.
// - A division of floats is a true division by `divisor`, rounded to the type in which values are added. `scale` is
//   rounded to that type, too.
// - Fused multiply-add is never used, and subnormals are never flushed to zero, whatever floating-point modes the
//   calling thread has set.
// - If a sum, product, scaling or division gives NaN, the result is the canonical NaN, whatever NaNs the operands
//   were: positive, quiet, without payload (float16 0x7E00, bfloat16 0x7FC0, float32 0x7FC00000, float64
//   0x7FF8000000000000). For both types of float8 it is 0x7F.
// - min and max: if an operand is NaN, the result is NaN (the first NaN, made quiet; for float8 the canonical one).
//   If two values are equal, which includes -0 and +0, the first one is kept.
// - Integers wrap modulo 2^bits. The division of an average truncates towards zero.
#pragma once

#include <cstddef>
#include <span>

#include "tutti/types.h"

namespace tutti::kernels {

// Maximum number of sources in one pass. A caller with more sources must refuse them, or split the sum. Splitting
// rounds narrow floats more often.
inline constexpr std::size_t kMaxSources = 1024;

struct Reduction {
  DataType type = DataType::kFloat32;
  // kAvg and kPreMulSum add their operands. Their division or scaling is set in the fields below.
  ReduceOp op = ReduceOp::kSum;
  // Index of the source whose elements are multiplied by `scale` before they are combined; -1 if none is.
  std::ptrdiff_t scaled_source = -1;
  Scale scale;
  std::uint32_t divisor = 1;  // divides the whole value, after the last operand
  // The number of bytes that the caller moves before the destinations are read again; 0 if the caller does not know
  // it. The larger of this number and the bytes of this pass counts. If it exceeds the size of the caches, stores
  // bypass the caches, unless the destinations differ in alignment relative to 64 bytes or a destination is also a
  // source. A plain copy of one source ignores this field.
  std::size_t bytes_until_reuse = 0;
};

// Reduces `count` elements. Each source and destination is `count` elements long and aligned to the element size. A
// destination may be identical to a source, but must not overlap a source in any other way. Destinations must not
// overlap each other. Requires 1 <= sources.size() <= kMaxSources and destinations.size() >= 1.
void reduce(const Reduction& reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> destinations, std::size_t count);

// The same in plain scalar code. Every target is compared with this reference.
void reduce_reference(const Reduction& reduction, std::span<const std::byte* const> sources,
                      std::span<std::byte* const> destinations, std::size_t count);

// Name of the target in use, for example "AVX2"; for logs and benchmarks.
const char* target_name();

}  // namespace tutti::kernels

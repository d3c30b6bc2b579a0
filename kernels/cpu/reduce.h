// CPU reduction kernels: reduce any number of sources into any number of destinations, in one pass, in registers.
//
//   value[i] = s0[i] (+) s1[i] (+) ... (+) s(n-1)[i]        left to right, in the order of `sources`
//   every destination[i] = finish(value[i])                 finish: division by `divisor` if it is not 1
//
// All functions are thread-safe and make no allocations. The SIMD code uses Google Highway. A target is one instruction
// set, for example AVX2; Highway selects the best target that the build contains and the machine supports, once, at run
// time.
//
// The rules for rounding and NaN are the same on every target, for every length and every alignment:
// - 16-bit and 8-bit floats are widened to float32, reduced as float32, and rounded to their own type (to nearest even)
//   once, when they are stored. A reduction of one source without a factor and with divisor 1 copies the bits.
// - If a value is out of the range of float8 when it is stored, it becomes the largest finite value of the same
//   sign: 448 for e4m3, 57344 for e5m2. An infinity also becomes the largest finite value, even if min or max selects
//   an infinity of e5m2; only a copy of the bits keeps it. Values of the other floating-point types overflow to
//   infinity.
// - Floats are divided by `divisor` and not multiplied by its reciprocal. The quotient is rounded to the type in which
//   values are added: float64 for float64, otherwise float32. `scale` and `divisor` are rounded to that type, too.
// - Fused multiply-add is never used, and subnormals are never flushed to zero, whatever floating-point modes the
//   calling thread has set.
// - If a sum, product, scaling or division gives NaN, the result is the canonical NaN, whatever NaNs the operands
//   were: positive, quiet, without payload (float16 0x7E00, bfloat16 0x7FC0, float32 0x7FC00000, float64
//   0x7FF8000000000000). For both types of float8 it is 0x7F.
// - min and max: if an operand is NaN, the result is NaN: the NaN of the first source that has one, made quiet, or the
//   canonical NaN for float8. If two values are equal, also if they are -0 and +0, the value of the first source is
//   kept.
// - Integers wrap modulo 2^bits. The division of an average truncates towards zero.
#pragma once

#include <cstddef>
#include <span>

#include "tutti/types.h"

namespace tutti::kernels {

// Maximum number of sources in one call of reduce(). A caller with more sources must refuse them or split the sum into
// several calls, which rounds 16-bit and 8-bit floats more often.
inline constexpr std::size_t kMaxSources = 1024;

struct Reduction {
  DataType type = DataType::kFloat32;
  // kAvg and kPreMulSum only add their operands, like kSum. For kAvg, the caller also sets `divisor`, and for
  // kPreMulSum `scaled_source` and `scale`.
  ReduceOp op = ReduceOp::kSum;
  // Index of the one source that is multiplied by `scale` before its elements are combined; -1: no source is.
  std::ptrdiff_t scaled_source = -1;
  Scale scale;
  std::uint32_t divisor = 1;  // the combined value of all sources is divided by it; at least 1
  // The number of bytes that the caller moves before the destinations are read again; 0 if the caller does not know it.
  // On x86, most stores bypass the caches if this number, or the number of bytes of all sources and destinations of the
  // call, is at least kStreamBytes (reduce-inl.h), because the destinations would be evicted before they are read
  // again. The stores use the caches nevertheless if a destination is shorter than 64 bytes, if the destinations differ
  // in alignment relative to 64 bytes, or if a destination is also a source. This field has no effect on a plain copy
  // (one source, no scaling, divisor 1), on a call with very few elements, and on a machine without vectors.
  std::size_t bytes_until_reuse = 0;
};

// Reduces `count` elements. Each source and destination is `count` elements long and aligned to the element size. A
// destination may be identical to a source, but must not overlap a source in any other way. Destinations must not
// overlap each other. Requires 1 <= sources.size() <= kMaxSources and destinations.size() >= 1.
void reduce(const Reduction& reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> destinations, std::size_t count);

// Does the same as reduce(), with the same bits, in plain scalar code. Tests compare every target of the machine with
// it. Does not check the arguments, and uses the floating-point modes of the calling thread, which must be the default
// ones.
void reduce_reference(const Reduction& reduction, std::span<const std::byte* const> sources,
                      std::span<std::byte* const> destinations, std::size_t count);

// Returns the name of the target that reduce() uses on this machine, for example "AVX2", for logs and benchmarks.
const char* target_name();

}  // namespace tutti::kernels

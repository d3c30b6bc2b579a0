// CPU reduction kernels: any number of sources into any number of destinations, in one pass, in registers.
//
//   value[i] = s0[i] (+) s1[i] (+) ... (+) s(n-1)[i]        left to right, in the order of `sources`
//   every destination[i] = finish(value[i])                 finish: divide by `divisor` where that is not 1
//
// Thread-safe, no state, no allocation. SIMD by Google Highway, chosen once at run time for the machine's best target.
//
// Rounding and NaN, the same on every target and for every length and alignment:
// - 16-bit and 8-bit floats are widened to float32, reduced there, and rounded to nearest even once, at the store. A
//   step of one source with no factor and divisor 1 is a copy of the bits.
// - what is past the range of a float8 when it is stored becomes the largest finite value of that sign: 448 for e4m3,
//   57344 for e5m2. That holds for infinities too, also one of e5m2 that min or max picks. Other floats overflow to
//   infinity.
// - floats divide truly, by `divisor` rounded to the type in which they are added; `scale` is rounded to that type too.
// - no fused multiply-add, no flushing of subnormals, whatever floating-point modes the calling thread has set.
// - where a sum, product, factor or division gives NaN, it is the canonical one, whichever NaNs went in: positive,
//   quiet, no payload (float16 0x7E00, bfloat16 0x7FC0, float32 0x7FC00000, float64 0x7FF8000000000000); for both
//   types of float8 it is 0x7F.
// - min and max: a NaN operand gives NaN (the first one met, made quiet; for float8 the canonical one); of two equal
//   values (also -0 and +0) the one met first stays.
// - integers wrap modulo 2^bits; division of an average truncates towards zero.
#pragma once

#include <cstddef>
#include <span>

#include "tutti/types.h"

namespace tutti::kernels {

// The most sources of one pass. Longer sums are for the caller to refuse or to split (splitting rounds narrow floats
// more often).
inline constexpr std::size_t kMaxSources = 1024;

struct Reduction {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;       // kAvg and kPreMulSum add; what makes them special stands in the fields below
  std::ptrdiff_t scaled_source = -1;  // index of the source whose elements are multiplied by `scale` first; -1: none
  Scale scale;
  std::uint32_t divisor = 1;  // of the whole value, after the last operand
  // How many bytes the caller moves before the destinations are read again, where it knows; else 0, and what this pass
  // moves is taken instead. Where that is more than the caches hold, stores go around them; aligning all destinations
  // alike to 64 bytes lets them.
  std::size_t bytes_until_reuse = 0;
};

// Reduces `count` elements. Each source and destination is `count` elements long and aligned to the element. A
// destination may be the same address as a source, but must not overlap one otherwise; destinations must not overlap
// each other. 1 <= sources.size() <= kMaxSources, destinations.size() >= 1.
void reduce(const Reduction& reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> destinations, std::size_t count);

// The same in plain scalar code: the reference that every target is checked against.
void reduce_reference(const Reduction& reduction, std::span<const std::byte* const> sources,
                      std::span<std::byte* const> destinations, std::size_t count);

// Name of the target in use ("AVX2"), for logs and benchmarks.
const char* target_name();

}  // namespace tutti::kernels

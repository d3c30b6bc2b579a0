// Detects the vector instructions of this machine. src/standalone/highway.cc uses it to replace Highway's own detection
// (hwy::SupportedTargets()), so that Tutti's shared libraries can be loaded on machines without Highway.
#pragma once

#include <cstdint>

namespace tutti::kernels {

// Returns the targets from which reduce() may choose on this machine, as a set of Highway's bits: the target for which
// the whole program is compiled and, on x86, each of HWY_SSE4, HWY_AVX2 and HWY_AVX3 that the machine supports. Highway
// skips a target in this set for which kernels/cpu/reduce.cc has no code in this build: a target that is worse than the
// one for which the whole program is compiled, or one that a build with a sanitizer leaves out. May be called by any
// thread.
std::int64_t supported_targets();

}  // namespace tutti::kernels

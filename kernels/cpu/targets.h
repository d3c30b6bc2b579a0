// Detects the vector instructions of this machine. src/standalone/highway.cc uses it to replace Highway's own detection
// (hwy::SupportedTargets()), so that Tutti's shared libraries can be loaded on machines without Highway.
#pragma once

#include <cstdint>

namespace tutti::kernels {

// Returns the targets that this machine supports, as a set of Highway's bits (HWY_SSE4, HWY_AVX2, ...). The result
// always includes the target for which the whole program is compiled. It includes another target only if
// kernels/cpu/reduce.cc has code for it in a build without sanitizers. (A build with a sanitizer leaves out some
// targets; Highway skips those.) May be called by any thread.
std::int64_t supported_targets();

}  // namespace tutti::kernels

// reduce(): checks the arguments, executes copies that need no arithmetic, runs calls with only a few elements in
// scalar code, and passes all other calls to the best target of this machine.
#include "kernels/cpu/reduce.h"

// Two groups of Highway's targets are disabled in every build: SSSE3, because machines without SSE4 are too rare; and
// Arm's SVE and RISC-V's RVV, because the vector length of most of them is unknown at compile time, and the blocks of
// lanes-inl.h cannot contain such vectors.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// On x86, a build with AddressSanitizer or ThreadSanitizer contains only AVX2 and, unless the whole program is compiled
// for AVX2 or better, Highway's target without SIMD instructions, because each further target costs about a minute of
// compile time.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reduce.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "base/assert.h"
#include "kernels/cpu/float16.h"

#if HWY_TARGET != HWY_SCALAR
#include "kernels/cpu/reduce-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
// This target has no vectors, so it uses the scalar reference directly.
void run_reduction(const Reduction& reduction, std::span<const std::byte* const> sources,
                   std::span<std::byte* const> destinations, std::size_t count) {
  reduce_reference(reduction, sources, destinations, count);
}
#endif

const char* name_of_target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cstdint>
#include <cstring>
#if HWY_ARCH_X86
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace tutti::kernels {

HWY_EXPORT(run_reduction);
HWY_EXPORT(name_of_target);

namespace {

constexpr std::size_t kFewElements = 8;

void check_buffer(const std::byte* buffer, std::size_t element_bytes) {
  TUTTI_ASSERT(buffer != nullptr);
  TUTTI_ASSERT(reinterpret_cast<std::uintptr_t>(buffer) % element_bytes == 0, "{} is not aligned to {} bytes",
               static_cast<const void*>(buffer), element_bytes);
}

void check(const Reduction& reduction, std::span<const std::byte* const> sources,
           std::span<std::byte* const> destinations, std::size_t count) {
  TUTTI_ASSERT(is_valid(reduction.type) && is_valid(reduction.op));
  TUTTI_ASSERT(!sources.empty() && sources.size() <= kMaxSources, "{} sources", sources.size());
  TUTTI_ASSERT(!destinations.empty());
  TUTTI_ASSERT(reduction.divisor >= 1);
  TUTTI_ASSERT(reduction.scaled_source >= -1 && reduction.scaled_source < std::ssize(sources),
               "source {} of {} is to be scaled", reduction.scaled_source, sources.size());
  if (count == 0) return;
  const std::size_t element_bytes = size_of(reduction.type);
  for (const std::byte* source : sources) check_buffer(source, element_bytes);
  for (const std::byte* destination : destinations) check_buffer(destination, element_bytes);
}

// Sets the default floating-point modes for its lifetime, and then restores the modes of the calling thread. The
// default modes are needed because the calling thread may flush subnormals to zero, use another rounding mode, or trap
// on exceptions (some maths libraries configure threads in this way).
class DefaultFloatingPoint {
 public:
#if HWY_ARCH_X86
  DefaultFloatingPoint() {
    if (differs()) _mm_setcsr(kDefault);
  }
  ~DefaultFloatingPoint() {
    if (differs()) _mm_setcsr(callers_);
  }
#else
  DefaultFloatingPoint() { std::fegetenv(&callers_), std::fesetenv(FE_DFL_ENV); }
  ~DefaultFloatingPoint() { std::fesetenv(&callers_); }
#endif
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
#if HWY_ARCH_X86
  // MXCSR: all exceptions masked, rounding to nearest even, subnormals not flushed to zero.
  static constexpr unsigned kDefault = 0x1F80;
  static constexpr unsigned kStickyFlags = 0x003F;  // flags of past exceptions, which do not affect later operations
  bool differs() const { return (callers_ & ~kStickyFlags) != kDefault; }
  const unsigned callers_ = _mm_getcsr();
#else
  std::fenv_t callers_;
#endif
};

}  // namespace

void reduce(const Reduction& reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> destinations, std::size_t count) {
  check(reduction, sources, destinations, count);
  if (count == 0) return;
  if (sources.size() > 1 || reduction.scaled_source >= 0 || reduction.divisor != 1) {
    const DefaultFloatingPoint modes;
    // For at most kFewElements operands the scalar code is faster (measured), because filling a vector takes longer.
    if (count * sources.size() <= kFewElements) return reduce_reference(reduction, sources, destinations, count);
    HWY_DYNAMIC_DISPATCH(run_reduction)(reduction, sources, destinations, count);
    return;
  }
  const std::size_t bytes = count * size_of(reduction.type);
  for (std::byte* destination : destinations) {
    if (destination != sources[0]) std::memcpy(destination, sources[0], bytes);
  }
}

const char* target_name() { return HWY_DYNAMIC_DISPATCH(name_of_target)(); }

}  // namespace tutti::kernels
#endif

// Checks the arguments, takes the copies that need no arithmetic, and hands the rest to the best target of this
// machine.
#include "kernels/cpu/reduce.h"

// Left out: SSSE3 (no machine without SSE4 is worth the code), and vectors whose length the compiler does not know,
// which the blocks of lanes-inl.h cannot hold.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Sanitizers look at one vector target and the fallback: each more costs a minute of compiling.
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
// One lane at a time is what the reference does.
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

// The caller's thread may flush subnormals, round otherwise or trap (some maths libraries set it so): not in here.
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
  static constexpr unsigned kDefault = 0x1F80;      // every exception masked, to nearest even, no flushing
  static constexpr unsigned kStickyFlags = 0x003F;  // what happened, not how to go on
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
    // Filling vectors with these would take longer than adding them one by one. Measured.
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

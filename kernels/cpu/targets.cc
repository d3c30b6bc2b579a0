#include "kernels/cpu/targets.h"

#include <hwy/targets.h>

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

namespace tutti::kernels {

#if HWY_ARCH_X86

namespace {

// Feature bits in CPUID leaves 1, 7 and 0x80000001, from the processors' manuals. The bits of AVX2 and AVX-512 are not
// among them: these two have registers that the operating system must save, and __builtin_cpu_supports(), which tests
// for them, also checks that the system saves these registers.
constexpr unsigned kPclmul = 1u << 1, kFma = 1u << 12, kAes = 1u << 25, kF16c = 1u << 29;  // leaf 1, ECX
constexpr unsigned kBmi = 1u << 3, kBmi2 = 1u << 8;                                        // leaf 7, EBX
constexpr unsigned kLzcnt = 1u << 5;                                                       // leaf 0x80000001, ECX

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf leaf(unsigned number) {
  Leaf found;
  if (__get_cpuid_count(number, 0, &found.eax, &found.ebx, &found.ecx, &found.edx) == 0) return {};
  return found;
}

bool has_all(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }

}  // namespace

std::int64_t supported_targets() {
  std::int64_t targets = HWY_STATIC_TARGET;
  const unsigned basic = leaf(1).ecx;
  if (!__builtin_cpu_supports("sse4.2") || !has_all(basic, kPclmul | kAes)) return targets;
  targets |= HWY_SSE4;
  if (!__builtin_cpu_supports("avx2") || !has_all(basic, kFma | kF16c) || !has_all(leaf(7).ebx, kBmi | kBmi2) ||
      !has_all(leaf(0x80000001).ecx, kLzcnt)) {
    return targets;
  }
  targets |= HWY_AVX2;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd")) {
    targets |= HWY_AVX3;
  }
  return targets;
}

#else

// On other architectures, reduce() uses the target for which the whole program is compiled. On 64-bit Arm, reduce.cc
// has code for no other target.
std::int64_t supported_targets() { return HWY_STATIC_TARGET; }

#endif

}  // namespace tutti::kernels

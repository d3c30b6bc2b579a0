// The primitives of port.h in PTX. Included only by port.h, under nvcc. All pointers that the functions take are
// generic addresses. They point into global memory, except that of store_together(), which points into shared memory.
#pragma once

#if defined(__CUDACC__)

#include <cstdint>

#include "kernels/float8.h"

#define TUTTI_DEVICE __device__ __forceinline__
#define TUTTI_DEVICE_APART __device__ __noinline__
#define TUTTI_UNROLL _Pragma("unroll")

namespace tutti::device::port {

struct Site {
  TUTTI_DEVICE static constexpr Site current() { return {}; }
};

// get() refers to the array itself, and not to a stored pointer. So nvcc uses the instructions for shared memory, also
// in functions that are called. A generic address costs up to two more instructions for each access on sm_90
// (docs/results/2026-11-28-gpu.md).
template <class T>
struct BlockMemory {
  TUTTI_DEVICE static T& get() {
    __shared__ __align__(16) unsigned char memory[sizeof(T)];
    return *reinterpret_cast<T*>(memory);
  }
};

TUTTI_DEVICE unsigned thread() { return threadIdx.x; }
TUTTI_DEVICE unsigned threads() { return blockDim.x; }
TUTTI_DEVICE unsigned block() { return blockIdx.x; }
TUTTI_DEVICE unsigned blocks() { return gridDim.x; }

TUTTI_DEVICE unsigned anew(unsigned value) {
  asm volatile("mov.u32 %0, %0;" : "+r"(value));
  return value;
}

TUTTI_DEVICE void block_barrier(Site = {}) { __syncthreads(); }
TUTTI_DEVICE void warp_barrier(Site = {}) { __syncwarp(); }
TUTTI_DEVICE bool warp_any(bool vote, Site = {}) { return __any_sync(0xffffffffu, vote) != 0; }

TUTTI_DEVICE std::uint64_t load_acquire(const std::uint64_t* from, Site = {}) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
TUTTI_DEVICE std::uint64_t load_relaxed(const std::uint64_t* from, Site = {}) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
TUTTI_DEVICE void store_release(std::uint64_t* to, std::uint64_t value, Site = {}) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
TUTTI_DEVICE void store_relaxed(std::uint64_t* to, std::uint64_t value, Site = {}) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
TUTTI_DEVICE void store_together(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.relaxed.cta.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
TUTTI_DEVICE std::uint64_t compare_and_swap(std::uint64_t* at, std::uint64_t expected, std::uint64_t wanted,
                                            Site = {}) {
  std::uint64_t old;
  asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(old)
               : "l"(at), "l"(expected), "l"(wanted)
               : "memory");
  return old;
}

TUTTI_DEVICE Word16 load16(const void* from, Site = {}) {
  Word16 word;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from)
               : "memory");
  return word;
}
TUTTI_DEVICE void store16(void* to, Word16 word, Site = {}) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w)
               : "memory");
}
TUTTI_DEVICE Word16 load16_volatile(const void* from, Site = {}) {
  Word16 word;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
               : "l"(from)
               : "memory");
  return word;
}
TUTTI_DEVICE void store16_volatile(void* to, Word16 word, Site = {}) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(word.x), "r"(word.y), "r"(word.z),
               "r"(word.w)
               : "memory");
}
TUTTI_DEVICE Word16 load_line(const void* from, Site = {}) { return load16_volatile(from); }
TUTTI_DEVICE void store_line(void* to, Word16 word, Site = {}) { store16_volatile(to, word); }

template <class T>
TUTTI_DEVICE T load(const T* from, Site = {}) {
  static_assert(sizeof(T) <= 8);
  if constexpr (sizeof(T) == 8) {
    std::uint64_t value;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return static_cast<T>(value);
  } else if constexpr (sizeof(T) == 4) {
    std::uint32_t value;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return static_cast<T>(value);
  } else if constexpr (sizeof(T) == 2) {
    std::uint16_t value;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(value) : "l"(from) : "memory");
    return static_cast<T>(value);
  } else {
    std::uint32_t value;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return static_cast<T>(value);
  }
}
template <class T>
TUTTI_DEVICE void store(T* to, T value, Site = {}) {
  static_assert(sizeof(T) <= 8);
  if constexpr (sizeof(T) == 8) {
    asm volatile("st.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
  } else if constexpr (sizeof(T) == 2) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(value) : "memory");
  } else {
    asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "r"(static_cast<std::uint32_t>(value)) : "memory");
  }
}

TUTTI_DEVICE std::uint64_t now_ns() {
  std::uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}
// Does nothing, because the loads in a waiting loop take long enough.
TUTTI_DEVICE void pause(Site = {}) {}

TUTTI_DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
TUTTI_DEVICE float multiply(float a, float b) { return __fmul_rn(a, b); }
TUTTI_DEVICE float divide(float a, float b) { return __fdiv_rn(a, b); }
TUTTI_DEVICE double add(double a, double b) { return __dadd_rn(a, b); }
TUTTI_DEVICE double multiply(double a, double b) { return __dmul_rn(a, b); }
TUTTI_DEVICE double divide(double a, double b) { return __ddiv_rn(a, b); }

TUTTI_DEVICE float half_to_float(std::uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
TUTTI_DEVICE std::uint16_t float_to_half(float value) {
  std::uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
inline constexpr bool kConvertsFloat8 = true;
#else
inline constexpr bool kConvertsFloat8 = false;
#endif

// Converts two float8 in 16 bits to two float32 and back. The first value is in the lower byte.
template <class Format>
struct Float8Conversion {
  TUTTI_DEVICE static void widen(std::uint16_t pair, float& first, float& second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    std::uint32_t halves;
    if constexpr (Format::kFractionBits == 3)
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
    else
      asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(pair));
    first = half_to_float(static_cast<std::uint16_t>(halves));
    second = half_to_float(static_cast<std::uint16_t>(halves >> 16));
#else
    first = __uint_as_float(kernels::widened_bits(Format{static_cast<std::uint8_t>(pair)}));
    second = __uint_as_float(kernels::widened_bits(Format{static_cast<std::uint8_t>(pair >> 8)}));
#endif
  }
  TUTTI_DEVICE static std::uint16_t narrow(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    std::uint16_t pair;
    if constexpr (Format::kFractionBits == 3)
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    else
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
    return pair;
#else
    const std::uint32_t low = kernels::narrowed_from_bits<Format>(__float_as_uint(first)).bits;
    const std::uint32_t high = kernels::narrowed_from_bits<Format>(__float_as_uint(second)).bits;
    return static_cast<std::uint16_t>(low | high << 8);
#endif
  }
};

}  // namespace tutti::device::port

#endif  // __CUDACC__

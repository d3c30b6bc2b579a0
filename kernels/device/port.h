// The primitives that device code is written in: one small function per instruction, and nothing else of CUDA.
//
// Under nvcc they are PTX (port_cuda.h). Any other compiler gets the emulator of the tests
// (tests/device/emulator/port_emu.h), which runs every thread of every GPU as a fiber; production code that a host
// compiler builds never includes this.
// Both offer the same names in tutti::device::port:
//
//   thread() threads() block() blocks()   of the block, of the grid; threads() is a multiple of 32
//   anew(value)                           the value, so that what is made of it is not made ahead of a loop and kept
//   block_barrier() warp_barrier()        all threads of the block, of the warp
//   warp_any(bool)                        a vote of the whole warp
//   load_acquire load_relaxed             64-bit words that other GPUs and the host write
//   store_release store_relaxed
//   compare_and_swap
//   store_together                        a 32-bit word of the block's shared memory, by several threads at once
//   load16 store16 load<T> store<T>       ordinary accesses: ordered by barriers, acquire and release only
//   load16_volatile store16_volatile      16 bytes of which each 8 are written and read as one
//   load_line store_line                  8 neighbouring lanes, 16 bytes each: 128 bytes as one
//   now_ns() pause()                      a clock; the body of a waiting loop
//   add multiply divide                   rounded to nearest even, never fused
//   half_to_float float_to_half           of numbers and infinities; of a NaN, some NaN
//   Float8Conversion<Format>              widen, narrow: two values of kernels/float8.h at a time
//   kConvertsFloat8                       whether these are an instruction or two: on GPUs from 8.9 on
//   Here                                  the place in the source of a barrier or wait, for the emulator's reports
//
// TUTTI_DEVICE stands before a function, TUTTI_DEVICE_APART before one that is called and not inlined.
// TUTTI_SHARED(Type, name) declares what a block's threads share, TUTTI_UNROLL stands before a loop.
#pragma once

#include <cstdint>

namespace tutti::device {

struct alignas(16) Word16 {
  std::uint32_t x, y, z, w;
};

}  // namespace tutti::device

#if defined(__CUDACC__)
#include "kernels/device/port_cuda.h"
#else
#include <tests/device/emulator/port_emu.h>
#endif

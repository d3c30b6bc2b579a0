// The primitives of device code: one small function per instruction or per short sequence of instructions. Apart from
// the qualifiers of functions and kernels, device code uses nothing else of CUDA.
//
// With nvcc the primitives are PTX (port_cuda.h). With any other compiler they are the emulator of the tests
// (tests/device/emulator/port_emu.h), which runs every thread of every GPU as a fiber. Production code that a host
// compiler builds never includes this file. Both versions provide the same names in tutti::device::port:
//
//   thread() threads() block() blocks()   indexes and sizes of the block and the grid; threads() is a multiple of 32
//   anew(value)                           returns `value`; hides it from the compiler's optimisations, so that results
//                                         computed from it are not kept in registers from earlier code
//   BlockMemory<T>                        its function get() returns the one T in the shared memory of the block, which
//                                         nothing has initialised; make it once per thread, because the emulator
//                                         searches for the T
//   block_barrier() warp_barrier()        for all threads of the block or the warp
//   warp_any(bool)                        true if the argument is true in any thread of the warp
//   load_acquire load_relaxed             for 64-bit variables that several GPUs and the host access
//   store_release store_relaxed
//   compare_and_swap
//   store_together                        to a 32-bit variable in the block's shared memory that several threads write
//   load16 store16 load<T> store<T>       ordinary accesses: ordered only by barriers, acquire and release
//   load16_volatile store16_volatile      16 bytes, of which each half of 8 bytes is accessed as one
//   load_line store_line                  16 bytes per thread; 8 neighbouring threads of a warp access 128 bytes as one
//   now_ns() pause()                      a clock; the body of a waiting loop
//   add multiply divide                   rounded to nearest even, never fused
//   half_to_float float_to_half           by the rules of kernels/cpu/float16.h, but a NaN may become any NaN
//   Float8Conversion<Format>              widen and narrow two values of a format of kernels/float8.h at a time
//   kConvertsFloat8                       true if the GPU has instructions for Float8Conversion (compute capability 8.9
//                                         or later); otherwise it is calculated on integers, with many instructions
//   Site                                  source location of a barrier or wait, for reports of the emulator
//
// TUTTI_DEVICE precedes a function that nvcc inlines, TUTTI_DEVICE_APART one that it does not inline. TUTTI_UNROLL
// precedes a loop.
//
// The hand-overs of evaluate.h between GPUs, and between blocks of a GPU, follow the memory model of PTX. Each of them
// is a litmus test in tests/device/litmus, which is judged by that model:
//
//   a message         data.litmus, data_on_one_gpu.litmus, envelope.litmus, forwarded.litmus
//   a slot is reused  credit.litmus, credit_kept.litmus, envelope_reused.litmus
//   an output         offer.litmus, offer_renewed.litmus
//   between channels  progress.litmus
//
// Two things of LL and LL128 (lines.h) rest on the hardware, and not on the model: ll_credit.litmus, ll128_line.litmus.
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

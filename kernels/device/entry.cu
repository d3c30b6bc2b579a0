// The kernels of the library, under the names by which the driver finds them. Only nvcc compiles this file, into the
// fatbin that device_image() returns. The bodies are in the headers, which the tests run without a GPU.
//
// Blocks are one-dimensional, and their length is a multiple of 32 threads. The evaluator's blocks wait for each
// other, so all blocks of a launch must be on the device at once.
#include "kernels/device/evaluate.h"
#include "kernels/device/plain.h"

using tutti::device::CopyWork;
using tutti::device::Launch;
using tutti::device::PlainWork;
using tutti::device::Protocol;

// With more threads, a thread would have too few registers for the unrolled loops.
#define TUTTI_KERNEL extern "C" __global__ void __launch_bounds__(512, 1)

TUTTI_KERNEL tutti_evaluate_simple(const __grid_constant__ Launch launch) {
  tutti::device::evaluate<Protocol::kSimple>(launch);
}
TUTTI_KERNEL tutti_evaluate_ll(const __grid_constant__ Launch launch) {
  tutti::device::evaluate<Protocol::kLl>(launch);
}
TUTTI_KERNEL tutti_evaluate_ll128(const __grid_constant__ Launch launch) {
  tutti::device::evaluate<Protocol::kLl128>(launch);
}

// For benchmarks and tests.
TUTTI_KERNEL tutti_reduce(const __grid_constant__ PlainWork work) { tutti::device::reduce_plain(work); }
TUTTI_KERNEL tutti_copy(const __grid_constant__ CopyWork work) { tutti::device::copy(work); }
TUTTI_KERNEL tutti_empty() {}

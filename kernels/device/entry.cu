// The kernels of the library, under the names by which the driver finds them. Only nvcc compiles this file, into the
// fatbin that device_image() returns. The bodies are in the headers, which the tests run without a GPU.
//
// Blocks are one-dimensional, and have a multiple of 32 threads, at most 512. The evaluator's blocks wait for each
// other, and those of tutti_transfer for other GPUs, so all blocks of such a launch must be resident on the GPU at the
// same time. (For the evaluator that is not necessary if Call::stop_after_ns is 0.)
#include "kernels/device/evaluate.h"
#include "kernels/device/plain.h"
#include "kernels/device/transfer.h"

using tutti::device::CopyWork;
using tutti::device::Launch;
using tutti::device::PlainWork;
using tutti::device::Protocol;
using tutti::device::TransferLaunch;

// At most 512 threads per block, because with more threads each of them would have too few registers for the unrolled
// loops of reduce.h.
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

TUTTI_KERNEL tutti_transfer(const __grid_constant__ TransferLaunch launch) { tutti::device::transfer(launch); }

// Only benchmarks and tests launch the kernels below; see plain.h. tutti_empty does nothing, to measure a launch.
TUTTI_KERNEL tutti_reduce(const __grid_constant__ PlainWork work) { tutti::device::reduce_plain(work); }
TUTTI_KERNEL tutti_copy(const __grid_constant__ CopyWork work) { tutti::device::copy(work); }
TUTTI_KERNEL tutti_empty() {}

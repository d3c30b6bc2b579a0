// Reduction operations that the program creates: sums in which each rank first multiplies its input by a factor.
#include <fmt/format.h>

#include <atomic>

#include "nccl/api.h"
#include "nccl/comm.h"
#include "nccl/scalar.h"

namespace tutti::nccl {
namespace {

// The number of a new operation. It is unique in the process, so that the use of an operation with another communicator
// than its own is detected.
int next_number() {
  static std::atomic<int> last{1000};  // the number given out last, for all communicators
  return ++last;
}

}  // namespace

TUTTI_NCCL(ncclResult_t, RedOpCreatePreMulSum, ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
           ncclScalarResidence_t residence, ncclComm_t comm) {
  return guarded([&] {
    constexpr const char* kName = "ncclRedOpCreatePreMulSum";
    CommPtr found;
    if (op == nullptr || scalar == nullptr) {
      return fail(ncclInvalidArgument,
                  fmt::format("{}: {} is null", kName, op == nullptr ? "the place for the operation" : "the scalar"));
    }
    if (datatype < 0 || datatype >= ncclNumTypes) {
      return fail(ncclInvalidArgument, fmt::format("{}: type {} is none of NCCL's", kName, static_cast<int>(datatype)));
    }
    if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate) {
      return fail(ncclInvalidArgument,
                  fmt::format("{}: residence {} is none of NCCL's", kName, static_cast<int>(residence)));
    }
    if (const ncclResult_t ready = find_ready(comm, kName, &found); ready != ncclSuccess) return ready;
    CustomOp made{.type = static_cast<DataType>(datatype), .scale = {}, .scalar = nullptr};
    if (residence == ncclScalarHostImmediate) made.scale = decode_scale(made.type, scalar);
    if (residence == ncclScalarDevice) made.scalar = scalar;
    const int number = next_number();
    if (number < 0) return fail(ncclInternalError, fmt::format("{}: this process has made 2^31 operations", kName));
    const std::scoped_lock lock(found->mutex);
    found->ops[number] = made;
    *op = static_cast<ncclRedOp_t>(number);
    return ncclSuccess;
  });
}

TUTTI_NCCL(ncclResult_t, RedOpDestroy, ncclRedOp_t op, ncclComm_t comm) {
  return guarded([&] {
    CommPtr found;
    if (const ncclResult_t there = find(comm, "ncclRedOpDestroy", &found); there != ncclSuccess) return there;
    const std::scoped_lock lock(found->mutex);
    if (found->ops.erase(op) > 0) return ncclSuccess;
    return fail(ncclInvalidArgument,
                fmt::format("ncclRedOpDestroy: operation {} was not made on this communicator, or is destroyed already",
                            static_cast<int>(op)));
  });
}

}  // namespace tutti::nccl

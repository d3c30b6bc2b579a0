#include "nccl/errors.h"

#include <mutex>
#include <utility>

namespace tutti::nccl {
namespace {

// ncclGetLastError(NULL) has no object that could hold what it gives, so these two are the process's and the thread's.
struct Last {
  std::mutex mutex;
  std::string message;
};

Last& of_process() {
  static auto& last = *new Last;  // never destroyed: threads may fail while the process ends
  return last;
}

thread_local std::string of_thread;
thread_local std::string handed_out;

}  // namespace

ncclResult_t number_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return ncclInvalidArgument;
    case ErrorCode::kMismatch:
    case ErrorCode::kInvalidPlan:
    case ErrorCode::kUnsupported:
    case ErrorCode::kConfig: return ncclInvalidUsage;
    case ErrorCode::kTimeout: return ncclTimeout;
    case ErrorCode::kAborted:
    case ErrorCode::kPeerLost:
    case ErrorCode::kRefused: return ncclRemoteError;
    case ErrorCode::kSystem: return ncclSystemError;
    case ErrorCode::kDevice: return ncclUnhandledCudaError;
  }
  return ncclInternalError;
}

ncclResult_t fail(const Error& error) { return fail(number_of(error.code), to_string(error)); }

ncclResult_t fail(ncclResult_t result, std::string message) {
  of_thread = std::move(message);
  Last& last = of_process();
  const std::scoped_lock lock(last.mutex);
  last.message = of_thread;
  return result;
}

ncclResult_t fail_without_memory() noexcept {
  of_thread = "no memory";  // short enough to need none
  return ncclSystemError;
}

const char* last_error() {
  handed_out = of_thread;
  if (handed_out.empty()) {
    Last& last = of_process();
    const std::scoped_lock lock(last.mutex);
    handed_out = last.message;
  }
  return handed_out.c_str();
}

}  // namespace tutti::nccl

#include "nccl/errors.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "nccl/environment/environment.h"

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

// Without a destructor: the last calls of a program may come when such have run. Longer sentences are cut.
constexpr std::size_t kLongest = 2000;
struct Sentence {
  char text[kLongest + 1];
  void set(std::string_view message) {
    const std::size_t length = std::min(message.size(), kLongest);
    std::memcpy(text, message.data(), length);
    text[length] = 0;
  }
};
thread_local Sentence of_thread;
thread_local Sentence handed_out;

}  // namespace

ncclResult_t number_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return ncclInvalidArgument;
    case ErrorCode::kMismatch:
    case ErrorCode::kInvalidPlan:
    case ErrorCode::kUnsupported:
    case ErrorCode::kConfig: return ncclInvalidUsage;
    case ErrorCode::kTimeout: {  // programs of older headers do not know the number
      const auto& settings = process_settings();
      return !settings.ok() || settings->version >= NCCL_VERSION(2, 30, 0) ? ncclTimeout : ncclRemoteError;
    }
    case ErrorCode::kAborted:
    case ErrorCode::kPeerLost:
    case ErrorCode::kRefused:
    case ErrorCode::kDamaged: return ncclRemoteError;
    case ErrorCode::kSystem: return ncclSystemError;
    case ErrorCode::kDevice: return ncclUnhandledCudaError;
  }
  return ncclInternalError;
}

ncclResult_t fail(const Error& error) { return fail(number_of(error.code), to_string(error)); }

ncclResult_t fail(ncclResult_t result, std::string message) {
  of_thread.set(message);
  Last& last = of_process();
  const std::scoped_lock lock(last.mutex);
  last.message = std::move(message);
  return result;
}

ncclResult_t fail_without_memory() noexcept {
  of_thread.set("no memory");
  return ncclSystemError;
}

const char* last_error() {
  handed_out = of_thread;
  if (handed_out.text[0] == 0) {
    Last& last = of_process();
    const std::scoped_lock lock(last.mutex);
    handed_out.set(last.message);
  }
  return handed_out.text;
}

}  // namespace tutti::nccl

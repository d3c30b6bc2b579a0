#include "nccl/errors.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "nccl/environment/environment.h"

namespace tutti::nccl {
namespace {

// The last message of the process and of each thread are global, because ncclGetLastError(NULL) has no object that
// could hold them.
struct LastMessage {
  std::mutex mutex;
  std::string message;
};

LastMessage& process_message() {
  static auto& last = *new LastMessage;  // never destroyed, because threads may fail while the process exits
  return last;
}

constexpr std::size_t kMaxMessageBytes = 2000;  // longer messages are truncated in a MessageBuffer
// A message of one thread. The type has no destructor, because a program's last calls may come after thread-local
// destructors have run.
struct MessageBuffer {
  char text[kMaxMessageBytes + 1];
  void set(std::string_view message) {
    const std::size_t length = std::min(message.size(), kMaxMessageBytes);
    std::memcpy(text, message.data(), length);
    text[length] = 0;
  }
};
thread_local MessageBuffer thread_message;
thread_local MessageBuffer returned_message;

}  // namespace

ncclResult_t result_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return ncclInvalidArgument;
    case ErrorCode::kMismatch:
    case ErrorCode::kInvalidPlan:
    case ErrorCode::kUnsupported:
    case ErrorCode::kConfig: return ncclInvalidUsage;
    // ncclTimeout exists since NCCL 2.30. If TUTTI_NCCL_VERSION makes the library report an older version, the result
    // is ncclRemoteError, because programs that were compiled with older headers do not know ncclTimeout.
    case ErrorCode::kTimeout: {
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

ncclResult_t fail(const Error& error) { return fail(result_of(error.code), to_string(error)); }

ncclResult_t fail(ncclResult_t result, std::string message) {
  thread_message.set(message);
  LastMessage& last = process_message();
  const std::scoped_lock lock(last.mutex);
  last.message = std::move(message);
  return result;
}

ncclResult_t fail_without_memory() noexcept {
  thread_message.set("no memory");
  return ncclSystemError;
}

const char* last_error() {
  returned_message = thread_message;
  if (returned_message.text[0] == 0) {
    LastMessage& last = process_message();
    const std::scoped_lock lock(last.mutex);
    returned_message.set(last.message);
  }
  return returned_message.text;
}

}  // namespace tutti::nccl

// nccl/errors.h for tests of functions that fail by it, until src/nccl/errors.cc is there: numbers errors of arguments
// and of settings, and keeps the last sentence.
#include <utility>

#include "nccl/errors.h"

namespace tutti::nccl {
namespace {
thread_local std::string last;
}  // namespace

ncclResult_t number_of(ErrorCode code) {
  return code == ErrorCode::kInvalidArgument ? ncclInvalidArgument : ncclInvalidUsage;
}

ncclResult_t fail(const Error& error) { return fail(number_of(error.code), to_string(error)); }

ncclResult_t fail(ncclResult_t result, std::string message) {
  last = std::move(message);
  return result;
}

ncclResult_t fail_without_memory() noexcept { return ncclSystemError; }

const char* last_error() { return last.c_str(); }

}  // namespace tutti::nccl

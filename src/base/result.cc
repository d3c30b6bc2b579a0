#include "tutti/result.h"

#include <cstdio>

#include "tutti/version.h"

namespace tutti {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid argument";
    case ErrorCode::kMismatch: return "mismatch between ranks";
    case ErrorCode::kInvalidPlan: return "invalid plan";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kConfig: return "configuration";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kAborted: return "aborted";
    case ErrorCode::kPeerLost: return "peer lost";
    case ErrorCode::kRefused: return "refused";
    case ErrorCode::kSystem: return "system";
    case ErrorCode::kDevice: return "device";
    case ErrorCode::kDamaged: return "data damaged";
  }
  return "unknown error";
}

std::string_view to_string(ErrorScope scope) {
  switch (scope) {
    case ErrorScope::kCall: return "call";
    case ErrorScope::kConnection: return "connection";
    case ErrorScope::kCommunicator: return "communicator";
    case ErrorScope::kProcess: return "process";
  }
  return "unknown scope";
}

std::string to_string(const Error& error) { return std::string(to_string(error.code)) + ": " + error.message; }

namespace detail {

void bad_result_access(const char* what, const Error* error) {
  std::fprintf(stderr, "tutti: %s%s%s\n", what, error ? ": " : "", error ? to_string(*error).c_str() : "");
  std::fflush(stderr);
  std::abort();
}

}  // namespace detail

#define TUTTI_STRING_OF(x) #x
#define TUTTI_STRING(x) TUTTI_STRING_OF(x)

std::string_view version() {
  return TUTTI_STRING(TUTTI_VERSION_MAJOR) "." TUTTI_STRING(TUTTI_VERSION_MINOR) "." TUTTI_STRING(TUTTI_VERSION_PATCH);
}

}  // namespace tutti

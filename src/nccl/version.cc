// The functions for the version, the error strings and the last error. None of them uses a communicator.
#include "nccl/api.h"
#include "nccl/environment/environment.h"

namespace tutti::nccl {

TUTTI_NCCL(ncclResult_t, GetVersion, int* version) {
  return guarded([&] {
    if (version == nullptr) return fail(ncclInvalidArgument, "ncclGetVersion: the place for the version is null");
    // Reads the environment without storing the settings, because programs ask for the version first and set variables
    // for their communicators afterwards. process_settings() must not read the environment before that.
    const auto settings = read_settings(process_environment(), this_machine());
    // If the settings cannot be read, for example because a variable is invalid, the version is the default one. The
    // function that creates a communicator then reports the error.
    *version = settings.ok() ? settings->version : NCCL_VERSION_CODE;
    return ncclSuccess;
  });
}

TUTTI_NCCL(const char*, GetErrorString, ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError:
      return "the CUDA driver refused a call, or a kernel failed (ncclGetLastError says more)";
    case ncclSystemError: return "the operating system refused a call (ncclGetLastError says more)";
    case ncclInternalError: return "internal error: a bug in Tutti (ncclGetLastError says more)";
    case ncclInvalidArgument: return "invalid argument (ncclGetLastError says which)";
    case ncclInvalidUsage: return "invalid usage (ncclGetLastError says why)";
    case ncclRemoteError: return "another rank ended, aborted or was refused (ncclGetLastError says which)";
    case ncclInProgress: return "in progress";
    case ncclTimeout: return "timeout (ncclGetLastError says which ranks were missing)";
    default: return "unknown result code";
  }
}

TUTTI_NCCL(const char*, GetLastError, ncclComm_t) { return last_error(); }

}  // namespace tutti::nccl

// The macro TUTTI_NCCL defines an exported function of NCCL's interface. Each function is defined once and exported
// under two names (nccl... and pnccl...). The wrapper guarded() runs the body of a function that can throw, and catches
// its exceptions, because the interface is one for C, and its callers do not expect exceptions.
#pragma once

#include <new>
#include <string>
#include <utility>

#include "nccl.h"
#include "nccl/errors.h"
#include "tutti/export.h"

// Example: `TUTTI_NCCL(ncclResult_t, CommCount, const ncclComm_t comm, int* count) { ... }` defines pncclCommCount, and
// ncclCommCount as its weak alias. A profiling tool may therefore define ncclCommCount itself and call pncclCommCount.
#define TUTTI_NCCL(result, name, ...)                                                              \
  extern "C" TUTTI_API result pnccl##name(__VA_ARGS__);                                            \
  extern "C" TUTTI_API __attribute__((weak, alias("pnccl" #name))) result nccl##name(__VA_ARGS__); \
  result pnccl##name(__VA_ARGS__)

namespace tutti::nccl {

// Runs the body of an exported function and returns its result. If the body throws, the exception becomes an error code
// and a message for ncclGetLastError(): ncclSystemError for std::bad_alloc, ncclInternalError for another
// std::exception. Any other exception ends the process.
template <class Body>
ncclResult_t guarded(Body&& body) noexcept {
  try {
    return std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    return fail_without_memory();
  } catch (const std::exception& error) {
    return fail(ncclInternalError, std::string("an exception came out of Tutti, which is a bug: ") + error.what());
  }
}

}  // namespace tutti::nccl

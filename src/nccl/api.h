// How the functions of nccl.h are written: each once, under both of its names, and so that nothing is thrown into the
// C program that calls it.
#pragma once

#include <new>
#include <string>
#include <utility>

#include "nccl.h"
#include "nccl/errors.h"
#include "tutti/export.h"

// TUTTI_NCCL(ncclResult_t, CommCount, const ncclComm_t comm, int* count) { ... }
// defines pncclCommCount, and ncclCommCount as its weak alias: a tool may put a function of its own in front of that.
#define TUTTI_NCCL(result, name, ...)                                                              \
  extern "C" TUTTI_API result pnccl##name(__VA_ARGS__);                                            \
  extern "C" TUTTI_API __attribute__((weak, alias("pnccl" #name))) result nccl##name(__VA_ARGS__); \
  result pnccl##name(__VA_ARGS__)

namespace tutti::nccl {

// Runs a function's body.
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

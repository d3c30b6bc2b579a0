// Errors of the C face: the number that a function returns, and the sentence that ncclGetLastError() gives for it.
//
// The sentence is kept per thread, and the last one of the process beside it, for a thread that asks and has had no
// error of its own (PyTorch's watchdog). Any thread.
#pragma once

#include <string>

#include "nccl.h"
#include "tutti/result.h"

namespace tutti::nccl {

// docs/nccl.md has the table.
ncclResult_t number_of(ErrorCode code);

// Notes the sentence and returns the number.
ncclResult_t fail(const Error& error);
ncclResult_t fail(ncclResult_t result, std::string message);
ncclResult_t fail_without_memory() noexcept;

// Valid until the thread asks again. Empty: no error yet.
const char* last_error();

}  // namespace tutti::nccl

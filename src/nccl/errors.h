// Errors of the NCCL interface: the result code that a function returns, and the message that ncclGetLastError()
// returns for it.
//
// Each thread has its own last message. The last message of the whole process is kept as well: ncclGetLastError()
// returns it in a thread that has had no error, for example in PyTorch's watchdog thread. All functions may be called
// from any thread.
#pragma once

#include <string>

#include "nccl.h"
#include "tutti/result.h"

namespace tutti::nccl {

// The result code for an error code of Tutti. docs/nccl.md contains the table.
ncclResult_t result_of(ErrorCode code);

// Store the message as the last one of the thread and of the process, and return the result code.
// fail_without_memory() is for exhausted memory: it allocates nothing, and stores the message for the thread only.
ncclResult_t fail(const Error& error);
ncclResult_t fail(ncclResult_t result, std::string message);
ncclResult_t fail_without_memory() noexcept;

// The message for ncclGetLastError(). The pointer is valid until the same thread calls this function again. Empty if
// there was no error yet.
const char* last_error();

}  // namespace tutti::nccl

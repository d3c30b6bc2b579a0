// Errors of the NCCL interface: the result code that a function returns, and the message that ncclGetLastError()
// returns for it.
//
// Each thread has its own last message. The last message of the whole process is kept as well: ncclGetLastError()
// returns it in a thread that has no message of its own, for example in PyTorch's watchdog thread. All functions may be
// called from any thread.
#pragma once

#include <string>

#include "nccl.h"
#include "tutti/result.h"

namespace tutti::nccl {

// The result code that the NCCL interface returns for an error code of Tutti. The table of results in docs/nccl.md
// describes for users, in words, when each result is returned.
ncclResult_t result_of(ErrorCode code);

// fail() stores the message as the last message of this thread and of the process, and returns the result code.
// fail_without_memory() is for exhausted memory: it returns ncclSystemError, allocates nothing, and stores its message
// for this thread only.
ncclResult_t fail(const Error& error);
ncclResult_t fail(ncclResult_t result, std::string message);
ncclResult_t fail_without_memory() noexcept;

// The message for ncclGetLastError(): the last one of this thread or, if this thread has none, of the process. Empty if
// neither has one. The pointer is valid until the same thread calls this function again or ends.
const char* last_error();

}  // namespace tutti::nccl

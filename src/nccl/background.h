// Background threads: they run the jobs of nonblocking communicators. They are detached, because no function of NCCL's
// interface joins them.
//
// If the process exits while some background threads run, an exit handler aborts their communicators and then waits for
// the threads, for at most kExitWait (background.cc; abort_all() there names the exceptions). Without this wait, the
// threads could use objects that are destroyed during exit. All functions may be called from any thread.
#pragma once

#include <functional>
#include <vector>

#include "nccl/comm.h"

namespace tutti::nccl {

// Runs `body`, which must not throw, in a new thread. `comms` are the communicators that `body` uses; the exit handler
// aborts them if the process exits before `body` has returned. Throws std::system_error if no thread can be started, or
// std::bad_alloc.
void run_in_background(std::function<void()> body, std::vector<CommPtr> comms);

}  // namespace tutti::nccl

// Threads that carry out jobs in the background. Nobody joins them; when the process ends while some are at work, their
// communicators are aborted first, and they are waited for a moment, so that they do not run into what is destroyed
// then. Any thread.
#pragma once

#include <functional>
#include <vector>

#include "nccl/comm.h"

namespace tutti::nccl {

// Runs `body`, which must not throw, in a thread of its own. Throws std::system_error where none can be started.
// `comms`: those that it works on.
void run_in_background(std::function<void()> body, std::vector<CommPtr> comms);

}  // namespace tutti::nccl

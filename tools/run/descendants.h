// What a job leaves behind: processes that ranks started and did not wait for. A subreaper becomes the parent of every
// such orphan, so at the end of the job its children are all there is to end. Linux. One thread.
#pragma once

#include <sys/types.h>

#include <vector>

#include "tutti/result.h"

namespace tutti::tool {

// From now on orphaned descendants become children of this process.
Status become_subreaper();

// Direct children of this process, in any state.
std::vector<pid_t> list_children();

// Kills and reaps every child of this process but those in `spared`, and the children that this orphans in turn. Gives
// up after 2 s (a process in an uninterruptible wait); returns the number that were killed.
int end_children(const std::vector<pid_t>& spared);

}  // namespace tutti::tool

// Finds and kills the processes that a job leaves behind: processes that ranks have started and not waited for. The
// launcher (this process) becomes a subreaper, which means that such orphans become its children. So at the end of the
// job, it only has to kill its children. Linux only. Used by one thread.
#pragma once

#include <sys/types.h>

#include <vector>

#include "tutti/result.h"

namespace tutti::tool {

// Makes this process a subreaper: orphaned descendants become its children from then on. Errors: kSystem.
Status become_subreaper();

// The direct children of this process, in any state.
std::vector<pid_t> list_children();

// Kills and reaps every child of this process except those in `spared`, and also the processes that become children of
// this process because their parents were killed. Gives up after kGiveUpAfter (descendants.cc), because a process may
// be in an uninterruptible wait. Returns the number of processes to which SIGKILL was sent; children that had already
// ended do not count.
int end_children(const std::vector<pid_t>& spared);

}  // namespace tutti::tool

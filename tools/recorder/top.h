// The table of `tutti top`: the ranks of running jobs, from their recordings.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tools/recorder/recording.h"

namespace tutti::tool {

// Returns the table, or an empty string if no job runs. `recordings` must be sorted by sort_recordings(). A
// communicator is left out unless, for at least one of its ranks, it has not ended and the process of the rank exists
// on this machine. Calls and bytes per second are those of host calls that began in the last second before `now_ns` and
// have ended. The time is shorter if the recording has no space for all calls of this second.
std::string top_table(std::span<const Recording> recordings, std::int64_t now_ns);

}  // namespace tutti::tool

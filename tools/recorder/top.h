// The table of `tutti top`: the ranks of running jobs, from their recordings.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tools/recorder/recording.h"

namespace tutti::tool {

// Returns the table, or an empty string if no job runs. `recordings` must be sorted by sort_recordings(). Communicators
// that have ended, and jobs without a running process, are left out. Calls and bytes per second are those of the last
// second before `now_ns`, or of a shorter time if the recording has no space for all calls of this second.
std::string top_table(std::span<const Recording> recordings, std::int64_t now_ns);

}  // namespace tutti::tool

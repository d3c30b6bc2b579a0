// The table of `tutti top`: the ranks of running jobs, from their recordings.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tools/recorder/recording.h"

namespace tutti::tool {

// `recordings`: sorted; those of communicators that have ended, and of jobs without a living process, are left out.
// Calls and bytes per second are those of the last second, as far as the recording goes back. Empty: nothing runs.
std::string top_table(std::span<const Recording> recordings, std::int64_t now_ns);

}  // namespace tutti::tool

// Recordings as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing.
#pragma once

#include <span>
#include <string>

#include "tools/recorder/recording.h"

namespace tutti::tool {

// JSON: an object with "traceEvents". A process of the trace is a rank of the job; its tracks are its communicators'
// collectives, sends and receives (as many tracks as overlap), and what was handed to GPUs (instants: when they ended
// is not known). Times in us since the first event. A call that runs still ends at `now_ns`, or with its process.
std::string chrome_trace(std::span<const Recording> recordings, std::int64_t now_ns);

}  // namespace tutti::tool

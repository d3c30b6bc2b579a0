// Converts recordings to a trace for Perfetto (ui.perfetto.dev) and chrome://tracing.
#pragma once

#include <span>
#include <string>

#include "tools/recorder/recording.h"

namespace tutti::tool {

// Returns a JSON object with "traceEvents". Each rank of the job is a process of the trace. Its tracks are the
// collectives of its communicators, their sends and receives (as many tracks as overlap), and the calls that were
// enqueued on GPUs (as instants, because their ends are not known). Times are in us since the first recording was
// created or, if that is earlier, since the first call on the host began. A call that is still running is drawn up to
// `now_ns`, up to the end of its communicator, or, if its process is dead, to the last update of its recorded wait.
std::string chrome_trace(std::span<const Recording> recordings, std::int64_t now_ns);

}  // namespace tutti::tool

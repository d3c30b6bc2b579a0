// Metrics of the ranks on this machine for Prometheus, from their recordings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tools/recorder/recording.h"

namespace tutti::tool {

// kOpenMetrics: OpenMetrics 1.0, with units and "# EOF". kPrometheus: the text format 0.0.4, which the textfile
// collector of node_exporter reads; it has the same samples. The names in the lines TYPE and HELP differ: for a counter
// `x`, they are `x` in OpenMetrics and `x_total` in the other format.
enum class MetricsFormat : std::uint8_t { kOpenMetrics, kPrometheus };

// Returns the metrics that docs/recorder.md lists. `recordings` are sorted, with at most one for each rank of a
// communicator (keep_newest_of_each_rank()). `now_ns` is the present time in nanoseconds since 1970. Pure.
// `unreadable` is the number of files that look like recordings and could not be read.
std::string metrics_text(std::span<const Recording> recordings, std::size_t unreadable, MetricsFormat format,
                         std::int64_t now_ns);

// Removes recordings that should not be in the metrics of this machine: those of other machines, which have metrics of
// their own, and those whose communicator has ended or whose process has died more than `keep_ns` before `now_ns`. A
// process of which it is not known whether it lives counts as one that died after its last call or wait.
void keep_recent_of_this_machine(std::vector<Recording>& recordings, std::int64_t keep_ns, std::int64_t now_ns);

}  // namespace tutti::tool

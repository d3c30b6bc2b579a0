// The function through which plugins write log lines, and the log in which plugins and the code that loads them write.
// Its level is that of TUTTI_LOG or NCCL_DEBUG. Thread-safe.
#pragma once

#include "base/log.h"

namespace tutti::nccl {

// NCCL's type ncclDebugLogger_t: a level and the bits of NCCL's subsystems, the place in the plugin's source, and a
// message as for printf().
using PluginLogger = void (*)(int level, unsigned long subsystems, const char* file, int line, const char* format, ...);

// The log of plugins. It has no rank, because a plugin writes without naming its communicator.
const Log& plugin_log();

// Writes a line into plugin_log(). NCCL's levels become: WARN a warning, VERSION, INFO and ABORT info, TRACE debug;
// NONE writes nothing. The subsystems and the place are ignored. A message longer than 1,023 bytes is cut.
void write_plugin_log(int level, unsigned long subsystems, const char* file, int line, const char* format, ...)
    __attribute__((format(printf, 5, 6)));

}  // namespace tutti::nccl

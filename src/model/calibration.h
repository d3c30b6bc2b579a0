// The file in which a machine's measured costs are kept, and whose machine it is. Reads and writes files; any thread,
// as long as nobody writes the same file at once (a reader sees the old or the new one, never half of one).
#pragma once

#include <optional>
#include <string>

#include "base/config.h"
#include "model/parameters.h"
#include "tutti/result.h"

namespace tutti {

// 16 hexadecimal digits of what decides a machine's costs: processor, usable cores, caches, NUMA nodes, GPUs, NICs and
// their speed, from the kernel's files. Never fails: what cannot be read counts as not there.
std::string hardware_hash();

// Where this machine's file is looked for: `file` (TUTTI_TUNE_FILE) where it is given, else HASH.json in the folder
// tutti of XDG_CACHE_HOME or of .cache at HOME. Empty: none of them is known.
std::string calibration_path(const std::string& file, const EnvironmentVariables& environment);

// The stored costs; nothing where there is no such file. Errors: kSystem, kInvalidArgument where there is one that
// cannot be used: unreadable, damaged, or of other hardware.
Result<std::optional<Parameters>> load_calibration(const std::string& file, const EnvironmentVariables& environment);

// Makes the folder if need be; the file is complete or not there. Errors: kSystem, with the path.
Status store_calibration(const std::string& path, const Parameters& parameters);

}  // namespace tutti

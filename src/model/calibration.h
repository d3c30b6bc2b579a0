// The calibration file: stores the measured costs of a machine, with a hash that identifies the machine's
// hardware. Reads and writes files. May be used from any thread, if a file has only one writer at a time. A reader
// sees the complete old file or the complete new one, because a file is replaced by a rename.
#pragma once

#include <optional>
#include <string>

#include "base/config.h"
#include "model/parameters.h"
#include "tutti/result.h"

namespace tutti {

// Returns 16 hexadecimal digits: a hash of the hardware that determines a machine's costs, as the kernel reports
// it (processor model, number of processors, caches, NUMA nodes, GPUs, NICs and their speed). Never fails: a part
// that cannot be read counts as absent.
std::string hardware_hash();

// Returns the path of this machine's file: `file` (TUTTI_TUNE_FILE) if it is not empty; otherwise HASH.json in the
// folder `tutti` of XDG_CACHE_HOME, or of .cache in HOME. Returns an empty string if none of these is set.
std::string calibration_path(const std::string& file, const EnvironmentVariables& environment);

// Returns the stored costs, or nothing if there is no file. Errors: kSystem if the file cannot be read;
// kInvalidArgument if it is damaged, or was measured on other hardware.
Result<std::optional<Parameters>> load_calibration(const std::string& file, const EnvironmentVariables& environment);

// Writes the file atomically, and creates its folder if needed. Errors: kSystem, with the path.
Status store_calibration(const std::string& path, const Parameters& parameters);

}  // namespace tutti

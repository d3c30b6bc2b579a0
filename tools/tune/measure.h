// The measurements of `tutti tune`: calls of the library between ranks that are processes. model/fit.h lists the names
// of the measurements.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/parameters.h"
#include "tutti/communicator.h"
#include "tutti/result.h"

namespace tutti::tool {

// Does this rank's part of a measurement. The job has two ranks that share memory (kMemory) or communicate over TCP
// (kNic), or more ranks than cores (kCrowd). Collective. Only rank 0 gets measurements.
enum class TunePart : std::uint8_t { kMemory, kNic, kCrowd };
Result<std::vector<Measurement>> measure_part(Communicator& communicator, TunePart part);

std::string_view to_string(TunePart part);  // "memory", "nic", "crowd"

// Convert measurements to CSV, one line each, and back. Errors: kInvalidArgument for an invalid line.
std::string measurements_csv(const std::vector<Measurement>& measured);
Result<std::vector<Measurement>> parse_measurements(std::string_view csv);

}  // namespace tutti::tool

// What `tutti tune` measures: calls of the library itself, between ranks that are processes. model/fit.h has the names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/parameters.h"
#include "tutti/communicator.h"
#include "tutti/result.h"

namespace tutti::tool {

// This rank's part in a job of two ranks that share memory, or talk by TCP; or of more than there are cores.
// Collective. Measurements on rank 0 only.
enum class TunePart : std::uint8_t { kMemory, kNic, kCrowd };
Result<std::vector<Measurement>> measure_part(Communicator& communicator, TunePart part);

std::string_view to_string(TunePart part);  // "memory", "nic", "crowd"

// A line each, and back. Errors: kInvalidArgument for a line that is none.
std::string measurements_csv(const std::vector<Measurement>& measured);
Result<std::vector<Measurement>> parse_measurements(std::string_view csv);

}  // namespace tutti::tool

// The measurements of `tutti tune`: the times of calls of the library between ranks, each of which is a process, and
// the times of a reduction kernel and of copies in the memory of one rank. model/fit.h lists the names of the
// measurements and computes the parameters of a machine from them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/parameters.h"
#include "tutti/communicator.h"
#include "tutti/result.h"

namespace tutti::tool {

// The groups of measurements. The job has two ranks that share memory (kMemory), two ranks that communicate over TCP
// (kNic), or twice as many ranks as cores, but at most kMostCrowd (command.cc), that share memory (kCrowd). kMessages
// and kCalls are for any number of ranks that share memory: the calls for which there is a choice (fit_choices.h),
// without system calls (TUTTI_ATTACH=off) and with them (TUTTI_ATTACH=calls).
enum class TunePart : std::uint8_t { kMemory, kNic, kCrowd, kMessages, kCalls };
inline constexpr TunePart kTuneParts[] = {TunePart::kMemory, TunePart::kNic, TunePart::kCrowd, TunePart::kMessages,
                                          TunePart::kCalls};

// Does this rank's part of the measurements of a group. All ranks must call it. Rank 0 gets the measurements, and the
// other ranks get an empty list.
Result<std::vector<Measurement>> measure_part(Communicator& communicator, TunePart part);

std::string_view to_string(TunePart part);  // "memory", "nic", "crowd", "messages", "calls"

// Convert measurements to CSV, one line for each, and back. Error of parse_measurements(): kInvalidArgument if a line
// is invalid.
std::string measurements_csv(const std::vector<Measurement>& measured);
Result<std::vector<Measurement>> parse_measurements(std::string_view csv);

}  // namespace tutti::tool

// Computes the parameters of a machine from times that were measured on it. A pure function; may be used from any
// thread.
#pragma once

#include <cstdint>
#include <span>

#include "model/parameters.h"
#include "tutti/result.h"

namespace tutti {

// The names of the measurements (Measurement::what). Each time is that of one call or one message.
//
//   "alone"              a call of a communicator of one rank
//   "memory.one_way"     a broadcast by chain between two ranks through slots; half of the round-trip time
//   "memory.stream"      the same, back to back in one direction
//   "nic.one_way", "nic.stream"   the same over sockets
//   "mailboxes"          an all-reduce by one_shot of two ranks
//   "mailboxes.crowd"    the same with more ranks than cores; `bytes` is the number of ranks
//   "registered"         an all-reduce by two_shot of two ranks in each other's memory
//   "attached"           the same by system calls
//   "reduce", "copy"     local, with two operands and with one; both ranks at the same time
//
// Parameters that were not measured keep the values of default_host_parameters(). Numbers are rounded to four
// digits. Errors: kInvalidArgument if "memory.one_way" lacks a size of at most 64 bytes, or sizes from which a
// slope for long messages (512 KiB and more) can be computed.
Result<Parameters> fit_parameters(std::span<const Measurement> measured, std::uint32_t cores, std::uint64_t slot_bytes);

}  // namespace tutti

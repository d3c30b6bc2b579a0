// From times that were measured on one machine to its parameters. A pure function; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "model/parameters.h"
#include "tutti/result.h"

namespace tutti {

// What is measured, as Measurement::what says it. Times are of one call or one message.
//
//   "alone"              a call of a communicator of one rank
//   "memory.one_way"     a broadcast by chain between two ranks, half of there and back, through slots
//   "memory.stream"      the same, back to back in one direction
//   "nic.one_way", "nic.stream"   over sockets
//   "mailboxes"             an all-reduce by one_shot of two ranks
//   "mailboxes.crowd"       the same of more ranks than cores: `bytes` is the number of ranks
//   "registered"         an all-reduce by two_shot of two ranks in each other's memory
//   "attached"           the same by system calls
//   "reduce", "copy"     local, two operands and one; both ranks at once
//
// What was not measured stays as default_host_parameters() has it. Numbers are rounded to four digits. Errors:
// kInvalidArgument where "memory.one_way" lacks sizes of at most 64 and at least 1 MiB.
Result<Parameters> fit_parameters(std::span<const Measurement> measured, std::uint32_t cores, std::uint64_t slot_bytes);

}  // namespace tutti

// How many ranks can share the memory of one machine, checked before they connect to each other.
#pragma once

#include <cstdint>

#include "transports/shm/segment.h"
#include "tutti/result.h"

namespace tutti {

// Of one communicator. The address space that the segments take grows with the square of it: with slots of the default
// size 72 of the 128 TiB that a process has.
inline constexpr std::uint32_t kMostMachineRanks = 4096;

// What this process may have. 0: unknown.
struct ProcessLimits {
  std::uint64_t descriptors = 0;  // ulimit -n
  std::uint64_t open = 0;         // of these in use
  std::uint64_t mappings = 0;     // vm.max_map_count
  std::uint64_t files = 0;        // fs.file-max, of all processes together; unknown to root, whom it does not limit
};
ProcessLimits process_limits();

// Whether each rank has descriptors for connections to the `ranks` of its machine. Errors: kSystem, with the limit and
// the number that is needed.
Status check_descriptor_limit(std::uint64_t ranks, const ProcessLimits& limits);

// That, and the limits of ranks that share memory. `shape`: of the segment of each of the machine's ranks. Errors:
// kUnsupported, or kSystem for a limit that can be raised; the message has the limit and the number that is needed.
Status check_machine_limits(const SegmentShape& shape, const ProcessLimits& limits);

}  // namespace tutti

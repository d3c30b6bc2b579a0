// Checks whether the ranks of one machine stay within the limits of the operating system: on file descriptors and, if
// they share memory, on mappings and address space. The checks are made before the ranks connect to each other.
#pragma once

#include <cstdint>

#include "transports/shm/segment.h"
#include "tutti/result.h"

namespace tutti {

// Maximum number of ranks of one job that share memory on one machine. The address space that the segments need grows
// with the square of this number: with slots of the default number and size, 65 of the 128 TiB that a process has.
inline constexpr std::uint32_t kMostMachineRanks = 4096;

// The limits of this process. 0 means unknown or unlimited.
struct ProcessLimits {
  std::uint64_t descriptors = 0;  // ulimit -n
  std::uint64_t open = 0;         // approximate number of descriptors in use
  std::uint64_t mappings = 0;     // vm.max_map_count
  // fs.file-max, for all processes together. Not set for root, because this limit does not apply to root.
  std::uint64_t files = 0;
};
ProcessLimits process_limits();

// Checks whether each rank can have the descriptors for its connections to the `ranks` ranks of its machine, and
// whether the machine can have those of all these ranks together. Errors: kSystem. The message contains the limit and
// the number that is needed.
Status check_descriptor_limit(std::uint64_t ranks, const ProcessLimits& limits);

// Checks the descriptors as check_descriptor_limit() does, and the limits of ranks that share memory. `shape` is the
// shape of the segment of each rank of the machine. Errors: kUnsupported, or kSystem if the limit can be raised. The
// message contains the limit and the number that is needed.
Status check_machine_limits(const SegmentShape& shape, const ProcessLimits& limits);

}  // namespace tutti

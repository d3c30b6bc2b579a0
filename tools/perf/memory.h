// Which messages of a `tutti perf` run the machines have memory for, so that the kernel kills no rank.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/communicator.h"

namespace tutti::tool {

// One rank, as it contributes to the decision. The ranks of a place share its memory.
struct MemoryClaim {
  std::uint64_t machine = 0;  // a digest of the machine's identity
  std::uint64_t group = 0;    // of its memory cgroup, too; 0: no cgroup limits it
  std::uint64_t machine_bytes = 0;
  std::uint64_t group_bytes = 0;
  std::uint64_t needed_bytes = 0;
};

// The machine or cgroup that lacks the most memory.
struct MemoryShortage {
  std::uint64_t needed_bytes = 0;  // of all its ranks; 0: every place has enough
  std::uint64_t available_bytes = 0;
  std::int32_t ranks = 0;
  std::int32_t first_rank = 0;
  bool by_group = false;  // the cgroup's limit, not the machine's memory
};

// By rank. A pure function, so that all ranks decide alike.
MemoryShortage find_shortage(const std::vector<MemoryClaim>& claims);

struct MemoryFit {
  std::uint64_t max_bytes = 0;  // the largest message that fits
  std::string left_out;         // why larger ones are left out; empty: none are
  std::string nothing_fits;     // why not even the smallest message fits; empty: it does
};

// Collective. `sizes`: of the messages, ascending, the same on all ranks. `needed`: the bytes that this rank's buffers
// take for messages up to a size. Errors: those of the communicator's calls; kSystem if the machine is not known.
Result<MemoryFit> fit_in_memory(Communicator& communicator, const std::vector<std::uint64_t>& sizes,
                                const std::function<std::uint64_t(std::uint64_t size)>& needed);

// Before the ranks are started here: an error if the machine has no memory for so many of them. kSystem.
Status check_memory_for_ranks(std::int32_t ranks);

}  // namespace tutti::tool

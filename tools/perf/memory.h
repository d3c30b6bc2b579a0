// Decides which message sizes of a `tutti perf` run fit in the memory of the machines, so that the kernel does not kill
// a rank because memory runs out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/communicator.h"

namespace tutti::tool {

// The memory that one rank needs, and the available memory that it has found. All ranks exchange their claims and then
// decide in the same way. Ranks with the same `machine`, or with the same `group` other than 0, share memory.
struct MemoryClaim {
  std::uint64_t machine = 0;        // digest of the machine's identity
  std::uint64_t group = 0;          // digest of the machine and the memory cgroup; 0: no cgroup limit
  std::uint64_t machine_bytes = 0;  // available on the machine, for all its ranks together
  std::uint64_t group_bytes = 0;    // available in the cgroup, for all its ranks together
  std::uint64_t needed_bytes = 0;   // needed by this rank
};

// The machine or cgroup that lacks the most memory, if any lacks memory.
struct MemoryShortage {
  std::uint64_t needed_bytes = 0;  // by all ranks of the machine or cgroup together; 0: there is no shortage
  std::uint64_t available_bytes = 0;
  std::int32_t ranks = 0;
  std::int32_t first_rank = 0;
  bool by_group = false;  // true: the limit of a cgroup is too low; false: the machine's memory
};

// Finds the largest shortage among all machines and cgroups. `claims` is indexed by rank. A pure function, so that all
// ranks get the same result from the same claims.
MemoryShortage find_shortage(const std::vector<MemoryClaim>& claims);

struct MemoryFit {
  std::uint64_t max_bytes = 0;  // the largest message that fits; 0 if nothing_fits is set
  std::string left_out;         // why larger messages are left out; empty: none are
  std::string nothing_fits;     // why not even the smallest message fits; empty: it fits
};

// Finds the largest message size for which all ranks have memory. Collective. `sizes` are the message sizes in bytes,
// in ascending order, the same on all ranks. `needed(size)` returns the bytes that this rank's buffers need for
// messages of at most `size` bytes. Errors: those of the communicator's calls; kSystem if the machine cannot be
// identified.
Result<MemoryFit> fit_in_memory(Communicator& communicator, const std::vector<std::uint64_t>& sizes,
                                const std::function<std::uint64_t(std::uint64_t size)>& needed);

// Checks that this number of ranks without buffers fits both in the available memory of this machine and in the limit
// of this process's memory cgroup. To be called before ranks are started. Error (kSystem): there is not enough memory.
Status check_memory_for_ranks(std::int32_t ranks);

}  // namespace tutti::tool

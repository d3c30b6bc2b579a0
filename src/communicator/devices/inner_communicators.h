// InnerCommunicators: the two communicators of each rank to which AcrossMachines gives the parts of its calls, and
// their set-up. They are made with the outer communicator, and no caller sees them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "communicator/membership.h"
#include "job/environment.h"
#include "tutti/communicator.h"

namespace tutti::detail {

class CommunicatorImpl;
class DeviceSide;

struct InnerCommunicators {
  std::unique_ptr<CommunicatorImpl> machine;  // the ranks of this rank's machine
  std::unique_ptr<CommunicatorImpl> rail;     // the ranks with the same number within their machines
  // For each rank of the two communicators, its rank in the outer one.
  std::vector<std::uint32_t> machine_ranks;
  std::vector<std::uint32_t> rail_ranks;
};

// Whether the GPUs of the machine can run the parts of calls that AcrossMachines gives them. They must carry out calls,
// each rank must have a GPU of its own, and a call must be one launch on each GPU. (If a GPU has too few free thread
// blocks, calls are divided into rounds of launches, and calls with too many rounds are left to the host. So long parts
// could not run.) `machine`: the DeviceSide of the communicator of the machine's ranks. The same on all of them.
bool can_run_parts(const DeviceSide& machine);

// Returns `error` with the rank's number in the outer communicator instead of its number in an inner communicator.
// `ranks`: for each rank of the inner communicator, its rank in the outer one.
Error in_ranks_of(Error error, const std::vector<std::uint32_t>& ranks);

// The largest number of set-up rounds that make_inner_communicators() takes if needs_inner_rounds() is true. It takes
// fewer if it returns null, and may take fewer if it fails. If needs_inner_rounds() is false, it takes none.
inline constexpr int kInnerRounds = 2 + 4 + 1 + 2 + 1;  // environment, GPUs, agreement; environment, agreement
// Whether the job has ranks with GPUs, and ranks on several machines. The same on all ranks.
bool needs_inner_rounds(const JobContext& job_context);

// Makes the inner communicators for a communicator with the members and the environment of `outer`. Returns null on all
// ranks if calls do not run in parts: the ranks are on one machine, the machines have different numbers of ranks or
// only one rank each, ranks share a GPU, or can_run_parts() is false for some machine. `timeout`: used for calls
// without a timeout of their own. `among`: a round of the outer communicator's members; in a split, ranks of other new
// communicators take part in the same rounds. If one rank returns an error, all ranks return one, unless the last round
// fails on some ranks only.
Result<std::unique_ptr<InnerCommunicators>> make_inner_communicators(const Membership& outer,
                                                                     const Environment& environment,
                                                                     std::chrono::milliseconds timeout,
                                                                     const Gather& among);

}  // namespace tutti::detail

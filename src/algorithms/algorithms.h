// The list of algorithms. The generator of each algorithm is a pure function that returns the plan of one rank. The
// comments at the top of the .cc files in this folder explain the algorithms.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti {

// How many chunks a message of a plan carries. Some algorithms have plans of both forms; the others have only
// kOneChunk.
enum class Messages : std::uint8_t {
  // One. Long calls: a chunk may be as long as a slot, and a message may travel without a copy (plan/windows.h).
  kOneChunk,
  // A run of chunks (Step::run). Short calls: a round of the algorithm is then one message, so that a call with many
  // ranks takes the time of few messages. So many chunks must fit into one slot.
  kRuns,
};

// Whether the algorithm has plans of the form kRuns for this collective.
bool has_runs(CollectiveKind kind, Algorithm algorithm);

// The form for a call on the host in which all blocks have `block_bytes` bytes: kRuns if all blocks of the input, and
// all of the output, fit together into a slot of `slot_bytes` bytes.
Messages messages_for(const Collective& collective, std::uint64_t block_bytes, std::uint64_t slot_bytes);

// Returns the generator of `algorithm` for `collective`, in the form `messages` if the algorithm has it. Errors, with
// the reason in the message: kInvalidArgument if a field of `collective` is not valid or if `algorithm` has no plan for
// this collective (for example kAuto or kUser); kUnsupported if there are more ranks than the algorithm supports, or if
// the collective has no plans at all.
Result<Generator> find_generator(const Collective& collective, Algorithm algorithm,
                                 Messages messages = Messages::kOneChunk);

// Returns the algorithms that have a plan for this collective, in the order of the enumeration Algorithm. The list is
// empty if no algorithm has a plan for this collective.
std::vector<Algorithm> algorithms_of(CollectiveKind kind);

}  // namespace tutti

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
  // ranks takes the time of few messages. This many chunks must fit into one slot.
  kRuns,
};

// Whether the algorithm has plans of the form kRuns for this collective.
bool has_runs(CollectiveKind kind, Algorithm algorithm);

// The properties of a job on which the form of a plan depends. They are the same on all ranks.
struct MessageLimits {
  std::uint64_t slot_bytes = 0;  // length of the longest message
  bool memory = false;           // all ranks share memory, so that messages may travel without a copy
};

// The form for a call on the host in which all blocks have `block_bytes` bytes. It is kRuns if all blocks of the input,
// and all of the output, fit together into a slot, and are at most kMostRunBytes long, because a run is copied. If
// ranks share memory, chunks of kLeastPublished bytes (plan/windows.h) may travel without a copy; then it is kRuns only
// if chunks are shorter than that.
inline constexpr std::uint64_t kMostRunBytes = 128 * 1024;
Messages messages_for(const Collective& collective, std::uint64_t block_bytes, const MessageLimits& limits);

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

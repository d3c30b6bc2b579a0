// The list of algorithms. Each algorithm has a Generator for each collective for which it has a plan. The Generator's
// function `build` is pure, and returns the plan of one rank. The comments at the top of the .cc files in this folder
// explain the algorithms.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti {

// The form of a plan: how many chunks a message carries. (A chunk is an equal part of a block of the call's buffers.)
// Every algorithm has plans of the form kOneChunk. Some have plans of the form kRuns as well; see has_runs().
enum class Messages : std::uint8_t {
  // Each message carries one chunk. This form is for long calls: a chunk can be as long as a slot, and a message may
  // travel without being copied into a slot (plan/windows.h).
  kOneChunk,
  // A message carries a run of consecutive chunks (Step::run). This form is for short calls, whose time depends mainly
  // on the number of messages. For example, a rank of a circulant all_reduce of 64 ranks sends 12 messages instead of
  // 126. All chunks of a message must fit into one slot together.
  kRuns,
};

// Whether the algorithm has plans of the form kRuns for this collective. (With up to 3 ranks, these are the same plans
// as those of the form kOneChunk.)
bool has_runs(CollectiveKind kind, Algorithm algorithm);

// The properties of a job and of a call on which the form of a plan depends, besides the collective and the length of
// its blocks. All ranks of a call must pass the same values, because they must all use the same form.
struct MessageLimits {
  // Length of the longest message in bytes: that of a slot, or the length that a rule of TUTTI_TUNE sets.
  std::uint64_t slot_bytes = 0;
  bool memory = false;  // all ranks share memory, so a message may travel without being copied into a slot
};

// The longest buffer, in bytes, of a call that uses a plan of the form kRuns. Calls with a longer buffer use the form
// kOneChunk, because the chunks of a run are always copied into a slot and out of it.
inline constexpr std::uint64_t kMostRunBytes = 128 * 1024;

// Returns the form of the plan for a call that the host carries out and whose blocks all have `block_bytes` bytes. The
// result is kRuns if the longer of the call's two buffers (a buffer is all blocks of the input, or of the output) fits
// into one slot and has at most kMostRunBytes bytes. If all ranks share memory, the buffer must also be shorter than
// kLeastPublished bytes (plan/windows.h) times the number of ranks. The reason is that a plan divides it into about as
// many chunks as there are ranks, and a chunk of at least kLeastPublished bytes may travel without a copy.
Messages messages_for(const Collective& collective, std::uint64_t block_bytes, const MessageLimits& limits);

// Returns the generator of `algorithm` for `collective`, in the form `messages`, or in the form kOneChunk if the
// algorithm has no other one. Errors, with the reason in the message: kInvalidArgument if a field of `collective` is
// not valid or if `algorithm` has no plan for this collective (for example kAuto or kUser); kUnsupported if there are
// more ranks than the algorithm supports, or if the collective has no plans at all.
Result<Generator> find_generator(const Collective& collective, Algorithm algorithm,
                                 Messages messages = Messages::kOneChunk);

// Returns the algorithms that have a plan for this collective, in the order of the enumeration Algorithm. The list is
// empty if no algorithm has a plan for this collective.
std::vector<Algorithm> algorithms_of(CollectiveKind kind);

}  // namespace tutti

// CallTag: the arguments that must be the same on all ranks of one call. The messages of calls that the host carries
// out contain the tag, and every rank publishes the tag of its current collective on its status board. So if ranks
// disagree, the error can name the argument and the rank that differ. (Mailboxes carry only a hash of the tag, and
// messages between GPUs only a hash of its fields without `sequence` and `tile_bytes`.) A value.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

struct CallTag {
  // The number of the call, from 1. The collectives of a communicator are counted together, and its sends and receives
  // for each peer and direction. 0: there was no call yet.
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;     // elements of one block; for a v-variant that runs as a plan: sum over all blocks
  std::uint8_t kind = 0;       // CollectiveKind
  std::uint8_t type = 0;       // DataType
  std::uint8_t op = 0;         // ReduceOp
  std::uint8_t algorithm = 0;  // the Algorithm that is used; 0 for sends and receives
  // Length in bytes of the longest message that the call may send: the length of a slot, or the length that a rule of
  // TUTTI_TUNE sets; 0 if GPUs carry the call out. It can differ between ranks, for example if a rule applies and only
  // some of the ranks name the algorithm in the call, because rules do not apply to the calls of these ranks.
  std::uint32_t tile_bytes = 0;
  std::uint32_t root = 0;  // 0 if the collective has no root
  // Checksum of the arguments that have no field here: block lengths of a v-variant, user plan, user reduction. 0: the
  // call has no such arguments. For calls that Tutti makes for itself: the CallPurpose.
  std::uint32_t digest = 0;

  bool operator==(const CallTag&) const = default;
};
static_assert(sizeof(CallTag) == 32 && alignof(CallTag) == 8);

// What a call is made for. Calls that Tutti makes for itself have this value as their `digest`, so that they do not
// match a call of the application with the same arguments, and so that errors can name them.
enum class CallPurpose : std::uint32_t {
  kApplication = 0,
  kVote = 0x564f5445,             // the vote on a uniform call
  kChecksumBarrier = 0x42415252,  // the barrier at the beginning of a call with a checksum
  kChecksumSetUp = 0x5457494e,    // a step of the first call with a checksum, which makes a second communicator
  kSetUpRound = 0x524f554e,       // the first half of a set-up round, for example in split() or register_memory()
};
// kApplication if the digest is none of the other values.
CallPurpose purpose_of(const CallTag& tag);

// The value of `type` and `op` if the call has a UserReduction.
inline constexpr std::uint8_t kUserTag = 0xff;

enum class CallArgument : std::uint8_t {
  kNone = 0,
  kSequence,
  kCollective,
  kCount,
  kType,
  kOp,
  kAlgorithm,
  kTileBytes,
  kRoot,
  kDigest,
  // The following values are not arguments of a call. They accompany ErrorCode::kSystem, and name the resource that the
  // rank ran out of, or the permission that it lacks.
  kDescriptors,
  kMappings,
  kPermission
};
inline constexpr CallArgument kLastCallArgument = CallArgument::kPermission;

// The first argument in which the two tags differ, in the order of CallArgument, except that kTileBytes is compared
// last. kNone if they are equal.
CallArgument first_difference(const CallTag& a, const CallTag& b);

// Whether the call runs a user plan, which was passed to Communicator::use_plan().
bool uses_callers_plan(const CallTag& tag);

// For example "all_reduce #12 (8 float32, sum, ring)", "all_gather #3 (8 float32, ring)" or
// "broadcast #4 (8 int8, root 2, tree)". If Tutti makes the call for itself, its purpose comes first: "the vote on a
// uniform call, all_reduce #13 (1 int32, min, one_shot)".
std::string describe(const CallTag& tag);
// The value of one argument of `tag`, for example "count 8" or "type float32". For kDigest: the arguments that the
// digest can cover, and the digest.
std::string describe(const CallTag& tag, CallArgument argument);

}  // namespace tutti

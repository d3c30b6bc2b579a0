// CallTag: what must be the same on all ranks of one call. It travels in every message and stands on every rank's
// status board, so that ranks that disagree are told which argument of which rank differs. A value.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

struct CallTag {
  std::uint64_t sequence = 0;    // 1, 2, 3 ... per communicator; 0: no call yet
  std::uint64_t count = 0;       // elements
  std::uint8_t kind = 0;         // CollectiveKind
  std::uint8_t type = 0;         // DataType
  std::uint8_t op = 0;           // ReduceOp
  std::uint8_t algorithm = 0;    // Algorithm as carried out (never kAuto)
  std::uint32_t tile_bytes = 0;  // longest chunk of the tiling; differs when ranks' configurations do
  std::uint32_t root = 0;        // of the collectives that have one, else 0
  std::uint32_t digest = 0;      // of what has no field here: v-counts, a user's plan or reduction; 0: none

  bool operator==(const CallTag&) const = default;
};
static_assert(sizeof(CallTag) == 32 && alignof(CallTag) == 8);

// Stands in `type` and `op` for a reduction of the caller's own.
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
  // Not arguments of a call: with ErrorCode::kSystem, what the rank ran out of, or was not allowed.
  kDescriptors,
  kMappings,
  kPermission
};
inline constexpr CallArgument kLastCallArgument = CallArgument::kPermission;

// The first argument in which the two differ.
CallArgument first_difference(const CallTag& a, const CallTag& b);

// Whether a plan given to Communicator::use_plan() carries it out.
bool uses_callers_plan(const CallTag& tag);

// "all_reduce #12 (8 float32, sum, ring)", "all_gather #3 (8 float32, ring)", "broadcast #4 (8 int8, root 2, tree)"
std::string describe(const CallTag& tag);
// "count 8", "type float32" ...: the named argument's value in `tag`. Of a digest: what enters it.
std::string describe(const CallTag& tag, CallArgument argument);

}  // namespace tutti

// Overrides: rules (TUTTI_TUNE) by which a user selects algorithms instead of the tuner and the rules of thumb, for
// example "all_reduce:..64K:ranks<=8=one_shot; broadcast=tree". Values; may be used from any thread.
//
//   rule       collective [":" condition]... "=" algorithm ["/" chunk]        rules are separated by ";"
//   chunk      the length of the longest message, in bytes or with K or M: a multiple of 4K, not longer than a slot.
//              (In most plans each message carries one chunk, so this is also the longest chunk.)
//   condition  "A..B", "A..", "..B": the bytes of one block, A and B included; numbers may have K, M, G or T
//              "ranks<=N", "ranks>=N", "ranks=N": the number of ranks of the communicator
//              several conditions must all be true; without a condition, a rule fits all calls of the collective
//
// The first rule that fits a call decides, so if several rules fit a call, the earliest one has priority. Two rules
// with the same collective and the same conditions but another algorithm or chunk are an error. AlgorithmSelector
// also skips a rule if its algorithm cannot execute the call, for example because the call requires rank order, or
// because the algorithm has no plan for that number of ranks.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti {

struct Override {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  // The four limits are inclusive: a call whose size or number of ranks equals a limit fits. The defaults do not
  // exclude any call.
  std::uint64_t min_bytes = 0;
  std::uint64_t max_bytes = UINT64_MAX;
  std::uint32_t min_ranks = 0;
  std::uint32_t max_ranks = UINT32_MAX;
  // one of algorithms_of(kind) after parse_overrides(), never kAuto
  Algorithm algorithm = Algorithm::kAuto;
  // The length of the longest message in bytes. 0: the rule has no "/ chunk", so the longest message is as long as a
  // slot.
  std::uint32_t chunk_bytes = 0;

  // True if the conditions of the rule are true for a call. `bytes` is the length of one block.
  bool fits(CollectiveKind one, std::uint64_t bytes, std::uint32_t ranks) const {
    return kind == one && bytes >= min_bytes && bytes <= max_bytes && ranks >= min_ranks && ranks <= max_ranks;
  }
  bool operator==(const Override&) const = default;
};

// limit on the length of the text of all rules
inline constexpr std::size_t kMostOverrideBytes = 1024;
// limit on the number of rules
inline constexpr std::size_t kMostOverrides = 64;

// Returns the rules in their order; no rules for an empty text. Empty rules, as after a last ";", are skipped.
// `slot_bytes` limits Override::chunk_bytes. Errors: kConfig if the text is too long, if there are too many rules, or
// if a rule is wrong. The message about a wrong rule has its number, its text, and mostly the values that are allowed.
Result<std::vector<Override>> parse_overrides(std::string_view text, std::uint64_t slot_bytes = kMostSlotBytes);

}  // namespace tutti

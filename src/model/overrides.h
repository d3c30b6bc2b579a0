// Overrides: rules with which a user replaces the tuner's choice, for example "all_reduce:..64K:ranks<=8=one_shot;
// broadcast=tree". Values; may be used from any thread.
//
//   rule       collective [":" condition]... "=" algorithm ["/" chunk]        rules are separated by ";"
//   chunk      the longest chunk, in bytes, with K or M: a multiple of 4K, not longer than a slot
//   condition  "A..B", "A..", "..B": bytes of one block, both ends included, with K, M, G or T
//              "ranks<=N", "ranks>=N", "ranks=N": number of ranks of the communicator
//
// The first rule that fits a call is used, so if rules overlap, the earlier one has priority. Two rules with the
// same conditions but different results are an error. A rule does not fit a call that its algorithm cannot
// execute, for example because the call requires rank order, or because the algorithm has no plan for that many
// ranks.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti {

struct Override {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::uint64_t min_bytes = 0;
  std::uint64_t max_bytes = UINT64_MAX;
  std::uint32_t min_ranks = 0;
  std::uint32_t max_ranks = UINT32_MAX;
  Algorithm algorithm = Algorithm::kAuto;  // one of algorithms_of(kind)
  std::uint32_t chunk_bytes = 0;           // 0: as long as a slot

  bool fits(CollectiveKind one, std::uint64_t bytes, std::uint32_t ranks) const {
    return kind == one && bytes >= min_bytes && bytes <= max_bytes && ranks >= min_ranks && ranks <= max_ranks;
  }
  bool operator==(const Override&) const = default;
};

inline constexpr std::size_t kMostOverrideBytes = 1024;  // length of the text
inline constexpr std::size_t kMostOverrides = 64;

// The longest chunk that a rule may have if the slot size is not known yet. It is the maximum of TUTTI_SLOT_BYTES.
inline constexpr std::uint64_t kMostChunkBytes = std::uint64_t{16} << 20;

// Errors: kConfig with the number of the rule, its text, and the values that are allowed. An empty text has no
// rules.
Result<std::vector<Override>> parse_overrides(std::string_view text, std::uint64_t slot_bytes = kMostChunkBytes);

}  // namespace tutti

// What a user says instead of the tuner: "all_reduce:..64K:ranks<=8=one_shot; broadcast=tree". Values; any thread.
//
//   rule       collective [":" condition]... "=" algorithm ["/" chunk]        rules are parted by ";"
//   chunk      the longest one, in bytes, with K or M: a multiple of 4K, no longer than a slot
//   condition  "A..B", "A..", "..B": bytes of one block, both ends included, with K, M or G
//              "ranks<=N", "ranks>=N", "ranks=N": of the communicator
//
// The first rule that fits a call is taken, so of rules that overlap the earlier one counts; two for the same calls
// that say different things are refused. One whose algorithm cannot do the call (ranks in order, a plan that is not
// there for so many ranks) does not fit it.
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
  std::uint32_t chunk_bytes = 0;           // 0: as long as a slot holds

  bool fits(CollectiveKind one, std::uint64_t bytes, std::uint32_t ranks) const {
    return kind == one && bytes >= min_bytes && bytes <= max_bytes && ranks >= min_ranks && ranks <= max_ranks;
  }
  bool operator==(const Override&) const = default;
};

inline constexpr std::size_t kMostOverrideBytes = 1024;  // of the text
inline constexpr std::size_t kMostOverrides = 64;

// The longest chunk that a rule may name where the slots are not known yet: TUTTI_SLOT_BYTES has no more.
inline constexpr std::uint64_t kMostChunkBytes = std::uint64_t{16} << 20;

// Errors: kConfig with the rule's number, its text, and what may stand there. An empty text has no rules.
Result<std::vector<Override>> parse_overrides(std::string_view text, std::uint64_t slot_bytes = kMostChunkBytes);

}  // namespace tutti

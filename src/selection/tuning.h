// Tuning: what all ranks of a job choose algorithms by. It is rank 0's: his file, or the defaults, and his rules travel
// in the round of set-up in which he names the communicator's id, so that ranks with other files choose alike. Values;
// any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "model/overrides.h"
#include "model/parameters.h"
#include "tutti/result.h"

namespace tutti::detail {

struct Tuning {
  Parameters parameters{};  // `cores` counts only as the limit of rank 0's cgroup; 0: none
  std::string rules{};      // the overrides as the user wrote them: what travels
  std::vector<Override> overrides{};
  bool measured = false;  // else the defaults

  bool operator==(const Tuning&) const = default;
};

// Of rank 0. A file that cannot be used is a warning, none an info line that names the remedy; both end with defaults.
Tuning own_tuning(const Config& config, std::uint32_t cpu_limit, const Log& log);

inline constexpr std::size_t kMostTuningBytes = 3900;  // of the text: a blob of set-up holds it, with the id
std::string pack(const Tuning& tuning);
// Errors: kRefused.
Result<Tuning> unpack(std::string_view text);

}  // namespace tutti::detail

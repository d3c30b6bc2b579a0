// Tuning: the data by which all ranks of a job select algorithms. It comes from rank 0: the costs in its tuning file
// or default costs, and its rules (TUTTI_TUNE). It is sent in the set-up round in which rank 0 sends the
// communicator's id, so that ranks with different files make the same selection. The functions and the type may be
// used by any thread.
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
  // Costs. Here `cores` is not the number of cores of a machine, but the limit of rank 0's cgroup, or 0 if there is
  // none.
  Parameters parameters{};
  std::string rules{};  // the overrides as the user wrote them; they are sent in this form
  std::vector<Override> overrides{};
  bool measured = false;  // true if `parameters` were measured, false if they are the defaults

  bool operator==(const Tuning&) const = default;
};

// Returns the tuning of rank 0. If the file cannot be used, it logs a warning. If there is no file, it logs a hint.
// In both cases it uses the default costs. The rules of TUTTI_TUNE apply in any case. Errors: kConfig if a rule is
// malformed. Other ranks do not check their own rules, because only those of rank 0 apply.
Result<Tuning> own_tuning(const Config& config, std::uint32_t cpu_limit, const Log& log);

// Maximum size of the packed text, because it must fit into one set-up blob together with the id.
inline constexpr std::size_t kMostTuningBytes = 3900;
std::string pack(const Tuning& tuning);
// Errors: kRefused if the text is malformed.
Result<Tuning> unpack(std::string_view text);

}  // namespace tutti::detail

// Tuning: the data by which all ranks of a job select algorithms. It comes from rank 0: the costs and choices in its
// tuning file or default costs, and its rules (TUTTI_TUNE). It is sent in the set-up round in which rank 0 sends the
// communicator's id, and again if the ranks measure choices (first_choices.h), so that ranks with different files make
// the same selection. The functions and the type may be used by any thread.
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
  // The costs. In them, Parameters::cores is not the number of cores of a machine, but the number of cores to which
  // the cgroup of rank 0 is limited, or 0 if there is no limit.
  Parameters parameters{};
  std::string rules{};  // the overrides as the user wrote them; they are sent in this form
  std::vector<Override> overrides{};
  // True if the costs in `parameters` were measured, false if they are the defaults. The choices in `parameters` can be
  // measured ones in both cases.
  bool measured = false;
  // Whether the ranks may measure missing choices before they make the first communicator (first_choices.h in
  // communicator/measurement).
  bool measure = false;

  bool operator==(const Tuning&) const = default;
};

// Returns the tuning of rank 0, with the costs and choices of its tuning file. If the file has no costs, the result has
// its choices and the default costs. If there is no file, or it cannot be used, the result has the default costs and no
// choices. Logs a hint in all these cases, and a warning if the file cannot be used. The rules of TUTTI_TUNE are in the
// result in any case; `measure` is not set. Errors: kConfig if a rule is malformed. The other ranks do not call this
// function, because only the rules, costs and choices of rank 0 are used.
Result<Tuning> own_tuning(const Config& config, std::uint32_t cpu_limit, const Log& log);

// Adds `choices` to the tuning file of this machine, unless the file already has choices for such ranks
// (has_choices()). `path` must be the path of this file: calibration_path("", environment), and not a path that the
// user has chosen. If the file does not exist, it is created with these choices and without costs. Errors:
// kInvalidArgument if the file has too many choices already, and the errors of load_calibration() and
// store_calibration().
Status add_choices(const std::string& path, const RankChoices& choices, const EnvironmentVariables& environment);

// The choices for a communicator of `ranks` ranks that share `cores` cores: those of rank 0's file, also if the
// communicator's machine is another one, or default_choices() if the file has none for such ranks. `tuning` may be
// null, as in tests without set-up; the result is then also default_choices().
MachineChoices choices_of(const Tuning* tuning, std::uint32_t ranks, std::uint32_t cores);

// Maximum size of the packed text, because it must fit into one set-up blob together with the id of the communicator
// and the CPUs of rank 0.
inline constexpr std::size_t kMostTuningBytes = 3700;
// Errors: kInvalidArgument if the costs and choices are too long to fit into kMostTuningBytes together with the longest
// rules.
Status check_size(const Tuning& tuning);
std::string pack(const Tuning& tuning);
// Errors: kRefused if the text is malformed.
Result<Tuning> unpack(std::string_view text);

}  // namespace tutti::detail

// Reads and writes plans as JSON: version 1 of the format "tutti_plan", described in docs/plan-json.md. Pure
// functions.
#pragma once

#include <string>
#include <string_view>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// The contents of a plan file: the plan, and labels for people.
struct PlanFile {
  Plan plan;
  std::string name{};     // must satisfy is_label()
  std::string comment{};  // must satisfy is_label()
  // False: the text has no field "windows_in_place", and the plan has the default of PlanShape::windows_in_place.
  bool says_windows_in_place = true;

  bool operator==(const PlanFile&) const = default;
};

// True if the text is UTF-8 of at most `most_bytes` bytes, without control characters and without characters that
// change the direction of text.
bool is_label(std::string_view text, std::size_t most_bytes);

// Writes one line for each step. name and comment must be labels. If the plan's channels were built with
// ChannelBuilder, the plan that is read back is equal to it. Otherwise the plan that is read back does the same.
std::string to_json(const PlanFile& file);

// Reads and checks the text. It does not verify the plan: the caller calls verify(). Every error contains its
// position: "line 3, column 7: ..." if the text is not JSON, and "ranks[2].channels[0].steps[5].receive[0].peer:
// ..." if it is. Uses at most about 10 times as much memory as the text. Errors: kInvalidPlan; kUnsupported if the
// version is unknown or if the plan exceeds PlanLimits (tutti/plan.h).
Result<PlanFile> parse_plan(std::string_view text);

}  // namespace tutti

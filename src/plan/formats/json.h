// Reads and writes plans as JSON: version 1 of the format "tutti_plan", described in docs/plan-json.md. Pure
// functions.
#pragma once

#include <string>
#include <string_view>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// The contents of a plan file: the plan, and a name and a comment for people.
struct PlanFile {
  Plan plan;
  // name and comment must satisfy is_label(). Empty: the file has no name, or no comment.
  std::string name{};
  std::string comment{};
  // Set by parse_plan(). False: the text has no field "windows_in_place", so the plan has the default value of
  // PlanShape::windows_in_place, and the caller may choose another one.
  bool says_windows_in_place = true;

  bool operator==(const PlanFile&) const = default;
};

// True if the text is UTF-8 of at most `most_bytes` bytes, without control characters and without characters that
// change the direction of text.
bool is_label(std::string_view text, std::size_t most_bytes);

// Returns the JSON text, with one line for each step. name and comment must satisfy is_label(). If the plan's
// channels were built with ChannelBuilder, parse_plan() returns an equal plan. Otherwise it returns a plan with
// the same steps, which may differ in its lists of ports.
std::string to_json(const PlanFile& file);

// Reads a plan from JSON text and checks its fields. Does not verify the plan: the caller must call verify(). An
// error in the text contains its position: "line 3, column 7: ..." if the text is not JSON, and otherwise the path
// of the field, "ranks[2].channels[0].steps[5].receive[0].peer: ...". Needs at most about 10 times as much memory
// as the text. Errors: kInvalidPlan; kUnsupported if the version of the format is unknown or if the plan exceeds
// PlanLimits (tutti/plan.h).
Result<PlanFile> parse_plan(std::string_view text);

}  // namespace tutti

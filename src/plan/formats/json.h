// Reads and writes plans as JSON: version kPlanFormat (json_words.h) of the format "tutti_plan", described in
// docs/plan-json.md. Pure functions.
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
  // False: the plan has the default value of PlanShape::windows_in_place, and the caller may choose another one. This
  // is so if parse_plan() found no field "windows_in_place" in the text, or if PlanBuilder has made the plan.
  bool says_windows_in_place = true;

  bool operator==(const PlanFile&) const = default;
};

// True if the text is UTF-8 of at most `most_bytes` bytes, without control characters and without characters that
// change the direction of text or separate lines (printable_bytes() in base/printable.h).
bool is_label(std::string_view text, std::size_t most_bytes);

// Returns the JSON text, with one line for each step. name and comment must satisfy is_label(). If the plan's channels
// were built with ChannelBuilder, and the plan and its text are within PlanLimits, parse_plan() returns an equal plan.
// Plans with other channels may come back with other lists of ports, but with the same steps.
std::string to_json(const PlanFile& file);

// Reads a plan from JSON text and checks its fields. Does not verify the plan: the caller must call verify(). The
// message of an error begins with its position, if there is one: "line 3, column 7" if the text is not JSON, and
// otherwise the path of the field, "ranks[2].channels[0].steps[5].receive[0].peer: ...". For usual plans, needs at most
// about 10 times as much memory as the text; PlanLimits bounds the memory for all others. Errors: kInvalidPlan;
// kUnsupported if the version of the format is unknown, or if the text, a list, or the number of steps, messages or
// waits of the plan is larger than PlanLimits (tutti/plan.h) allows.
Result<PlanFile> parse_plan(std::string_view text);

}  // namespace tutti

// Plans as text for people and programs: the format "tutti_plan" 1, told in docs/plan-json.md. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// A plan and what a file says beside it.
struct PlanFile {
  Plan plan;
  std::string name{};     // for people, see is_label()
  std::string comment{};  // the same
  // False: the text did not say whether PlanShape::windows_in_place, and the plan has the default.
  bool says_windows_in_place = true;

  bool operator==(const PlanFile&) const = default;
};

// UTF-8 without control characters and characters that change the direction of text, at most `most_bytes` long.
bool is_label(std::string_view text, std::size_t most_bytes);

// One line for each step. name and comment must be labels. Every plan whose channels came from ChannelBuilder is read
// back as an equal one; others as one that does the same.
std::string to_json(const PlanFile& file);

// Reads and checks the text, not the plan: verify() is left to the caller. Every error names its place: "line 3, column
// 7: ..." where the text is not JSON, "ranks[2].channels[0].steps[5].receive[0].peer: ..." where it is. Memory stays
// within some 10 times the text. Errors: kInvalidPlan; kUnsupported for another version and for more than PlanLimits
// (tutti/plan.h).
Result<PlanFile> parse_plan(std::string_view text);

}  // namespace tutti

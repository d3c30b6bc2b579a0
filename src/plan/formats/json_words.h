// Keywords of the JSON plan format, shared by its reader (json_fields.cc) and its writer (json.cc). Internal to
// this folder.
#pragma once

#include <cstdint>
#include <string_view>

#include "plan/plan.h"

namespace tutti {

inline constexpr std::uint64_t kPlanFormat = 1;  // the version of the format: the value of the field "tutti_plan"

std::string_view direction_word(Direction direction);
std::string_view order_word(Order order);

}  // namespace tutti

// Keywords of the plan format that its reader and its writer share. Internal to this folder.
#pragma once

#include <cstdint>
#include <string_view>

#include "plan/plan.h"

namespace tutti {

inline constexpr std::uint64_t kPlanFormat = 1;  // the value of "tutti_plan"

std::string_view direction_word(Direction direction);
std::string_view order_word(Order order);

}  // namespace tutti

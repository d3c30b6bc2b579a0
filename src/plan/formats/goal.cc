// to_goal() writes one line for each operation, which begins with a label ("l5"), and then one line for each dependency
// ("l5 requires l3": operation 5 starts after operation 3 has ended).
#include "plan/formats/goal.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace tutti {

std::string goal_header(std::uint32_t ranks) { return fmt::format("num_ranks {}\n", ranks); }

std::string to_goal(std::uint32_t rank, const std::vector<Operation>& operations) {
  std::string text = fmt::format("\nrank {} {{\n", rank);
  const auto out = std::back_inserter(text);
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Operation& each = operations[i];
    const std::uint64_t bytes = std::max<std::uint64_t>(each.bytes, 1);
    switch (each.kind) {
      case OperationKind::kStep: fmt::format_to(out, "l{}: calc 0\n", i); break;
      case OperationKind::kSend:
        fmt::format_to(out, "l{}: send {}b to {} tag {}\n", i, bytes, each.peer, each.tag);
        break;
      case OperationKind::kReceive:
        fmt::format_to(out, "l{}: recv {}b from {} tag {}\n", i, bytes, each.peer, each.tag);
        break;
    }
  }
  for (std::size_t i = 0; i < operations.size(); ++i) {
    for (const std::uint32_t before : operations[i].after) fmt::format_to(out, "l{} requires l{}\n", i, before);
  }
  text += "}\n";
  return text;
}

}  // namespace tutti

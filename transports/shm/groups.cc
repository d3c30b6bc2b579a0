#include "transports/shm/groups.h"

#include <algorithm>
#include <cstddef>

namespace tutti {

std::vector<std::uint32_t> local_groups(const std::vector<std::vector<bool>>& reaches) {
  const auto reach = [&](std::uint32_t from, std::uint32_t to) {
    return to < reaches[from].size() && reaches[from][to];
  };
  std::vector<std::vector<std::uint32_t>> groups;
  std::vector<std::uint32_t> lowest;
  for (std::uint32_t rank = 0; rank < reaches.size(); ++rank) {
    // Whether `rank` and all members of the group reach each other, so that `rank` can join.
    const auto takes = [&](const std::vector<std::uint32_t>& group) {
      return std::all_of(group.begin(), group.end(),
                         [&](std::uint32_t member) { return reach(rank, member) && reach(member, rank); });
    };
    auto group = std::find_if(groups.begin(), groups.end(), takes);
    if (group == groups.end()) group = groups.insert(group, std::vector<std::uint32_t>());
    group->push_back(rank);
    lowest.push_back(group->front());
  }
  return lowest;
}

}  // namespace tutti

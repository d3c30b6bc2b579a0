// Which ranks share memory. A pure function of what all ranks have told each other, so that all decide alike.
#pragma once

#include <cstdint>
#include <vector>

namespace tutti {

// reaches[a][b]: rank a has found that it reaches rank b. Returns for every rank the lowest rank of its group. In a
// group every rank reaches every other one, both ways, whatever a rank claims about itself. Where that does not
// divide the ranks by itself (a reaches b, b reaches c, but a does not reach c), each rank in turn joins the group with
// the lowest ranks that takes it. Missing entries count as "does not reach".
std::vector<std::uint32_t> local_groups(const std::vector<std::vector<bool>>& reaches);

}  // namespace tutti

// Determines which ranks can share memory. It is a pure function of data that all ranks have exchanged, so all ranks
// get the same result.
#pragma once

#include <cstdint>
#include <vector>

namespace tutti {

// reaches[a][b] is true if rank a has found that it can reach rank b; missing elements count as false. Element r of
// the result is the lowest rank of the group to which rank r belongs. Within a group, every rank reaches every other
// one in both directions; the entry of a rank for itself does not matter. `reaches` need not divide the ranks into
// groups by itself: for example, a reaches b and b reaches c, but a does not reach c. So the ranks are assigned in
// ascending order, and each rank joins the first group of which all members reach the rank and are reached by it, or
// begins a new group if there is none.
std::vector<std::uint32_t> local_groups(const std::vector<std::vector<bool>>& reaches);

}  // namespace tutti

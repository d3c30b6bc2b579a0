// Computes the bytes that a call sends over each link. Pure functions, internal to this folder.
#pragma once

#include <cstdint>
#include <vector>

#include "model/network.h"
#include "model/programs.h"
#include "model/simulate.h"

namespace tutti {

// The copies of a plan on a network, one for each channel. In each copy, the ranks of a machine are rotated by one
// more. A plan with a root is not rotated, because its root is a fixed rank, which sends or receives the bytes of
// all copies.
struct Copies {
  std::uint32_t count = 1;
  std::uint32_t per_machine = 1;

  Copies(const Programs& programs, const Network& network, std::uint32_t copies)
      : count(copies), per_machine(programs.rooted ? 1 : network.ranks_per_machine()) {}

  std::uint32_t turns() const { return count < per_machine ? count : per_machine; }
  std::uint32_t with_turn(std::uint32_t turn) const {
    return count / per_machine + (turn < count % per_machine ? 1 : 0);
  }
  std::uint32_t turned(std::uint32_t rank, std::uint32_t turn) const {
    return rank - rank % per_machine + (rank % per_machine + turn) % per_machine;
  }
};

// Number of messages of one tile on every link: for all copies together, and for the first copy alone. Empty if
// there are so many routes that walking them would take more than seconds.
struct LinkCounts {
  std::vector<double> all;
  std::vector<double> first;
};
LinkCounts count_on_links(const Programs& programs, const Network& network, std::uint32_t copies);

// `bytes_per_message` is the sum over all tiles, for one copy.
std::vector<LinkLoad> busiest_links(const LinkCounts& counts, const Network& network, double bytes_per_message,
                                    double time_us);

}  // namespace tutti

// What a call puts on each link. Pure function; internal to this folder.
#pragma once

#include <cstdint>
#include <vector>

#include "model/network.h"
#include "model/programs.h"
#include "model/simulate.h"

namespace tutti {

// The copies of a plan on a network: turned by one rank of the machine each. Those of a plan with a root are not: the
// root is one rank, and has the bytes of all copies.
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

// Messages of one tile on every link: of all copies together, and of the first alone. Empty where the routes are more
// than can be walked in seconds.
struct LinkCounts {
  std::vector<double> all;
  std::vector<double> first;
};
LinkCounts count_on_links(const Programs& programs, const Network& network, std::uint32_t copies);

// `bytes_per_message`: of all tiles together, of one copy.
std::vector<LinkLoad> busiest_links(const LinkCounts& counts, const Network& network, double bytes_per_message,
                                    double time_us);

}  // namespace tutti

// Computes the bytes that one call sends over each link of a network. A link is one direction of the connection between
// two components, for example from a GPU to a switch, or from a NIC to its leaf switch (Network::name()). Pure
// functions, internal to this folder.
#pragma once

#include <cstdint>
#include <vector>

#include "model/network.h"
#include "model/programs.h"
#include "model/simulate.h"

namespace tutti {

// The copies of a plan, one for each channel of the call (SimulateOptions::channels), and the ranks that run them. In
// copy k, each role of the plan is taken by the rank k places later on the same machine, modulo the ranks of a machine.
// So copies with different k can use different NICs. A plan with a root is not rotated, because its root is a fixed
// rank, which sends or receives the bytes of all copies. A turn is a rotation: 0 .. turns()-1.
struct Copies {
  // number of copies
  std::uint32_t count = 1;
  // number of possible rotations: the ranks of a machine, or 1 for a plan with a root
  std::uint32_t per_machine = 1;

  Copies(const Programs& programs, const Network& network, std::uint32_t copies)
      : count(copies), per_machine(programs.rooted ? 1 : network.ranks_per_machine()) {}

  // Number of rotations that at least one copy has.
  std::uint32_t turns() const { return count < per_machine ? count : per_machine; }
  // Number of copies that have this rotation.
  std::uint32_t with_turn(std::uint32_t turn) const {
    return count / per_machine + (turn < count % per_machine ? 1 : 0);
  }
  // The rank that takes the role of `rank` in the copies with this rotation.
  std::uint32_t turned(std::uint32_t rank, std::uint32_t turn) const {
    return rank - rank % per_machine + (rank % per_machine + turn) % per_machine;
  }
};

// The number of chunks that the messages of one tile carry over each link, indexed by link (Network::links()). A
// message with a run of n chunks counts n times. Both vectors are empty if the network has no links, or if the plan has
// so many connections (more than kMostRoutes routes, link_loads.cc) that computing all routes would take many seconds.
struct LinkCounts {
  std::vector<double> all;    // the chunks of all copies together
  std::vector<double> first;  // the chunks of copy 0
};
LinkCounts count_on_links(const Programs& programs, const Network& network, std::uint32_t copies);

// Returns the links that are used most, at most kMostBusiest, the busiest first. Links without bytes are left out.
// `bytes_per_chunk` is the length of a chunk, summed over all tiles of one copy (`counts` is for one tile). `time_us`
// is the duration of the call, for LinkLoad::utilisation. If `counts` is empty, the result is empty.
std::vector<LinkLoad> busiest_links(const LinkCounts& counts, const Network& network, double bytes_per_chunk,
                                    double time_us);

}  // namespace tutti

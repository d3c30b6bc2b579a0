// Network: a cluster as the simulator sees it. It has numbered directed links with a capacity, and computes the
// links of the route between two ranks. The paths inside a machine are computed once from its graph, and the links
// of the fabric by arithmetic, so 100,000 ranks need no more memory than one machine. A value; may be read by any
// thread.
//
// A message between machines leaves through the network port (NIC) nearest to the sender. Ranks with several
// equally near NICs use them round-robin. It arrives through the NIC of the receiver, which is selected in the
// same way. Between leaf switches, it uses the spine switch that the receiving port is assigned to, (machine +
// port) modulo spines, as in destination routing. So the ports of one machine, and the same port of neighbouring
// machines, are distributed over all spines.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "model/parameters.h"
#include "topology/cluster.h"
#include "tutti/result.h"

namespace tutti {

// It has 41 methods and members, because it answers the questions of all cost formulas about ranks, machines and links.
class Network {
 public:
  // Errors: kInvalidArgument if ranks of a machine cannot reach each other, or if there are several machines
  // without NICs.
  static Result<Network> create(const Cluster& cluster);

  // Returns the same network without these links. A link is identified by its name in either direction. Traffic
  // uses other routes. Errors: kInvalidArgument if a link with this name does not exist (the message contains the
  // nearest name or a list), or if some ranks can no longer reach each other (the message names them).
  Result<Network> without(std::span<const std::string> dead_links) const;

  std::uint32_t ranks() const { return machines_ * ranks_per_machine_; }
  std::uint32_t ranks_per_machine() const { return ranks_per_machine_; }
  // Adding this number, or a multiple, to every rank maps the network to itself. It divides ranks().
  std::uint32_t period() const { return period_; }
  // The same, under the assumption that messages to other leaf switches cost as much as those within one.
  std::uint32_t period_of_machines() const { return machine_period_; }

  Level level(std::uint32_t from, std::uint32_t to) const;
  // Bandwidth of the narrowest link of the route; 0 if the route has no links.
  double narrowest_gbytes_per_s(std::uint32_t from, std::uint32_t to) const;

  // The NIC through which a rank sends to other machines: 0 .. ports()-1. Only defined if there are several
  // machines.
  std::uint64_t port(std::uint32_t rank) const;
  std::uint64_t ports() const { return machines_ == 1 ? 0 : std::uint64_t{machines_} * nics_.size(); }

  // Directed links are numbered 0 .. links()-1.
  std::uint64_t links() const { return spine_links_ + 2 * std::uint64_t{leaves_} * fabric_.spines; }
  void route(std::uint32_t from, std::uint32_t to, std::vector<std::uint64_t>& links) const;
  double gbytes_per_s(std::uint64_t link) const;
  std::string name(std::uint64_t link) const;  // for example "machine 3: gpu0 -> nvswitch", "leaf 2 -> spine 5"

 private:
  // The paths inside one machine. They are the same for all machines without dead links.
  struct MachinePaths {
    std::vector<std::vector<Path>> paths;  // [index into places_][node]
    std::vector<std::uint32_t> nic;        // indexed by local rank: index into nics_
  };
  // The dead links of one machine, and the NICs with a dead link to the network.
  struct DeadLinks {
    std::uint32_t machine = 0;
    std::set<std::uint32_t> links;  // links of the graph
    std::set<std::uint32_t> nics;
  };

  Network() = default;
  Status lay_out(const Cluster& cluster);
  void find_periods();
  Result<MachinePaths> make_inside(const Graph& graph, const DeadLinks& dead) const;
  const MachinePaths& inside_of(std::uint32_t machine) const;
  const Path& path_inside(std::uint32_t from, std::uint32_t to) const;
  std::uint32_t leaf_of(std::uint32_t machine, std::uint32_t nic) const;
  std::uint32_t spine_between(std::uint32_t from_leaf, std::uint32_t to_leaf, std::uint32_t dealt) const;
  std::uint64_t uplink(std::uint32_t leaf, std::uint32_t spine) const {
    return spine_links_ + 2 * (std::uint64_t{leaf} * fabric_.spines + spine);
  }
  Status find_dead(const std::string& name, std::map<std::uint32_t, DeadLinks>& machines);
  std::string no_such_link(const std::string& wanted, std::uint32_t machine) const;
  Status check_spines() const;

  Graph graph_;
  Fabric fabric_;
  std::uint32_t machines_ = 1;
  std::uint32_t ranks_per_machine_ = 1;
  std::vector<std::uint32_t> nics_;      // nodes of the graph
  std::vector<std::uint32_t> places_;    // nodes of the graph that have ranks
  std::vector<std::uint32_t> place_of_;  // indexed by local rank: index into places_
  std::uint32_t leaves_ = 0;             // 0: the NICs of all machines are connected to one switch
  double spine_gbytes_per_s_ = 0;        // bandwidth of one uplink
  std::uint64_t wire_links_ = 0;         // number of the first link between a NIC and its switch
  std::uint64_t spine_links_ = 0;        // number of the first link between a leaf and a spine
  std::uint32_t period_ = 1;
  std::uint32_t machine_period_ = 1;
  MachinePaths inside_;
  std::map<std::uint32_t, MachinePaths> changed_;  // machines with dead links
  std::set<std::uint64_t> dead_spine_links_;
};

}  // namespace tutti

// Network: a cluster as the simulator sees it. It numbers the directed links of the cluster, each with its
// bandwidth, and computes the links of the route between two ranks. The paths inside a machine are computed once
// from the graph of one machine, and the links between machines by arithmetic. So, without dead links, 100,000 ranks
// need no more memory than one machine. A value; may be read by any thread.
//
// A message between machines leaves through the NIC nearest to the sender. If several NICs are equally near to
// several ranks, the ranks use these NICs round-robin. The message arrives through the NIC that the receiver would
// send through. Between leaf switches, it uses the spine switch (machine + NIC) modulo spines, with the receiver's
// machine and NIC, as in destination routing (or the next spine with working links, if links are dead). So the NICs of
// one machine, and the NICs of neighbouring machines, are distributed over the spines.
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

// Network has many methods and members, because it answers the questions of all cost formulas about ranks, machines and
// links.
class Network {
 public:
  // Errors: kInvalidArgument if the numbers of machines or ranks are not possible, if a machine has neither GPUs nor
  // CPUs, or if ranks of a machine cannot reach each other. With several machines, also if a machine has no usable NIC,
  // if a rank has no path to one, or if the fabric has no spines or an oversubscription below 1.
  static Result<Network> create(const Cluster& cluster);

  // Returns this network without the links of these names (see name()). The name of either direction removes both
  // directions. Messages then use other routes. Must not be called on a network from which links were removed
  // already. Errors: kInvalidArgument if a link with this name does not exist (the message suggests names or the range
  // of machines), or if some ranks, or some leaf switches, can no longer reach each other (the message names them).
  Result<Network> without(std::span<const std::string> dead_links) const;

  std::uint32_t ranks() const { return machines_ * ranks_per_machine_; }
  std::uint32_t ranks_per_machine() const { return ranks_per_machine_; }
  // Adding this number, or a multiple of it, to every rank (modulo ranks()) changes neither level() nor
  // narrowest_gbytes_per_s() of any two ranks. It divides ranks(). It is ranks() if no smaller period is known.
  std::uint32_t period() const { return period_; }
  // As period(), under the assumption that messages of the level kSpine cost as much as those of the level kNic. It is
  // ranks() if an uplink is slower than the fastest NIC, or if links are dead.
  std::uint32_t period_of_machines() const { return machine_period_; }

  // The slowest component on the route from one rank to another.
  Level level(std::uint32_t from, std::uint32_t to) const;
  // Bandwidth of the narrowest link of the route from one rank to another, in GB/s. 0 if the route has no links,
  // because both ranks are at the same CPU or are the same rank.
  double narrowest_gbytes_per_s(std::uint32_t from, std::uint32_t to) const;

  // The number of the NIC through which a rank sends to other machines: 0 .. ports()-1. Must not be called if there
  // is only one machine.
  std::uint64_t port(std::uint32_t rank) const;
  // Number of usable NICs (known speed above 0) of all machines together; 0 if there is only one machine.
  std::uint64_t ports() const { return machines_ == 1 ? 0 : std::uint64_t{machines_} * nics_.size(); }

  // Number of directed links. They are numbered 0 .. links()-1.
  std::uint64_t links() const { return spine_links_ + 2 * std::uint64_t{leaves_} * fabric_.spines; }
  // Stores the numbers of the links of the route in `links`, in the order from sender to receiver. `links` is then
  // empty if both ranks are at the same CPU or are the same rank.
  void route(std::uint32_t from, std::uint32_t to, std::vector<std::uint64_t>& links) const;
  // Bandwidth of a link.
  double gbytes_per_s(std::uint64_t link) const;
  std::string name(std::uint64_t link) const;  // for example "machine 3: gpu0 -> nvswitch", "leaf 2 -> spine 5"

 private:
  // The paths inside one machine. All machines without dead links share one object (inside_).
  struct MachinePaths {
    // indexed by place (index into places_), then by node of the graph
    std::vector<std::vector<Path>> paths;
    // indexed by local rank: the NIC through which it sends, an index into nics_; empty if there is one machine
    std::vector<std::uint32_t> nic;
  };
  // The dead links inside one machine, and those between its NICs and the network.
  struct DeadLinks {
    std::uint32_t machine = 0;
    // dead links inside the machine, as indices into Graph::links
    std::set<std::uint32_t> links;
    // NICs with a dead link to the network, as indices into nics_
    std::set<std::uint32_t> nics;
  };

  Network() = default;
  Status lay_out(const Cluster& cluster);
  void find_periods();
  Result<MachinePaths> make_inside(const Graph& graph, const DeadLinks& dead) const;
  const MachinePaths& inside_of(std::uint32_t machine) const;
  const Path& path_inside(std::uint32_t from, std::uint32_t to) const;
  // Number of the leaf switch to which a NIC (an index into nics_) of a machine is connected.
  std::uint32_t leaf_of(std::uint32_t machine, std::uint32_t nic) const;
  std::uint32_t spine_between(std::uint32_t from_leaf, std::uint32_t to_leaf, std::uint32_t dealt) const;
  std::uint64_t uplink(std::uint32_t leaf, std::uint32_t spine) const {
    return spine_links_ + 2 * (std::uint64_t{leaf} * fabric_.spines + spine);
  }
  // Finds the link of this name, and adds it to `machines` or to dead_spine_links_.
  Status find_dead(const std::string& name, std::map<std::uint32_t, DeadLinks>& machines);
  std::string no_such_link(const std::string& wanted, std::uint32_t machine) const;
  Status check_spines() const;

  Graph graph_;
  Fabric fabric_;
  std::uint32_t machines_ = 1;
  std::uint32_t ranks_per_machine_ = 1;
  // nodes of the graph: the NICs with a known speed above 0
  std::vector<std::uint32_t> nics_;
  // nodes of the graph at which ranks can be: its GPUs, or its CPUs if it has no GPUs
  std::vector<std::uint32_t> places_;
  // indexed by local rank: index into places_
  std::vector<std::uint32_t> place_of_;
  // number of leaf switches; 0: there are none, because there is one machine, or one switch connects all NICs
  std::uint32_t leaves_ = 0;
  // bandwidth of one uplink, which is a link between a leaf and a spine switch
  double spine_gbytes_per_s_ = 0;
  // number of the first link between a NIC and its switch
  std::uint64_t wire_links_ = 0;
  // number of the first link between a leaf and a spine switch
  std::uint64_t spine_links_ = 0;
  std::uint32_t period_ = 1;
  std::uint32_t machine_period_ = 1;
  MachinePaths inside_;
  // indexed by machine: the paths of the machines with dead links
  std::map<std::uint32_t, MachinePaths> changed_;
  // even numbers of uplinks, each for both directions of the cable
  std::set<std::uint64_t> dead_spine_links_;
};

}  // namespace tutti

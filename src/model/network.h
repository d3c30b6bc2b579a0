// The network of a cluster as the simulator sees it: numbered directed links with a capacity, and the links that a
// message between two ranks passes. Computed from the machine's graph once and from the fabric by arithmetic, so that
// 100,000 ranks cost no more memory than one machine. A value; any thread.
//
// A message between machines leaves by the network port (NIC) that is nearest to its rank, of equally near ones by the
// one of the rank's number among the ranks that share them, and comes in by that of the other rank. Between leaf
// switches it takes the spine that the receiving port is dealt to, (machine + port) modulo spines, as destination
// routing does: the ports of one machine, and one port of neighbouring machines, spread over all spines.
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

class Network {
 public:
  // Errors: kInvalidArgument where ranks of a machine do not reach each other, or machines have no NIC between them.
  static Result<Network> create(const Cluster& cluster);

  // The same without these links, each named in either of its directions: traffic takes another way. Errors:
  // kInvalidArgument for a name that no link has, with the nearest one or a list, or where some ranks reach each other
  // no more, with who is cut off.
  Result<Network> without(std::span<const std::string> dead_links) const;

  std::uint32_t ranks() const { return machines_ * ranks_per_machine_; }
  std::uint32_t ranks_per_machine() const { return ranks_per_machine_; }
  // Shifting every rank by this many (or a multiple) maps the network onto itself; a divisor of ranks().
  std::uint32_t period() const { return period_; }
  // The same, as if messages to other leaf switches cost what those to the own one do.
  std::uint32_t period_of_machines() const { return machine_period_; }

  Level level(std::uint32_t from, std::uint32_t to) const;
  // The narrowest link of the route; 0: it passes none.
  double narrowest_gbytes_per_s(std::uint32_t from, std::uint32_t to) const;

  // Which NIC a rank sends by to other machines; 0 .. ports()-1. Only where there are several machines.
  std::uint64_t port(std::uint32_t rank) const;
  std::uint64_t ports() const { return machines_ == 1 ? 0 : std::uint64_t{machines_} * nics_.size(); }

  // Directed links, numbered 0 .. links()-1.
  std::uint64_t links() const { return spine_links_ + 2 * std::uint64_t{leaves_} * fabric_.spines; }
  void route(std::uint32_t from, std::uint32_t to, std::vector<std::uint64_t>& links) const;
  double gbytes_per_s(std::uint64_t link) const;
  std::string name(std::uint64_t link) const;  // "machine 3: gpu0 -> nvswitch", "leaf 2 -> spine 5"

 private:
  // One machine's inside; all are alike but those with dead links.
  struct Inside {
    std::vector<std::vector<Path>> paths;  // [place][node]
    std::vector<std::uint32_t> nic;        // of each local rank: index into nics_
  };
  struct Wires {  // of one machine's NICs, by name
    std::uint32_t machine = 0;
    std::set<std::uint32_t> links;  // of the graph
    std::set<std::uint32_t> nics;
  };

  Network() = default;
  Status lay_out(const Cluster& cluster);
  void find_periods();
  Result<Inside> make_inside(const Graph& graph, const Wires& dead) const;
  const Inside& inside_of(std::uint32_t machine) const;
  const Path& path_inside(std::uint32_t from, std::uint32_t to) const;
  std::uint32_t leaf_of(std::uint32_t machine, std::uint32_t nic) const;
  std::uint32_t spine_between(std::uint32_t from_leaf, std::uint32_t to_leaf, std::uint32_t dealt) const;
  std::uint64_t uplink(std::uint32_t leaf, std::uint32_t spine) const {
    return spine_links_ + 2 * (std::uint64_t{leaf} * fabric_.spines + spine);
  }
  Status find_dead(const std::string& name, std::map<std::uint32_t, Wires>& machines);
  std::string no_such_link(const std::string& wanted, std::uint32_t machine) const;
  Status check_spines() const;

  Graph graph_;
  Fabric fabric_;
  std::uint32_t machines_ = 1;
  std::uint32_t ranks_per_machine_ = 1;
  std::vector<std::uint32_t> nics_;      // nodes of the graph
  std::vector<std::uint32_t> places_;    // nodes of the graph on which ranks stand
  std::vector<std::uint32_t> place_of_;  // of each local rank: index into places_
  std::uint32_t leaves_ = 0;             // 0: NICs of all machines meet in one switch
  double spine_gbytes_per_s_ = 0;        // of one uplink
  std::uint64_t wire_links_ = 0;         // the first link between a NIC and its switch
  std::uint64_t spine_links_ = 0;        // the first link between a leaf and a spine
  std::uint32_t period_ = 1;
  std::uint32_t machine_period_ = 1;
  Inside inside_;
  std::map<std::uint32_t, Inside> changed_;  // machines with dead links
  std::set<std::uint64_t> dead_spine_links_;
};

}  // namespace tutti

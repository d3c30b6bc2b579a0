#include "tools/topo/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "base/assert.h"
#include "tools/topo/packing.h"
#include "tools/topo/tours.h"

namespace tutti {
namespace {

// The places of a machine (its GPUs, or its CPUs if there are no GPUs), and the best paths between them, to the NICs,
// and from the NICs.
struct Machine {
  const Graph& graph;
  std::vector<std::uint32_t> places;  // indices of the nodes in the graph
  std::vector<std::uint32_t> nics;
  std::vector<std::vector<Path>> between;  // indexed by [from][to], both places
  std::vector<std::vector<Path>> to_nic;   // indexed by [nic][place]
  std::vector<std::vector<Path>> from_nic;

  explicit Machine(const Graph& of)
      : graph(of), places(nodes_of(of, NodeKind::kGpu)), nics(nodes_of(of, NodeKind::kNic)) {
    if (places.empty()) places = nodes_of(of, NodeKind::kCpu);
    to_nic.resize(nics.size());
    for (std::uint32_t place : places) {
      const std::vector<Path> paths = paths_from(graph, place);
      between.emplace_back();
      for (std::uint32_t other : places) between.back().push_back(paths[other]);
      for (std::size_t nic = 0; nic < nics.size(); ++nic) to_nic[nic].push_back(paths[nics[nic]]);
    }
    for (std::uint32_t nic : nics) {
      const std::vector<Path> paths = paths_from(graph, nic);
      from_nic.emplace_back();
      for (std::uint32_t place : places) from_nic.back().push_back(paths[place]);
    }
    for (std::size_t nic = 0; nic < nics.size(); ++nic) to_nic[nic] = with_relays(to_nic[nic]);
  }

  // Takes the places' paths to one NIC. Replaces each path that is farther than kPxn by one over NVLink to a relay
  // and from there to the NIC. A GPU can be the relay if the place reaches it over NVLink, and if its own path to the
  // NIC is not farther than kP2c. Of these GPUs, the one with the nearest path to the NIC is the relay. If there is no
  // such GPU, the path is not replaced.
  std::vector<Path> with_relays(const std::vector<Path>& own) const {
    std::vector<Path> paths = own;
    for (std::size_t place = 0; place < own.size(); ++place) {
      if (own[place].type <= PathType::kPxn) continue;
      std::size_t best = own.size();
      for (std::size_t relay = 0; relay < own.size(); ++relay) {
        if (relay == place || own[relay].type > PathType::kP2c) continue;
        if (between[place][relay].type != PathType::kNvl) continue;
        if (best == own.size() || own[relay].type < own[best].type) best = relay;
      }
      if (best == own.size()) continue;
      Path& path = paths[place];
      path = between[place][best];
      path.type = PathType::kPxn;
      path.gbytes_per_s = std::min(path.gbytes_per_s, own[best].gbytes_per_s);
      path.hops.insert(path.hops.end(), own[best].hops.begin(), own[best].hops.end());
    }
    return paths;
  }
};

// The link or the port of a NIC, in one direction, that a resource of a TourProblem stands for. It has operator<, so
// that it can be the key of a map.
struct Resource {
  bool is_port = false;
  std::uint32_t index = 0;  // index of the link or the NIC
  bool reversed = false;    // for a link: from `to` to `from`; for a port: incoming

  bool operator<(const Resource& other) const {
    return std::tie(is_port, index, reversed) < std::tie(other.is_port, other.index, other.reversed);
  }
};

class ProblemBuilder {
 public:
  explicit ProblemBuilder(const Machine& machine) : machine_(machine) {
    problem_.places = static_cast<std::uint32_t>(machine.places.size());
  }

  TourProblem rings() {
    add_between([&](std::size_t from, std::size_t to) { return leg({&machine_.between[from][to]}); });
    problem_.reversible = problem_.closed = true;
    problem_.doors.emplace_back();
    problem_.exits.emplace_back();
    problem_.doors[0].exits = {0};
    for (std::uint32_t place = 0; place < problem_.places; ++place) {
      problem_.doors[0].legs.push_back(place == 0 ? Leg{{}, PathType::kLoc} : Leg{});
      problem_.exits[0].legs.push_back(problem_.leg(place, 0));
    }
    return std::move(problem_);
  }

  TourProblem rings_across(bool crossing) {
    add_between([&](std::size_t from, std::size_t to) { return leg({&machine_.between[from][to]}); });
    problem_.reversible = true;
    for (std::uint32_t nic = 0; nic < machine_.nics.size(); ++nic) {
      problem_.doors.emplace_back();
      problem_.exits.emplace_back();
      for (std::uint32_t place = 0; place < problem_.places; ++place) {
        problem_.doors[nic].legs.push_back(with_port(leg({&machine_.from_nic[nic][place]}), nic, true));
        problem_.exits[nic].legs.push_back(with_port(leg({&machine_.to_nic[nic][place]}), nic, false));
      }
      for (std::uint32_t exit = 0; exit < machine_.nics.size(); ++exit) {
        if (crossing || exit == nic) problem_.doors[nic].exits.push_back(exit);
      }
    }
    return std::move(problem_);
  }

  TourProblem chains(bool across) {
    add_between([&](std::size_t from, std::size_t to) {
      return leg({&machine_.between[from][to], &machine_.between[to][from]});
    });
    problem_.exits.emplace_back();
    problem_.exits[0].legs.assign(problem_.places, Leg{{}, PathType::kLoc});
    const std::size_t doors = across ? machine_.nics.size() : 1;
    for (std::uint32_t nic = 0; nic < doors; ++nic) {
      problem_.doors.emplace_back();
      problem_.doors[nic].exits = {0};
      for (std::uint32_t place = 0; place < problem_.places; ++place) {
        Leg door{{}, PathType::kLoc};
        if (across) {
          door = leg({&machine_.from_nic[nic][place], &machine_.to_nic[nic][place]});
          door = with_port(with_port(std::move(door), nic, true), nic, false);
        }
        problem_.doors[nic].legs.push_back(std::move(door));
      }
    }
    return std::move(problem_);
  }

  const std::vector<Resource>& resources() const { return resources_; }

 private:
  template <class MakeLeg>
  void add_between(MakeLeg make_leg) {
    for (std::size_t from = 0; from < problem_.places; ++from) {
      for (std::size_t to = 0; to < problem_.places; ++to) {
        problem_.between.push_back(from == to ? Leg{} : make_leg(from, to));
      }
    }
  }

  std::uint32_t number_of(const Resource& resource, double capacity) {
    const auto [found, added] = numbers_.emplace(resource, static_cast<std::uint32_t>(resources_.size()));
    if (added) {
      resources_.push_back(resource);
      problem_.capacity.push_back(capacity);
    }
    return found->second;
  }

  // Makes a leg that loads all links of all these paths. Its type is the farthest of their types.
  Leg leg(std::initializer_list<const Path*> paths) {
    Leg made{{}, PathType::kLoc};
    for (const Path* path : paths) {
      made.type = std::max(made.type, path->type);
      for (const Hop& hop : path->hops) {
        const double capacity = machine_.graph.links[hop.link].gbytes_per_s;
        made.resources.push_back(number_of({false, hop.link, hop.reversed}, capacity));
      }
    }
    return made;
  }

  // Adds the port of the NIC, in one direction (`in`: incoming), to the resources of the leg. If the speed of the
  // port is unknown, adds nothing, so that only the NIC's PCI link limits the bandwidth.
  Leg with_port(Leg made, std::uint32_t nic, bool in) {
    const double gbytes_per_s = machine_.graph.nodes[machine_.nics[nic]].nic.megabits_per_s / 8000;
    if (made.possible() && gbytes_per_s > 0) made.resources.push_back(number_of({true, nic, in}, gbytes_per_s));
    return made;
  }

  const Machine& machine_;
  TourProblem problem_;
  std::map<Resource, std::uint32_t> numbers_;
  std::vector<Resource> resources_;  // indexed by the number of a resource
};

class Search {
 public:
  Search(const Graph& graph, const SearchOptions& options) : options_(options), machine_(graph) {
    TUTTI_ASSERT(options.max_rings >= 1 && options.max_rings <= 64, "max_rings {}", options.max_rings);
  }

  Routes run() {
    across_ = options_.across_machines && !machine_.nics.empty();
    if (options_.across_machines && !across_) {
      warn(WarningKind::kNoNic, "the machine has no NIC; these routes stay within it");
    }
    if (machine_.places.empty() || (machine_.places.size() == 1 && !across_)) return std::move(routes_);
    find_rings();
    find_trees();
    return std::move(routes_);
  }

 private:
  struct SolvedProblem {
    TourProblem problem;
    std::vector<Resource> resources;
    Packing packing;
  };

  void warn(WarningKind kind, std::string message) { routes_.warnings.push_back({kind, std::move(message)}); }

  std::string name(std::uint32_t place) const { return machine_.graph.nodes[machine_.places[place]].name; }
  std::string nic_name(std::uint32_t nic) const { return machine_.graph.nodes[machine_.nics[nic]].name; }

  template <class MakeProblem>
  SolvedProblem solve(MakeProblem make_problem) {
    ProblemBuilder builder(machine_);
    SolvedProblem found;
    found.problem = make_problem(builder);
    found.resources = builder.resources();
    PackingLimits limits;
    limits.max_tours = options_.max_rings;
    limits.max_steps = options_.max_steps;
    limits.nearness = options_.nearness;
    found.packing = best_packing(found.problem, limits);
    routes_.steps += found.packing.steps;
    return found;
  }

  void find_rings() {
    SolvedProblem found =
        solve([&](ProblemBuilder& builder) { return across_ ? builder.rings_across(false) : builder.rings(); });
    if (across_ && machine_.nics.size() > 1) try_crossing(found);
    routes_.ring_gbytes_per_s = found.packing.total;
    routes_.ring_bound_gbytes_per_s = found.packing.bound;
    for (std::size_t i = 0; i < found.packing.tours.size(); ++i) {
      routes_.rings.push_back(ring_of(found.problem, found.packing.tours[i], found.packing.share));
    }
    warn_about_packing("ring", found.packing);
    warn_about_nvlink();
    add_bottlenecks(found);
    if (routes_.rings.empty()) add_fallback_ring();
  }

  // Searches for rings that may leave by another NIC than they came by. Replaces `kept` by them if their bandwidth is
  // larger by more than the fraction crossing_gain. Does not search if the prices that prove the bound of `kept` also
  // prove that such rings cannot gain enough.
  void try_crossing(SolvedProblem& kept) {
    ProblemBuilder builder(machine_);
    const TourProblem problem = builder.rings_across(true);
    const double enough = kept.packing.total * (1 + options_.crossing_gain);
    const double cheapest = kept.packing.prices.empty() ? 0 : least_price(problem, kept.packing.prices);
    if (kept.packing.bound <= enough * cheapest) return;
    SolvedProblem crossing = solve([](ProblemBuilder& again) { return again.rings_across(true); });
    if (crossing.packing.total <= enough) return;
    warn(WarningKind::kCrossing,
         fmt::format("rings leave by another NIC than they came by: {:.4g} GB/s, where {:.4g} GB/s "
                     "would be had with rails kept",
                     crossing.packing.total, kept.packing.total));
    kept = std::move(crossing);
  }

  void find_trees() {
    const SolvedProblem found = solve([&](ProblemBuilder& builder) { return builder.chains(across_); });
    routes_.tree_gbytes_per_s = found.packing.total;
    routes_.tree_bound_gbytes_per_s = found.packing.bound;
    for (std::size_t i = 0; i < found.packing.tours.size(); ++i) {
      const Tour& tour = found.packing.tours[i];
      const Leg& head = found.problem.doors[tour.door].legs[tour.order.front()];
      Tree tree{tour.order, {}, found.packing.share, worst(found.problem, tour), head.type};
      if (across_) tree.nic = tour.door;
      routes_.trees.push_back(std::move(tree));
    }
    warn_about_packing("tree", found.packing);
  }

  static PathType worst(const TourProblem& problem, const Tour& tour) {
    PathType type = PathType::kLoc;
    for (std::size_t i = 0; i + 1 < tour.order.size(); ++i) {
      type = std::max(type, problem.leg(tour.order[i], tour.order[i + 1]).type);
    }
    return type;
  }

  Ring ring_of(const TourProblem& problem, const Tour& tour, double share) const {
    Ring ring{.gpus = tour.order, .gbytes_per_s = share, .worst_path = worst(problem, tour)};
    const PathType out = problem.exits[tour.exit].legs[tour.order.back()].type;
    if (!across_) {
      ring.worst_path = std::max(ring.worst_path, out);
      return ring;
    }
    ring.nic_in = tour.door;
    ring.nic_out = tour.exit;
    ring.worst_nic_path = std::max(problem.doors[tour.door].legs[tour.order.front()].type, out);
    return ring;
  }

  void warn_about_packing(std::string_view what, const Packing& packing) {
    if (packing.tours.empty() && packing.proven) return;  // no tour exists: add_fallback_ring() warns about that
    if (!packing.proven) {
      warn(WarningKind::kUnproven,
           machine_.places.size() > kMaxExactPlaces
               ? fmt::format("{} GPUs are too many for the whole search (at most {}): there may be better {}s",
                             machine_.places.size(), kMaxExactPlaces, what)
               : fmt::format("the search's {} steps were used up: there may be better {}s", options_.max_steps, what));
    } else if (packing.total < packing.bound * 0.9) {
      warn(WarningKind::kLeftOut, fmt::format("{} {}s of equal bandwidth have {:.4g} GB/s together; more of them, or "
                                              "unequal ones, would have up to {:.4g}",
                                              packing.tours.size(), what, packing.total, packing.bound));
    }
  }

  void warn_about_nvlink() {
    const bool any = std::any_of(machine_.graph.links.begin(), machine_.graph.links.end(), [](const GraphLink& link) {
      return link.kind == LinkKind::kNvLink || link.kind == LinkKind::kXgmi;
    });
    if (!any) return;
    for (const Ring& ring : routes_.rings) {
      if (ring.worst_path <= PathType::kNvb) continue;
      for (std::size_t i = 0; i + (across_ ? 1 : 0) < ring.gpus.size(); ++i) {
        const std::uint32_t from = ring.gpus[i], to = ring.gpus[(i + 1) % ring.gpus.size()];
        const Path& path = machine_.between[from][to];
        if (path.type != ring.worst_path) continue;
        return warn(WarningKind::kNotNvLink,
                    fmt::format("not all GPUs can be passed by NVLink: {} to {} goes by {} with "
                                "{:.4g} GB/s",
                                name(from), name(to), to_string(path.type), path.gbytes_per_s));
      }
    }
  }

  void add_bottlenecks(const SolvedProblem& found) {
    std::vector<std::pair<double, std::size_t>> worth;
    for (std::size_t i = 0; i < found.packing.prices.size(); ++i) {
      if (found.packing.prices[i] > 0) worth.emplace_back(-found.packing.prices[i] * found.problem.capacity[i], i);
    }
    std::sort(worth.begin(), worth.end());
    for (const auto& [part, i] : worth) {
      const Resource& resource = found.resources[i];
      Bottleneck limit{.price = found.packing.prices[i]};
      limit.hop.reversed = resource.reversed;
      if (resource.is_port) {
        limit.nic = resource.index;
        limit.name = nic_name(resource.index) + (resource.reversed ? " in" : " out");
      } else {
        limit.hop.link = resource.index;
        const GraphLink& link = machine_.graph.links[resource.index];
        const std::string &from = machine_.graph.nodes[link.from].name, &to = machine_.graph.nodes[link.to].name;
        limit.name = resource.reversed ? to + " -> " + from : from + " -> " + to;
      }
      routes_.bottlenecks.push_back(std::move(limit));
    }
  }

  // Adds a ring in the order of the numbers of the places, and a warning with a probable reason why no ring was found.
  void add_fallback_ring() {
    Ring ring;
    for (std::uint32_t place = 0; place < machine_.places.size(); ++place) ring.gpus.push_back(place);
    ring.worst_path = PathType::kDis;
    if (across_) ring.nic_in = ring.nic_out = 0;
    std::string why = "no order of the GPUs leads from each one to the next";
    for (std::uint32_t a = 0; a < machine_.places.size(); ++a) {
      for (std::uint32_t b = 0; b < machine_.places.size(); ++b) {
        if (machine_.between[a][b].type == PathType::kDis) {
          why = fmt::format("{} does not reach {}", name(a), name(b));
        }
      }
    }
    routes_.rings.push_back(std::move(ring));
    warn(WarningKind::kDisconnected, why + ": one ring in the order of the numbers stands in, of unknown bandwidth");
  }

  const SearchOptions& options_;
  Machine machine_;
  bool across_ = false;
  Routes routes_;
};

}  // namespace

Routes find_routes(const Graph& graph, const SearchOptions& options) { return Search(graph, options).run(); }

}  // namespace tutti

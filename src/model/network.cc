// Links have these numbers: first those inside the machines, machine by machine; then those between NICs and their
// switch; then the uplinks, which are between leaf and spine switches. Links 2n and 2n + 1 are the two directions
// of one cable.
#include "model/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/assert.h"
#include "base/config.h"

namespace tutti {
namespace {

// For the error message about an unknown name of a link: limit on the names of uplinks with which it is compared.
constexpr std::uint64_t kMostNames = 4096;
// For the same message: limit on the names that it lists.
constexpr std::size_t kMostListed = 64;
// Limit on the ranks of one machine, because a path is stored from the place of each rank to every node of the
// machine's graph.
constexpr std::uint32_t kMostPlaces = 4096;

Error refusal(std::string message) {
  return {.code = ErrorCode::kInvalidArgument, .scope = ErrorScope::kCall, .rank = -1, .message = std::move(message)};
}

double nic_gbytes_per_s(const GraphNode& node) { return node.nic.megabits_per_s / 8000; }

// True if `a` is the better path to a NIC: of a closer type, or of the same type and wider, or as wide and with
// fewer hops.
bool nearer(const Path& a, const Path& b) {
  return std::tuple(a.type, -a.gbytes_per_s, a.hops.size()) < std::tuple(b.type, -b.gbytes_per_s, b.hops.size());
}

bool as_near(const Path& a, const Path& b) { return !nearer(a, b) && !nearer(b, a); }

Level level_of(PathType type, bool between_gpus) {
  if (!between_gpus) return Level::kMemory;
  switch (type) {
    case PathType::kLoc:
    case PathType::kNvl:
    case PathType::kNvb:
    case PathType::kC2c: return Level::kNvLink;
    default: return Level::kPcie;
  }
}

}  // namespace

Result<Network> Network::create(const Cluster& cluster) {
  Network network;
  TUTTI_TRY(network.lay_out(cluster));
  Result<MachinePaths> inside = network.make_inside(cluster.machine, {});
  if (!inside.ok()) return std::move(inside).error();
  network.inside_ = *std::move(inside);
  network.find_periods();
  return network;
}

Status Network::lay_out(const Cluster& cluster) {
  graph_ = cluster.machine;
  fabric_ = cluster.fabric;
  machines_ = cluster.machines;
  ranks_per_machine_ = cluster.ranks_per_machine;
  nics_ = nodes_of(graph_, NodeKind::kNic);
  const bool had_nics = !nics_.empty();
  // Ignores NICs with a speed that is 0 or not known, for example because no cable is connected.
  std::erase_if(nics_, [&](std::uint32_t nic) { return !(nic_gbytes_per_s(graph_.nodes[nic]) > 0); });
  if (machines_ == 0 || ranks_per_machine_ == 0 || ranks_per_machine_ > kMostPlaces) {
    return refusal(fmt::format("{} machines of {} ranks: give at least 1 machine, with 1 to {} ranks", machines_,
                               ranks_per_machine_, kMostPlaces));
  }
  const std::vector<std::uint32_t> gpus = nodes_of(graph_, NodeKind::kGpu);
  const std::vector<std::uint32_t> cpus = nodes_of(graph_, NodeKind::kCpu);
  places_ = gpus.empty() ? cpus : gpus;
  if (places_.empty()) return refusal(fmt::format("{} has neither GPUs nor CPUs to stand ranks on", cluster.name));
  if (!gpus.empty() && ranks_per_machine_ > gpus.size()) {
    return refusal(fmt::format("{} has {} GPUs, too few for {} ranks", cluster.name, gpus.size(), ranks_per_machine_));
  }
  for (std::uint32_t rank = 0; rank < ranks_per_machine_; ++rank) {
    const std::uint64_t place =
        gpus.empty() ? std::uint64_t{rank} * places_.size() / ranks_per_machine_ : std::uint64_t{rank};
    place_of_.push_back(static_cast<std::uint32_t>(place));
  }
  if (machines_ > 1 && nics_.empty()) {
    return refusal(fmt::format("{} has no NIC{}, so {} of them have no network between them", graph_.name,
                               had_nics ? " whose speed is known" : "", machines_));
  }
  double machine_gbytes_per_s = 0;
  for (const std::uint32_t nic : nics_) machine_gbytes_per_s += nic_gbytes_per_s(graph_.nodes[nic]);
  const std::uint32_t group = std::max(fabric_.machines_per_leaf, 1u);
  if (machines_ > 1 && fabric_.kind != FabricKind::kNone) {
    if (fabric_.spines == 0 || !(fabric_.oversubscription >= 1)) {
      return refusal("a fabric has 1 spine or more and an oversubscription of at least 1");
    }
    const std::uint32_t groups = (machines_ + group - 1) / group;
    const auto rails = static_cast<std::uint32_t>(nics_.size());
    const bool by_rail = fabric_.kind == FabricKind::kRailOptimised;
    leaves_ = by_rail ? groups * rails : groups;
    spine_gbytes_per_s_ =
        machine_gbytes_per_s * group / (by_rail ? rails : 1) / fabric_.oversubscription / fabric_.spines;
  }
  wire_links_ = std::uint64_t{machines_} * 2 * graph_.links.size();
  spine_links_ = wire_links_ + std::uint64_t{machines_} * 2 * nics_.size();
  return {};
}

Result<Network::MachinePaths> Network::make_inside(const Graph& graph, const DeadLinks& dead) const {
  MachinePaths inside;
  for (const std::uint32_t place : places_) inside.paths.push_back(paths_from(graph, place));
  for (std::uint32_t a = 0; a < ranks_per_machine_; ++a) {
    for (std::uint32_t b = 0; b < ranks_per_machine_; ++b) {
      if (place_of_[a] == place_of_[b]) continue;
      const Path& path = inside.paths[place_of_[a]][places_[place_of_[b]]];
      if (path.type == PathType::kDis) {
        return refusal(fmt::format("rank {} of a machine ({}) does not reach rank {} ({}); a graph joins all of them",
                                   a, graph.nodes[places_[place_of_[a]]].name, b,
                                   graph.nodes[places_[place_of_[b]]].name));
      }
    }
  }
  if (machines_ == 1) return inside;
  for (std::uint32_t rank = 0; rank < ranks_per_machine_; ++rank) {
    const std::vector<Path>& paths = inside.paths[place_of_[rank]];
    std::vector<std::uint32_t> near;  // indices into nics_
    for (std::uint32_t n = 0; n < nics_.size(); ++n) {
      const Path& path = paths[nics_[n]];
      if (path.type == PathType::kDis || dead.nics.contains(n)) continue;
      if (!near.empty() && nearer(path, paths[nics_[near[0]]])) near.clear();
      if (near.empty() || as_near(path, paths[nics_[near[0]]])) near.push_back(n);
    }
    if (near.empty()) {
      return refusal(
          fmt::format("rank {} of machine {} ({}) is cut off from all other machines: no way to a NIC is left (NVLink "
                      "leads to GPUs only); inside its machine it is reached still: simulate one machine, or leave "
                      "one of its ways to a NIC alive",
                      rank, dead.machine, graph.nodes[places_[place_of_[rank]]].name));
    }
    // `near` holds the nearest NICs, which are all equally near. Ranks use them round-robin, so count the ranks before
    // this one to which the first of them is as near as to this rank.
    std::uint32_t turn = 0;
    for (std::uint32_t other = 0; other < rank; ++other) {
      const std::vector<Path>& others = inside.paths[place_of_[other]];
      turn += as_near(others[nics_[near[0]]], paths[nics_[near[0]]]) ? 1 : 0;
    }
    inside.nic.push_back(near[turn % near.size()]);
  }
  return inside;
}

void Network::find_periods() {
  const std::uint32_t per_machine = ranks_per_machine_;
  if (!changed_.empty() || !dead_spine_links_.empty()) {
    period_ = machine_period_ = ranks();
    return;
  }
  period_ = machine_period_ = ranks();
  if (machines_ == 1) {
    for (std::uint32_t shift = 1; shift < per_machine; ++shift) {
      if (per_machine % shift != 0) continue;
      bool alike = true;
      for (std::uint32_t a = 0; alike && a < per_machine; ++a) {
        for (std::uint32_t b = 0; alike && b < per_machine; ++b) {
          const std::uint32_t c = (a + shift) % per_machine, d = (b + shift) % per_machine;
          alike =
              a == b || (level(a, b) == level(c, d) && narrowest_gbytes_per_s(a, b) == narrowest_gbytes_per_s(c, d));
        }
      }
      if (!alike) continue;
      period_ = machine_period_ = shift;
      return;
    }
    return;
  }
  double widest_nic = 0;
  for (const std::uint32_t nic : nics_) widest_nic = std::max(widest_nic, nic_gbytes_per_s(graph_.nodes[nic]));
  const bool wide_spines = leaves_ == 0 || spine_gbytes_per_s_ >= widest_nic;
  if (wide_spines) machine_period_ = per_machine;
  const std::uint32_t group = std::max(fabric_.machines_per_leaf, 1u);
  const bool one_leaf = leaves_ == 0 || (machines_ <= group && fabric_.kind == FabricKind::kFatTree);
  const bool rails = fabric_.kind == FabricKind::kRailOptimised && machines_ <= group;
  if (one_leaf || rails) {
    period_ = per_machine;
  } else if (machines_ % group == 0) {
    period_ = per_machine * group;
  }
}

const Network::MachinePaths& Network::inside_of(std::uint32_t machine) const {
  if (changed_.empty()) return inside_;
  const auto found = changed_.find(machine);
  return found == changed_.end() ? inside_ : found->second;
}

const Path& Network::path_inside(std::uint32_t from, std::uint32_t to) const {
  const MachinePaths& inside = inside_of(from / ranks_per_machine_);
  return inside.paths[place_of_[from % ranks_per_machine_]][places_[place_of_[to % ranks_per_machine_]]];
}

std::uint32_t Network::leaf_of(std::uint32_t machine, std::uint32_t nic) const {
  const std::uint32_t group = machine / std::max(fabric_.machines_per_leaf, 1u);
  return fabric_.kind == FabricKind::kRailOptimised ? group * static_cast<std::uint32_t>(nics_.size()) + nic : group;
}

Level Network::level(std::uint32_t from, std::uint32_t to) const {
  const std::uint32_t a = from / ranks_per_machine_, b = to / ranks_per_machine_;
  if (a == b) {
    const bool gpus = graph_.nodes[places_[0]].kind == NodeKind::kGpu;
    return level_of(path_inside(from, to).type, gpus);
  }
  if (leaves_ == 0) return Level::kNic;
  const std::uint32_t from_nic = inside_of(a).nic[from % ranks_per_machine_];
  const std::uint32_t to_nic = inside_of(b).nic[to % ranks_per_machine_];
  return leaf_of(a, from_nic) == leaf_of(b, to_nic) ? Level::kNic : Level::kSpine;
}

double Network::narrowest_gbytes_per_s(std::uint32_t from, std::uint32_t to) const {
  const std::uint32_t a = from / ranks_per_machine_, b = to / ranks_per_machine_;
  if (a == b) {
    const Path& path = path_inside(from, to);
    return path.hops.empty() ? 0 : path.gbytes_per_s;
  }
  const std::uint32_t from_nic = inside_of(a).nic[from % ranks_per_machine_];
  const std::uint32_t to_nic = inside_of(b).nic[to % ranks_per_machine_];
  const Path& out = inside_of(a).paths[place_of_[from % ranks_per_machine_]][nics_[from_nic]];
  const Path& in = inside_of(b).paths[place_of_[to % ranks_per_machine_]][nics_[to_nic]];
  double narrowest =
      std::min(nic_gbytes_per_s(graph_.nodes[nics_[from_nic]]), nic_gbytes_per_s(graph_.nodes[nics_[to_nic]]));
  if (!out.hops.empty()) narrowest = std::min(narrowest, out.gbytes_per_s);
  if (!in.hops.empty()) narrowest = std::min(narrowest, in.gbytes_per_s);
  if (leaves_ > 0 && leaf_of(a, from_nic) != leaf_of(b, to_nic)) narrowest = std::min(narrowest, spine_gbytes_per_s_);
  return narrowest;
}

std::uint64_t Network::port(std::uint32_t rank) const {
  const std::uint32_t machine = rank / ranks_per_machine_;
  return std::uint64_t{machine} * nics_.size() + inside_of(machine).nic[rank % ranks_per_machine_];
}

// Returns the first spine switch, from number `dealt` on (modulo the spines), with working links to both leaf
// switches. Returns fabric_.spines if there is none. check_spines() refuses networks in which that can happen for a
// message.
std::uint32_t Network::spine_between(std::uint32_t from_leaf, std::uint32_t to_leaf, std::uint32_t dealt) const {
  for (std::uint32_t i = 0; i < fabric_.spines; ++i) {
    const std::uint32_t spine = (dealt + i) % fabric_.spines;
    if (dead_spine_links_.empty()) return spine;
    if (!dead_spine_links_.contains(uplink(from_leaf, spine)) && !dead_spine_links_.contains(uplink(to_leaf, spine))) {
      return spine;
    }
  }
  return fabric_.spines;
}

void Network::route(std::uint32_t from, std::uint32_t to, std::vector<std::uint64_t>& links) const {
  links.clear();
  const std::uint32_t a = from / ranks_per_machine_, b = to / ranks_per_machine_;
  const auto add = [&](std::uint32_t machine, const Hop& hop, bool backwards) {
    const std::uint64_t first = std::uint64_t{machine} * 2 * graph_.links.size();
    links.push_back(first + 2 * std::uint64_t{hop.link} + (hop.reversed != backwards ? 1 : 0));
  };
  if (a == b) {
    for (const Hop& hop : path_inside(from, to).hops) add(a, hop, false);
    return;
  }
  const std::uint32_t from_nic = inside_of(a).nic[from % ranks_per_machine_];
  const std::uint32_t to_nic = inside_of(b).nic[to % ranks_per_machine_];
  for (const Hop& hop : inside_of(a).paths[place_of_[from % ranks_per_machine_]][nics_[from_nic]].hops)
    add(a, hop, false);
  links.push_back(wire_links_ + 2 * (std::uint64_t{a} * nics_.size() + from_nic));
  if (leaves_ > 0) {
    const std::uint32_t from_leaf = leaf_of(a, from_nic), to_leaf = leaf_of(b, to_nic);
    if (from_leaf != to_leaf) {
      const std::uint32_t spine = spine_between(from_leaf, to_leaf, (b + to_nic) % fabric_.spines);
      TUTTI_ASSERT(spine < fabric_.spines, "no spine between leaves {} and {}", from_leaf, to_leaf);
      links.push_back(uplink(from_leaf, spine));
      links.push_back(uplink(to_leaf, spine) + 1);
    }
  }
  links.push_back(wire_links_ + 2 * (std::uint64_t{b} * nics_.size() + to_nic) + 1);
  // The path leads from the receiver to its NIC. The message takes it backwards.
  const Path& in = inside_of(b).paths[place_of_[to % ranks_per_machine_]][nics_[to_nic]];
  for (std::size_t i = in.hops.size(); i-- > 0;) add(b, in.hops[i], true);
}

double Network::gbytes_per_s(std::uint64_t link) const {
  TUTTI_ASSERT(link < links());
  if (link >= spine_links_) return spine_gbytes_per_s_;
  if (link >= wire_links_) return nic_gbytes_per_s(graph_.nodes[nics_[(link - wire_links_) / 2 % nics_.size()]]);
  return graph_.links[link / 2 % graph_.links.size()].gbytes_per_s;
}

std::string Network::name(std::uint64_t link) const {
  TUTTI_ASSERT(link < links());
  const bool back = link % 2 == 1;
  if (link >= spine_links_) {
    const std::uint64_t index = (link - spine_links_) / 2;
    const std::string leaf = fmt::format("leaf {}", index / fabric_.spines);
    const std::string spine = fmt::format("spine {}", index % fabric_.spines);
    return back ? fmt::format("{} -> {}", spine, leaf) : fmt::format("{} -> {}", leaf, spine);
  }
  if (link >= wire_links_) {
    const std::uint64_t index = (link - wire_links_) / 2;
    const auto machine = static_cast<std::uint32_t>(index / nics_.size());
    const auto nic = static_cast<std::uint32_t>(index % nics_.size());
    const std::string end = fmt::format("{}{}", leaves_ > 0 ? "leaf " : "switch",
                                        leaves_ > 0 ? fmt::format("{}", leaf_of(machine, nic)) : "");
    const std::string& card = graph_.nodes[nics_[nic]].name;
    return back ? fmt::format("machine {}: {} -> {}", machine, end, card)
                : fmt::format("machine {}: {} -> {}", machine, card, end);
  }
  const std::uint64_t each = 2 * graph_.links.size();
  const GraphLink& wire = graph_.links[link % each / 2];
  const std::string& a = graph_.nodes[back ? wire.to : wire.from].name;
  const std::string& b = graph_.nodes[back ? wire.from : wire.to].name;
  return fmt::format("machine {}: {} -> {}", link / each, a, b);
}

Status Network::find_dead(const std::string& wanted, std::map<std::uint32_t, DeadLinks>& machines) {
  // The name of a link inside a machine, or between a NIC and its switch, contains the machine's number. So only
  // the links of that machine and the uplinks are compared with the name.
  const auto is_named = [&](std::uint64_t link) { return name(link) == wanted || name(link ^ 1) == wanted; };
  std::uint32_t machine = 0;
  if (wanted.starts_with("machine ")) {
    machine = static_cast<std::uint32_t>(std::strtoul(wanted.c_str() + 8, nullptr, 10));
    for (std::uint32_t l = 0; machine < machines_ && l < graph_.links.size(); ++l) {
      if (!is_named(std::uint64_t{machine} * 2 * graph_.links.size() + 2 * std::uint64_t{l})) continue;
      machines[machine].links.insert(l);
      return {};
    }
    for (std::uint32_t n = 0; machine < machines_ && n < nics_.size() && machines_ > 1; ++n) {
      if (!is_named(wire_links_ + 2 * (std::uint64_t{machine} * nics_.size() + n))) continue;
      machines[machine].nics.insert(n);
      return {};
    }
  }
  for (std::uint64_t link = spine_links_; link < links(); link += 2) {
    if (!is_named(link)) continue;
    dead_spine_links_.insert(link);
    return {};
  }
  return refusal(no_such_link(wanted, machine));
}

// Returns an error message with the name that is most similar to `wanted`, of the links of this machine and of the
// first uplinks (kMostNames). If no name is similar, the message lists the cables of this machine and the uplinks, at
// most kMostListed, each in one direction. If there is no such machine, the message only states which machines there
// are.
std::string Network::no_such_link(const std::string& wanted, std::uint32_t machine) const {
  if (machine >= machines_) {
    return fmt::format("no link is called \"{}\": there are machines 0 to {}", wanted, machines_ - 1);
  }
  std::vector<std::string> names;
  const std::uint64_t each = 2 * graph_.links.size(), ports = machines_ > 1 ? 2 * nics_.size() : 0;
  for (std::uint64_t l = 0; l < each; ++l) names.push_back(name(machine * each + l));
  for (std::uint64_t l = 0; l < ports; ++l) names.push_back(name(wire_links_ + machine * ports + l));
  const std::uint64_t end = std::min(links(), spine_links_ + kMostNames);
  for (std::uint64_t link = spine_links_; link < end; ++link) names.push_back(name(link));
  const std::string_view nearest = nearest_name(wanted, std::vector<std::string_view>(names.begin(), names.end()));
  if (!nearest.empty()) return fmt::format("no link is called \"{}\"; did you mean \"{}\"?", wanted, nearest);
  std::string list;
  for (std::size_t i = 0; i < names.size() && i < 2 * kMostListed; i += 2) list += fmt::format("\n  {}", names[i]);
  const std::size_t all = (static_cast<std::size_t>(links() - spine_links_) + each + ports) / 2;
  if (all > kMostListed) list += fmt::format("\n  and {} more", all - kMostListed);
  return fmt::format("no link is called \"{}\"; of machine {} and between leaves and spines there are{}", wanted,
                     machine, all == 0 ? " none" : ":" + list);
}

// Returns an error if there are two leaf switches that no spine switch connects.
Status Network::check_spines() const {
  std::set<std::uint32_t> touched;
  for (const std::uint64_t link : dead_spine_links_) {
    touched.insert(static_cast<std::uint32_t>((link - spine_links_) / 2 / fabric_.spines));
  }
  for (const std::uint32_t leaf : touched) {
    for (std::uint32_t other = 0; other < leaves_; ++other) {
      if (other == leaf || spine_between(leaf, other, 0) < fabric_.spines) continue;
      return refusal(fmt::format("without these links, leaf {} does not reach leaf {}", leaf, other));
    }
  }
  return {};
}

Result<Network> Network::without(std::span<const std::string> dead_links) const {
  Network network = *this;
  std::map<std::uint32_t, DeadLinks> machines;
  for (const std::string& each : dead_links) TUTTI_TRY(network.find_dead(each, machines));
  for (auto& [machine, dead] : machines) {
    dead.machine = machine;
    // Remove the dead links from the graph, so that the paths avoid them. That changes the numbers of the other
    // links in the graph; `number` maps them back to the old ones.
    Graph graph = graph_;
    std::vector<GraphLink> alive;
    std::vector<std::uint32_t> number;
    for (std::uint32_t l = 0; l < graph_.links.size(); ++l) {
      if (dead.links.contains(l)) continue;
      alive.push_back(graph_.links[l]);
      number.push_back(l);
    }
    graph.links = std::move(alive);
    Result<MachinePaths> inside = make_inside(graph, dead);
    if (!inside.ok()) return std::move(inside).error();
    for (std::vector<Path>& paths : inside->paths) {
      for (Path& path : paths) {
        for (Hop& hop : path.hops) hop.link = number[hop.link];
      }
    }
    network.changed_[machine] = *std::move(inside);
  }
  TUTTI_TRY(network.check_spines());
  network.find_periods();
  return network;
}

}  // namespace tutti

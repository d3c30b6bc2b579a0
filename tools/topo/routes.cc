#include "tools/topo/routes.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <vector>

#include "tools/topo/graph.h"

namespace tutti::tool {
namespace {

using nlohmann::json;

// Finds the names of GPUs (or CPUs) and NICs by the indices in a route; Ring in search.h explains these indices.
class Names {
 public:
  explicit Names(const Graph& graph)
      : graph_(graph),
        ends_(nodes_of(graph, nodes_of(graph, NodeKind::kGpu).empty() ? NodeKind::kCpu : NodeKind::kGpu)),
        nics_(nodes_of(graph, NodeKind::kNic)) {}

  const std::string& end(std::uint32_t index) const { return graph_.nodes[ends_[index]].name; }
  const std::string& nic(std::uint32_t index) const { return graph_.nodes[nics_[index]].name; }

  json ends(const std::vector<std::uint32_t>& indices) const {
    json names = json::array();
    for (const std::uint32_t index : indices) names.push_back(end(index));
    return names;
  }
  json nic_or_null(const std::optional<std::uint32_t>& index) const {
    return index ? json(nic(*index)) : json(nullptr);
  }

 private:
  const Graph& graph_;
  std::vector<std::uint32_t> ends_;
  std::vector<std::uint32_t> nics_;
};

std::string sum_text(std::size_t count, double each, double all, double bound) {
  const std::string limit = std::isfinite(bound) ? fmt::format(" (at most {} is possible)", number_text(bound)) : "";
  return fmt::format("{} of {} GB/s each, {} GB/s in all{}\n", count, number_text(each), number_text(all), limit);
}

json number_or_null(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

}  // namespace

std::string routes_text(const Graph& graph, const Routes& routes) {
  const Names names(graph);
  std::string text;
  if (!routes.rings.empty()) {
    text += "rings: " + sum_text(routes.rings.size(), routes.rings.front().gbytes_per_s, routes.ring_gbytes_per_s,
                                 routes.ring_bound_gbytes_per_s);
  }
  for (const Ring& ring : routes.rings) {
    std::string line = ring.nic_in ? names.nic(*ring.nic_in) + " > " : "";
    for (std::size_t i = 0; i < ring.gpus.size(); ++i) line += (i == 0 ? "" : " ") + names.end(ring.gpus[i]);
    if (ring.nic_out) line += " > " + names.nic(*ring.nic_out);
    text += fmt::format("  {}  ({})\n", line, to_string(ring.worst_path));
  }
  if (!routes.trees.empty()) {
    text += "trees: " + sum_text(routes.trees.size(), routes.trees.front().gbytes_per_s, routes.tree_gbytes_per_s,
                                 routes.tree_bound_gbytes_per_s);
  }
  for (const Tree& tree : routes.trees) {
    std::string line = tree.nic ? names.nic(*tree.nic) + " > " : "";
    for (std::size_t i = 0; i < tree.chain.size(); ++i) line += (i == 0 ? "" : " - ") + names.end(tree.chain[i]);
    text += fmt::format("  {}  ({})\n", line, to_string(tree.worst_path));
  }
  for (const Warning& warning : routes.warnings) text += fmt::format("warning: {}\n", warning.message);
  return text;
}

json routes_json(const Graph& graph, const Routes& routes) {
  const Names names(graph);
  json document = {{"rings", json::array()},
                   {"trees", json::array()},
                   {"ring_gbytes_per_s", number_or_null(routes.ring_gbytes_per_s)},
                   {"ring_bound_gbytes_per_s", number_or_null(routes.ring_bound_gbytes_per_s)},
                   {"tree_gbytes_per_s", number_or_null(routes.tree_gbytes_per_s)},
                   {"tree_bound_gbytes_per_s", number_or_null(routes.tree_bound_gbytes_per_s)},
                   {"warnings", json::array()}};
  for (const Ring& ring : routes.rings) {
    document["rings"].push_back({{"order", names.ends(ring.gpus)},
                                 {"nic_in", names.nic_or_null(ring.nic_in)},
                                 {"nic_out", names.nic_or_null(ring.nic_out)},
                                 {"gbytes_per_s", ring.gbytes_per_s},
                                 {"worst_path", to_string(ring.worst_path)}});
  }
  for (const Tree& tree : routes.trees) {
    document["trees"].push_back({{"chain", names.ends(tree.chain)},
                                 {"nic", names.nic_or_null(tree.nic)},
                                 {"gbytes_per_s", tree.gbytes_per_s},
                                 {"worst_path", to_string(tree.worst_path)}});
  }
  for (const Warning& warning : routes.warnings) document["warnings"].push_back(warning.message);
  return document;
}

}  // namespace tutti::tool

// Compares the rings and trees of every published topology file, if the data folder exists, with routes_golden.txt.
// A change of the search may change them. In that case check the new numbers, and copy the lines that this test
// prints.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "tests/topology/xml_files.h"
#include "tools/topo/search.h"
#include "topology/xml/xml.h"

namespace tutti {
namespace {

// Returns "1 370.80 of 370.80 NVL LOC": the number of routes, their total bandwidth, the bound, and the worst paths
// between GPUs and to NICs.
template <class Route>
std::string summary_of(const std::vector<Route>& routes, double total, double bound) {
  PathType worst = PathType::kLoc, worst_nic = PathType::kLoc;
  for (const Route& route : routes) {
    worst = std::max(worst, route.worst_path);
    worst_nic = std::max(worst_nic, route.worst_nic_path);
  }
  return fmt::format("{} {:.2f} of {:.2f} {} {}", routes.size(), total, bound, to_string(worst), to_string(worst_nic));
}

std::string line_of(const std::string& name, const Graph& graph, bool across) {
  const Routes routes = find_routes(graph, {.across_machines = across});
  return fmt::format("{} {} rings {} trees {}", name, across ? "across" : "within",
                     summary_of(routes.rings, routes.ring_gbytes_per_s, routes.ring_bound_gbytes_per_s),
                     summary_of(routes.trees, routes.tree_gbytes_per_s, routes.tree_bound_gbytes_per_s));
}

TEST(Routes, OfEveryPublishedFileAreThoseOfTheGoldenText) {
  const std::filesystem::path root = TUTTI_SOURCE_DIR;
  std::vector<std::filesystem::path> files = ::tutti::testing::published_topologies(root);
  if (files.empty()) GTEST_SKIP() << "no folder of published topologies: set TUTTI_SHARED_DATA";
  std::sort(files.begin(), files.end());
  std::istringstream golden(::tutti::testing::contents(root / "tests/tools/topo/routes_golden.txt"));
  std::map<std::string, std::string> expected;  // the key is the file and "within" or "across"
  for (std::string line; std::getline(golden, line);) {
    if (!line.empty() && line[0] != '#') expected[line.substr(0, line.find(" rings"))] = line;
  }
  for (const std::filesystem::path& file : files) {
    const XmlReading reading = read_xml(::tutti::testing::contents(file));
    if (!reading.usable()) {
      EXPECT_EQ(file.filename(), "azure-ncv4-graph.xml") << "this file is a result of NCCL's search and not a machine";
      continue;
    }
    for (const bool across : {false, true}) {
      const std::string line = line_of(file.filename().string(), reading.graph, across);
      EXPECT_EQ(line, expected[line.substr(0, line.find(" rings"))]);
      expected.erase(line.substr(0, line.find(" rings")));
    }
  }
  for (const auto& [name, line] : expected)
    ADD_FAILURE() << "the golden file has a line, but there is no such file: " << line;
}

}  // namespace
}  // namespace tutti

// Prints the rings and trees that the search has found on a machine, as text and as JSON. All functions are pure and
// may be called from any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/topo/search.h"
#include "topology/graph.h"

namespace tutti::tool {

// Returns a line such as "rings: 8 of 46.2 GB/s each, 370 GB/s in all (at most 370 is possible)" and one line for each
// ring; then the lines for trees in the same form; then the warnings. Empty if there are neither routes nor warnings.
std::string routes_text(const Graph& graph, const Routes& routes);

// An object in the format of "within" and "across" of the object "routes" in docs/topo-json.md.
nlohmann::json routes_json(const Graph& graph, const Routes& routes);

}  // namespace tutti::tool

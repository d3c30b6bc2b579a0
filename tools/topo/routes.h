// Prints the rings and trees that the search has found on a machine, as text and as JSON. All functions are pure and
// may be called from any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/topo/search.h"
#include "topology/graph.h"

namespace tutti::tool {

// For example "rings: 8 of 46.2 GB/s each, 370 GB/s in all (at most 370 is possible)" and one line for each ring; the
// same for trees; then the warnings. Empty if there are no routes.
std::string routes_text(const Graph& graph, const Routes& routes);

// The object "routes" as in docs/topo-json.md.
nlohmann::json routes_json(const Graph& graph, const Routes& routes);

}  // namespace tutti::tool

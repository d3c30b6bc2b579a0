// The rings and trees that the search has chosen on a machine, as text and as JSON. Pure functions; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/topo/search.h"
#include "topology/graph.h"

namespace tutti::tool {

// "rings: 8 of 46.2 GB/s each, 370 GB/s in all (bound 370)" and one line for each; the same of trees; then the
// warnings. Empty where there are none.
std::string routes_text(const Graph& graph, const Routes& routes);

// docs/topo-json.md: "routes".
nlohmann::json routes_json(const Graph& graph, const Routes& routes);

}  // namespace tutti::tool

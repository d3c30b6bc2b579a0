// A machine's graph as a drawing: sockets, the PCI tree below them, GPUs, NVLink, NICs, and the rings and trees that
// the search has found. A pure function; any thread.
#pragma once

#include <string>

#include "tools/topo/search.h"
#include "topology/graph.h"

namespace tutti::tool {

inline constexpr std::size_t kMaxDrawnParts = 2'000;

// An SVG document; of a graph of more parts one that says so. Of the routes the first few of each kind are drawn.
std::string graph_svg(const Graph& graph, const Routes& routes);

}  // namespace tutti::tool

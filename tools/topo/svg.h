// Draws the graph of a machine: sockets, the PCI tree below them, GPUs, NVLink, NICs, and the rings and trees that the
// search has found. A pure function; it may be called from any thread.
#pragma once

#include <string>

#include "tools/topo/search.h"
#include "topology/graph.h"

namespace tutti::tool {

inline constexpr std::size_t kMaxDrawnParts = 2'000;

// Returns an SVG document. If the graph has more than kMaxDrawnParts parts, the document contains only a sentence
// that the machine is too large. Only the first 16 rings and the first 16 trees are drawn.
std::string graph_svg(const Graph& graph, const Routes& routes);

}  // namespace tutti::tool

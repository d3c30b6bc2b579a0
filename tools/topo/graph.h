// Prints the graph of a machine as text and as JSON: its parts and links, the paths between them, and the findings
// about the file from which it was read. All functions are pure and may be called from any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "topology/graph.h"
#include "topology/xml/xml.h"

namespace tutti::tool {

// The numbers of parts, for example "2 CPUs, 4 PCI switches, 8 GPUs, 1 NVSwitch, 8 NICs".
std::string parts_text(const Graph& graph);

// The parts as a PCI tree, each with its description, the bandwidth of the link that leads to it, and its links outside
// the tree.
std::string graph_text(const Graph& graph);

// A matrix of the path types, with NCCL's names: from each GPU (from each CPU if there are no GPUs) to each GPU (CPU)
// and NIC, and a legend with the bandwidths. Empty if the matrix would have fewer than two columns. One sentence if
// it would be too wide.
std::string matrix_text(const Graph& graph);

// One line for each finding: "FILE:3:5: warning: ...; ...".
std::string findings_text(const std::string& file, std::span<const Finding> findings);

// The object "graph", and one element of the array "findings", as docs/topo-json.md describes them.
nlohmann::json graph_json(const Graph& graph);
nlohmann::json finding_json(const Finding& finding);

// Formats the rows as a table, one line each. Each column is as wide as its widest cell, with two spaces before it.
std::string columns_text(const std::vector<std::vector<std::string>>& rows);

// A short description of a part: "sm_90, 0000:17:00.0, rank 0", "400 Gbit/s, 0000:18:00.0", "GenuineIntel x86_64".
std::string description(const GraphNode& node);

// A number of GB/s or Gbit/s: with two decimals below 10, one below 100, otherwise none, but without zeros at the end
// of the decimals, for example "3.13", "20.6", "48", "1234". "unlimited" for infinity.
std::string number_text(double value);

}  // namespace tutti::tool

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

// The parts as a tree, each with its description and the link that leads to it.
std::string graph_text(const Graph& graph);

// A matrix of the path types between GPUs and NICs (between CPUs if there are no GPUs), with NCCL's names, and a
// legend with their bandwidths.
std::string matrix_text(const Graph& graph);

// One line for each finding: "FILE:3:5: warning: ...; ...".
std::string findings_text(const std::string& file, std::span<const Finding> findings);

// The objects "graph", and one element of "findings", as in docs/topo-json.md.
nlohmann::json graph_json(const Graph& graph);
nlohmann::json finding_json(const Finding& finding);

// A table. Each column is as wide as its widest cell, with two spaces before it. The first row is the heading.
std::string columns_text(const std::vector<std::vector<std::string>>& rows);

// A short description of a part: "sm_90, rank 0", "400 Gbit/s", "GenuineIntel x86_64".
std::string description(const GraphNode& node);

// A number with at most three significant digits: "48", "20.6", "3.13".
std::string number_text(double value);

}  // namespace tutti::tool

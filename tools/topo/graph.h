// A machine's graph for people and for machines: the parts with their links, how they reach each other, what is wrong
// with the file that it came from. Pure functions; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "topology/graph.h"
#include "topology/xml/xml.h"

namespace tutti::tool {

// "2 CPUs, 4 PCI switches, 8 GPUs, an NVSwitch, 8 NICs"
std::string parts_text(const Graph& graph);

// The parts as a tree, each with what it is and the link that leads to it.
std::string graph_text(const Graph& graph);

// How GPUs and NICs (CPUs too, where there is no GPU) reach each other, in NCCL's words; then what these carry.
std::string matrix_text(const Graph& graph);

// One line for each finding: "FILE:3:5: warning: ...; ...".
std::string findings_text(const std::string& file, std::span<const Finding> findings);

// docs/topo-json.md: "graph", and an element of "findings".
nlohmann::json graph_json(const Graph& graph);
nlohmann::json finding_json(const Finding& finding);

// Columns as wide as their widest cell, two spaces before each; the first row their heads.
std::string columns_text(const std::vector<std::vector<std::string>>& rows);

// What a part is in a few words: "sm_90, rank 0", "400 Gbit/s", "GenuineIntel x86_64".
std::string description(const GraphNode& node);

// "48", "20.6", "3.13": at most three digits that count.
std::string number_text(double value);

}  // namespace tutti::tool

// What a `tutti sim` run is asked to do: the command line's words turned into checked values. Pure but for reading
// the files of parameters and of a machine; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/network.h"
#include "model/parameters.h"
#include "model/simulate.h"
#include "topology/cluster.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::tool {

// The command line as it was given. Empty: not given.
struct SimArguments {
  std::string collective = "all_reduce";
  std::string shape{};     // neither this nor xml_path: dgx-h100
  std::string xml_path{};  // a file in NCCL's XML format, in place of a shape
  std::uint32_t machines = 1;
  std::uint32_t ranks = 0;
  std::string bytes = "1M";
  std::string algorithm{};
  std::string protocol = "simple";
  std::string slot_bytes{};
  bool in_switch = false;
  std::string parameters_path{};
  std::uint32_t channels = 0;
  std::int32_t root = 0;
  std::vector<std::string> stragglers{};
  std::vector<std::uint32_t> dead_ranks{};
  std::vector<std::string> dead_links{};
  double jitter = 0;
  std::uint64_t seed = 1;
  double oversubscription = 1;
  std::string fabric{};
  std::uint32_t nics = 0;
  std::uint32_t machines_per_leaf = 0;
  std::string model = "auto";
  std::string json_path{};
  std::string svg_path{};
};

struct SimTask {
  Collective collective;          // with its machines
  std::uint64_t bytes = 0;        // as given: of the larger buffer, as tutti perf counts
  std::uint64_t block_bytes = 0;  // as simulate() counts
  std::optional<Algorithm> algorithm;
  Cluster cluster;
  std::string machine;           // where it comes from, and what of it counts, in words
  std::string parameters_notes;  // what stands in for what is not known, in words; else empty
  Parameters parameters;
  SimulateOptions options;
  std::vector<Protocol> protocols;  // each algorithm goes by the quickest of these; at least one
  bool in_switch = false;           // also what sums made by switches would take (model/in_switch.h)
};

// Errors: kInvalidArgument, with the option's name and what it takes; what load_parameters() says.
Result<SimTask> resolve(const SimArguments& arguments);

std::string_view to_string(SimulationModel model);

}  // namespace tutti::tool

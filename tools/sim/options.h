// The options of a `tutti sim` run: SimArguments is the command line as text, SimTask the checked values. The
// functions are pure, except that they read the files of parameters and of a machine. They may be called from any
// thread.
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
  std::string shape{};     // if both this and xml_path are empty: dgx-h100
  std::string xml_path{};  // a file in NCCL's XML format, instead of a shape
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
  Collective collective;  // includes the distribution of ranks over machines
  // Bytes of the larger buffer, as in tutti perf; rounded down to whole blocks.
  std::uint64_t bytes = 0;
  std::uint64_t block_bytes = 0;  // bytes of one block, as for simulate()
  std::optional<Algorithm> algorithm;
  Cluster cluster;
  std::string machine;  // description: source of the machine, and the parts that the simulation uses
  // Description of the defaults that replace unknown values; empty if there are none.
  std::string parameters_notes;
  Parameters parameters;
  SimulateOptions options;
  std::vector<Protocol> protocols;  // each algorithm uses the fastest of these; at least one
  // Also predict all-reduces in which switches calculate the sums (model/in_switch.h).
  bool in_switch = false;
};

// Checks and converts the command line. Errors: kInvalidArgument, with the option's name and its valid values; those
// of read_parameters() and read_machine_file().
Result<SimTask> resolve(const SimArguments& arguments);

std::string_view to_string(SimulationModel model);

}  // namespace tutti::tool

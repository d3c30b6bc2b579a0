// The options of one run of `tutti sim`: SimArguments has the command line as it was given, and SimTask has the checked
// values. The functions only read the files of parameters and of a machine, and change nothing. They may be called from
// any thread.
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

// The command line as it was given, with the defaults of options that were not given. An empty text, or 0 for
// channels, ranks, nics and machines_per_leaf, means: not given.
struct SimArguments {
  std::string collective = "all_reduce";
  // name of a ready-made machine; dgx-h100 if both this and xml_path are empty
  std::string shape{};
  // file of a machine in NCCL's XML format; if this is not empty, shape must be empty
  std::string xml_path{};
  std::uint32_t machines = 1;
  // Number of ranks on each machine. If the machine has GPUs, only 0 and the number of its GPUs are allowed.
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
  // with the machine of each rank in Collective::nodes if there are several machines
  Collective collective;
  // Bytes of the larger one of the root's two buffers (of any rank's, if there is no root), as in `tutti perf`, rounded
  // down to whole blocks. 0 for a barrier.
  std::uint64_t bytes = 0;
  // bytes of one block, the argument of simulate()
  std::uint64_t block_bytes = 0;
  std::optional<Algorithm> algorithm;  // empty: all algorithms that can execute the collective
  Cluster cluster;
  // A text for people: from which shape or file the machine comes, and which parts of it the simulation uses.
  std::string machine;
  // A text for people that says which defaults replace unknown values. Empty if none do.
  std::string parameters_notes;
  Parameters parameters;
  SimulateOptions options;
  // at least one; if there are several, each algorithm is listed with the fastest of them
  std::vector<Protocol> protocols;
  // True if an all-reduce in which the switches of the machines add (model/in_switch.h) is predicted, too.
  bool in_switch = false;
};

// Checks and converts the command line. Errors: kInvalidArgument, usually with the option's name and its valid values;
// those of read_parameters(), read_machine_file(), make_shape() and make_cluster().
Result<SimTask> resolve(const SimArguments& arguments);

// "auto", "sweep", "events" or "flows".
std::string_view to_string(SimulationModel model);

}  // namespace tutti::tool

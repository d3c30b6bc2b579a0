// Comparison of the cost model with published measurements: reads measurements, predicts them, and fits parameters to
// some of them. Used by `tutti points` (command.h) from one thread.
//
// A system is a machine or cluster for which measurements were published. It consists of rows of a table of points, a
// ready-made shape, and one file of parameters (docs/parameters-json.md) for all its rows. The parameters are fitted
// to some of the rows, and the other rows are used to judge them. The prediction for a row is the minimum of
// simulate() over the algorithms and protocols of the system. Nothing is selected by size, and a prediction uses only
// the row's number of ranks, number of machines, and bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/in_switch.h"
#include "model/network.h"
#include "model/parameters.h"
#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti::tool {

struct Point {
  std::uint32_t ranks = 0;
  std::uint32_t machines = 0;
  std::uint64_t bytes = 0;
  double time_us = 0;
  bool fitted = false;  // the parameters are fitted to this point
};

// The rows of a system to which its parameters are fitted; rows are in ascending order of bytes.
enum class Training : std::uint8_t {
  kEveryOtherSize,    // the first, third, ... size for each number of machines
  kAtMost16Machines,  // all rows with up to 16 machines
};

struct System {
  std::string name;         // name of its parameter file, also used in tables
  std::string rows;         // value of the table's column `system`
  std::string algorithm;    // value of the table's column `algo`; empty: any
  std::uint32_t ranks = 0;  // value of the table's column `ranks`; 0: any
  std::string shape;        // name of the shape (topology/cluster.h)
  // Compute capability of the GPUs. Parameters that are not fitted have the defaults for it.
  std::int32_t capability = 0;
  Training training = Training::kEveryOtherSize;
  std::vector<Algorithm> algorithms;
  std::vector<Protocol> protocols;
  // Message lengths (slot sizes) into which calls are split; the prediction uses the best one. Empty: the value of the
  // parameters.
  std::vector<std::uint64_t> slot_bytes;
  // The switch of a machine may do the machine's part of the all-reduce (NVLS).
  bool in_switch = false;
  std::vector<std::string> fitted;  // names of fitted parameters: "launch_us", "nvlink.simple.latency_us", ...
};

inline constexpr std::size_t kMostPoints = 100'000;  // largest number of rows of a table

// Reads the file of systems (docs/points.md). Errors: kInvalidArgument with the system and the field.
Result<std::vector<System>> parse_systems(std::string_view json);

// The all-reduces of one system in a table (docs/points.md), sorted by machines and bytes. Rows without a time are
// left out. Errors: kInvalidArgument with the line.
Result<std::vector<Point>> points_of(std::string_view csv, const System& system);

// Read or set one parameter by its name in the file. Setting a parameter of `nic` also sets that of `spine`. Errors:
// kInvalidArgument if there is no such name.
Result<double> parameter(const Parameters& parameters, std::string_view name);
Status set_parameter(Parameters& parameters, std::string_view name, double value);

struct Predicted {
  double time_us = 0;
  Algorithm algorithm = Algorithm::kAuto;  // kAuto: done in the switch
  Protocol protocol = Protocol::kSimple;
};

// Predicts the times of points. It contains the plans and networks for the numbers of machines of all points. Errors:
// those of make_shape(), find_generator() and simulate().
class Predictor {
 public:
  static Result<Predictor> create(const System& system, const std::vector<Point>& points);
  Result<Predicted> predict(const Point& point, const Parameters& parameters) const;

 private:
  // The network and the plans for one number of machines.
  struct PlannedCluster {
    std::uint32_t machines = 0;
    Network network;
    std::vector<Generator> generators;
    std::optional<InSwitch> in_switch;
  };
  System system_;
  std::vector<PlannedCluster> clusters_;
};

// Finds the parameters that predict the points marked as fitted best, which means the smallest sum of |log(predicted /
// measured)|. The search changes one parameter after the other. It begins `starts` times, with parameters within a
// factor of 10 of the defaults. Deterministic.
Result<Parameters> fit(const System& system, const Predictor& predictor, const std::vector<Point>& points,
                       std::uint32_t starts);

}  // namespace tutti::tool

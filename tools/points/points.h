// Published measurements against predictions: reading them, predicting them, fitting parameters to some of them. Used
// by `tutti points` (points_command.h) from one thread.
//
// A system is a machine or cluster that somebody has measured: rows of a table of points, a ready-made shape, and one
// file of parameters (docs/parameters-json.md) for all its rows. Some rows are what the parameters were fitted on, the
// others what they are judged by. A prediction is the least that simulate() says over the system's algorithms and
// protocols: nothing is picked by size, and nothing is told about a row but its ranks, machines and bytes.
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
  bool fitted = false;  // what parameters were fitted on
};

// Which of its rows a system's parameters are fitted on, in the order of their bytes.
enum class Training : std::uint8_t {
  kEveryOtherSize,    // the first, third, ... size of every number of machines
  kAtMost16Machines,  // all of up to 16 machines
};

struct System {
  std::string name;             // of its file of parameters, and in tables
  std::string rows;             // the table's column `system`
  std::string algorithm;        // the table's column `algo`; empty: any
  std::uint32_t ranks = 0;      // the table's column `ranks`; 0: any
  std::string shape;            // topology/cluster.h
  std::int32_t capability = 0;  // of the GPUs: whose defaults stand for what is not fitted
  Training training = Training::kEveryOtherSize;
  std::vector<Algorithm> algorithms;
  std::vector<Protocol> protocols;
  // How long the messages are that calls are cut into: the tuner takes the best. Empty: as the parameters say.
  std::vector<std::uint64_t> slot_bytes;
  bool in_switch = false;           // a machine's part of the all-reduce may be done by its switch (NVLS)
  std::vector<std::string> fitted;  // "nvlink.simple.latency_us", "launch_us", ...
};

inline constexpr std::size_t kMostPoints = 100'000;  // rows of a table

// Systems as a file: docs/points.md. Errors: kInvalidArgument with the system and the field.
Result<std::vector<System>> parse_systems(std::string_view json);

// The all-reduces of one system in a table (docs/points.md), by machines and bytes; rows without a time are left out.
// Errors: kInvalidArgument with the line.
Result<std::vector<Point>> points_of(std::string_view csv, const System& system);

// One number of parameters by its name in the file. Of `nic`, `spine` has the same.
Result<double> parameter(const Parameters& parameters, std::string_view name);
Status set_parameter(Parameters& parameters, std::string_view name, double value);

struct Predicted {
  double time_us = 0;
  Algorithm algorithm = Algorithm::kAuto;  // kAuto: the switch
  Protocol protocol = Protocol::kSimple;
};

// Holds plans and networks of all points. Errors: make_shape()'s, find_generator()'s, simulate()'s.
class Predictor {
 public:
  static Result<Predictor> create(const System& system, const std::vector<Point>& points);
  Result<Predicted> predict(const Point& point, const Parameters& parameters) const;

 private:
  struct Place {
    std::uint32_t machines = 0;
    Network network;
    std::vector<Generator> generators;
    std::optional<InSwitch> in_switch;
  };
  System system_;
  std::vector<Place> places_;
};

// The parameters that predict the points marked as fitted best: least sum of |log(predicted / measured)|, by a search
// along one parameter after the other from `starts` places within a factor of 10 of the defaults. Deterministic.
Result<Parameters> fit(const System& system, const Predictor& predictor, const std::vector<Point>& points,
                       std::uint32_t starts);

}  // namespace tutti::tool

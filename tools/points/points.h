// Comparison of the cost model with published measurements of all-reduces: reads measurements, predicts them, and fits
// parameters to some of them. Used by `tutti points` (command.h) from one thread.
//
// A system is a machine or cluster for which measurements were published. It consists of rows of a table (each row is
// one point), a ready-made shape, and one file of parameters (docs/parameters-json.md) for all its rows. The parameters
// are fitted to some of the rows, and the other rows are used to judge them. The prediction for a row is the shortest
// time over the system's algorithms, protocols and slot sizes, by simulate() and time_by_links_us(), or that of
// InSwitch if it is shorter. All of these are tried for every row, whatever its size. Of a row, a prediction uses only
// the number of ranks, the number of machines, and the bytes.
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
  // true: the parameters are fitted to this point; false: they are judged by it
  bool fitted = false;
};

// Selects the rows of a system to which its parameters are fitted.
enum class Training : std::uint8_t {
  // for each number of machines: the first, third, ... row, in ascending order of ranks and then of bytes
  kEveryOtherSize,
  // all rows with up to 16 machines
  kAtMost16Machines,
};

struct System {
  // name of the system in tables, and of its parameter file: NAME.json next to the file of systems
  std::string name;
  // value of the table's column `system` in the rows of this system
  std::string rows;
  // value of the table's column `algo` in these rows; empty: any value
  std::string algorithm;
  // value of the table's column `ranks` in these rows; 0: any value
  std::uint32_t ranks = 0;
  std::string shape;  // name of the shape (topology/cluster.h)
  // Compute capability of the GPUs, for example 80, 90 or 100. Parameters that are not fitted have the defaults for it.
  std::int32_t capability = 0;
  Training training = Training::kEveryOtherSize;
  // The prediction is the shortest time over these algorithms and protocols. May be empty if in_switch is true.
  std::vector<Algorithm> algorithms;
  std::vector<Protocol> protocols;
  // Slot sizes, which limit the length of a message. The prediction is the shortest time over these. Empty: only
  // Parameters::slot_bytes.
  std::vector<std::uint64_t> slot_bytes;
  // True if the switches inside the machines may add (NVLS). Then InSwitch is one more candidate for the prediction,
  // unless Parameters::switch_gbytes_per_s is 0.
  bool in_switch = false;
  // names of the parameters that are fitted, as for parameter(): "launch_us", "nvlink.simple.latency_us", ...
  std::vector<std::string> fitted;
};

// limit on the number of lines of a table
inline constexpr std::size_t kMostPoints = 100'000;

// Parses the file of systems (docs/points.md). Errors: kInvalidArgument if the text is not a list of systems, or if a
// system is invalid; the message then has the number of the system and usually the invalid field.
Result<std::vector<System>> parse_systems(std::string_view json);

// Returns the points of one system in a table (docs/points.md): the all-reduces, sorted by machines, ranks and bytes.
// Rows are left out if their number of ranks, machines or bytes, or their time, is not a number above 0.
// Errors: kInvalidArgument, with the column or the line, if a needed column is missing, if two columns have the same
// name, if a line has too few fields, or if the table is too long.
Result<std::vector<Point>> points_of(std::string_view csv, const System& system);

// Read or set one parameter that can be fitted, by its name in the file: launch_us, step_us, reduce_gbytes_per_s,
// switch_..., or LEVEL.PROTOCOL.FIELD. There are no names of the level `spine`: setting a parameter of `nic` also sets
// that of `spine`. Setting LEVEL.PROTOCOL.gbytes_per_s also scales LEVEL.PROTOCOL.channel_gbytes_per_s by the same
// factor. Errors: kInvalidArgument for any other name.
Result<double> parameter(const Parameters& parameters, std::string_view name);
Status set_parameter(Parameters& parameters, std::string_view name, double value);

struct Predicted {
  double time_us = 0;
  // the fastest one; kAuto: the switches add, and `protocol` has no meaning
  Algorithm algorithm = Algorithm::kAuto;
  Protocol protocol = Protocol::kSimple;
};

// Predicts the times of points of one system. create() builds the networks and finds the generators of the plans for
// the numbers of machines of all points, so that predict() need not. Errors of create(): those of make_shape(),
// Network::create(), find_generator() and InSwitch::create(). Errors of predict(): those of simulate() and
// InSwitch::all_reduce_us(); kInvalidArgument if create() did not get the point's number of machines, or if the
// system's shape does not have the point's number of ranks.
class Predictor {
 public:
  static Result<Predictor> create(const System& system, const std::vector<Point>& points);
  Result<Predicted> predict(const Point& point, const Parameters& parameters) const;

 private:
  // The network, the generators of the plans, and the formula of the switches for one number of machines.
  struct PlannedCluster {
    std::uint32_t machines = 0;
    Network network;
    std::vector<Generator> generators;
    // empty if System::in_switch is false
    std::optional<InSwitch> in_switch;
  };
  System system_;
  std::vector<PlannedCluster> clusters_;
};

// Searches for the parameters that best predict the points with `fitted` true. Best means the smallest sum of
// |log(predicted / measured)|. The search changes one parameter after the other, so it may miss the best ones. It
// begins `starts` times: first with the defaults of the GPUs, then with random values of the parameters in
// System::fitted, within a factor of 10 of the defaults. The random numbers are the same in every run. Errors: those of
// Predictor::predict() and set_parameter().
Result<Parameters> fit(const System& system, const Predictor& predictor, const std::vector<Point>& points,
                       std::uint32_t starts);

}  // namespace tutti::tool

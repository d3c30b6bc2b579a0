// The output of `tutti sim`: a table and JSON. All functions are pure, except memory_mib(), and except that
// to_text() and to_json() contain its result.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/simulate.h"
#include "tools/sim/options.h"

namespace tutti::tool {

// The prediction for one algorithm.
struct SimRow {
  // kAuto stands for an all-reduce in which the switches of the machines add (model/in_switch.h)
  Algorithm algorithm = Algorithm::kRing;
  Protocol protocol = Protocol::kSimple;  // the fastest one of SimTask::protocols
  SimulateResult result;
  // How long the simulation ran, with all protocols, in seconds. If the row was simulated again with another model,
  // only that simulation counts.
  double wall_s = 0;
  // True if the model let a link carry more bytes than it can in the simulated time. `result.time_us` was then
  // replaced by the time that the busiest link needs, and the utilisations are relative to that time.
  bool bounded = false;
};

struct SimReport {
  // the fastest first; at least one
  std::vector<SimRow> rows;
  // algorithms that cannot be simulated for this task, each with the reason: "two_shot: ..."
  std::vector<std::string> left_out;
};

// "in_switch" if row.algorithm is kAuto, because kAuto stands for an all-reduce in the switches (see SimRow).
// Otherwise the name of the algorithm, for example "ring".
std::string_view name_of(const SimRow& row);
// SimTask::bytes divided by the time, in 10^9 bytes per second.
double algbw_gbytes_per_s(const SimTask& task, const SimRow& row);
// algbw times the factor of the collective by which nccl-tests converts it to the bandwidth of a link.
double busbw_gbytes_per_s(const SimTask& task, const SimRow& row);

std::string to_text(const SimTask& task, const SimReport& report);
std::string to_json(const SimTask& task, const SimReport& report);

// largest resident memory of this process so far, in MiB
double memory_mib();

}  // namespace tutti::tool

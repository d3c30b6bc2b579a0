// The output of `tutti sim`: a table and JSON. All functions are pure, except memory_mib().
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/simulate.h"
#include "tools/sim/options.h"

namespace tutti::tool {

struct SimRow {
  Algorithm algorithm = Algorithm::kRing;  // kAuto: switches calculate the sums
  Protocol protocol = Protocol::kSimple;
  SimulateResult result;
  double wall_s = 0;  // run time of the simulation in seconds
  // The model let a link carry more than its capacity. `result` then contains the minimum time that the busiest link
  // needs.
  bool bounded = false;
};

struct SimReport {
  std::vector<SimRow> rows;           // the fastest first; at least one
  std::vector<std::string> left_out;  // algorithms that are not suitable, with the reason: "two_shot: ..."
};

std::string_view name_of(const SimRow& row);  // "ring", "in_switch"
double algbw_gbytes_per_s(const SimTask& task, const SimRow& row);
double busbw_gbytes_per_s(const SimTask& task, const SimRow& row);

std::string to_text(const SimTask& task, const SimReport& report);
std::string to_json(const SimTask& task, const SimReport& report);

double memory_mib();  // largest memory use of this process so far

}  // namespace tutti::tool

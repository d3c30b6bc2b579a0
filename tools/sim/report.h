// What `tutti sim` tells: a table and JSON. Pure functions, but for memory_mib().
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/simulate.h"
#include "tools/sim/options.h"

namespace tutti::tool {

struct SimRow {
  Algorithm algorithm = Algorithm::kRing;  // kAuto: the sums are made by switches
  Protocol protocol = Protocol::kSimple;
  SimulateResult result;
  double wall_s = 0;  // that the simulation took
  // The model let links carry more than they can: `result` has the least time that the busiest one takes.
  bool bounded = false;
};

struct SimReport {
  std::vector<SimRow> rows;           // the quickest first; at least one
  std::vector<std::string> left_out;  // "two_shot: ...", algorithms that do not fit
};

std::string_view name_of(const SimRow& row);  // "ring", "in_switch"
double algbw_gbytes_per_s(const SimTask& task, const SimRow& row);
double busbw_gbytes_per_s(const SimTask& task, const SimRow& row);

std::string to_text(const SimTask& task, const SimReport& report);
std::string to_json(const SimTask& task, const SimReport& report);

double memory_mib();  // the most that this process has had

}  // namespace tutti::tool

// `tutti tune --regret`: measures every algorithm of a collective and compares the fastest one with the one that the
// library selects. The ranks are processes. In each round, all algorithms (later without those that are much slower
// than the best one) are measured one after the other, so that slow changes of the machine's speed affect them equally.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/perf/options.h"
#include "tutti/communicator.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::tool {

struct RegretOptions {
  std::vector<CollectiveKind> kinds{CollectiveKind::kAllReduce};
  std::vector<std::uint64_t> sizes{};  // lengths of messages in bytes, which message_elements() rounds
  MemoryKind memory = MemoryKind::kPlain;
  // Largest number of rounds of a point (a collective and a size). In each round, one sample of every algorithm is
  // taken, except of those that were much slower than the best one in kFewestRounds (regret.cc) rounds. A point that
  // takes longer than point_s seconds ends after its present round, but not before round kFewestRounds.
  std::int64_t rounds = 5;
  double sample_us = 3000;  // intended duration of all calls of one sample together
  double point_s = 2;       // time limit for a point, in seconds; see `rounds`
};

// The measurement of one algorithm at one point (collective, transport, ranks and size).
struct RegretRow {
  std::string collective{};
  std::string transport{};  // "shm" or "tcp"
  std::int32_t ranks = 0;
  std::uint64_t bytes = 0;
  std::string algorithm{};
  bool chosen = false;
  double median_us = 0;
  double least_us = 0;       // the fastest sample, which other work on the machine disturbs least
  std::int64_t samples = 0;  // number of samples

  bool operator==(const RegretRow&) const = default;
};

// Does this rank's part of the measurements of all points. All ranks must call it. Rank 0 gets the rows, and the
// other ranks get an empty list. `transport` is only copied into the rows.
Result<std::vector<RegretRow>> measure_regret(Communicator& communicator, const RegretOptions& options,
                                              std::string_view transport);

// Convert rows to CSV, one line for each after a line with the names, and back. Error of parse_regret():
// kInvalidArgument if a line is invalid.
std::string to_csv(const std::vector<RegretRow>& rows);
Result<std::vector<RegretRow>> parse_regret(std::string_view csv);

// For each point, the time of the selected algorithm divided by the time of the fastest one (1: the selection was the
// best). Points without a measurement of the selected algorithm are left out.
struct Regret {
  struct Point {
    RegretRow chosen{};
    RegretRow best{};     // the row of the algorithm with the lowest median_us
    double least_us = 0;  // the smallest RegretRow::least_us of all algorithms
    double ratio() const { return chosen.median_us / best.median_us; }
    double least_ratio() const { return chosen.least_us / least_us; }
  };
  std::vector<Point> points{};
  double median = 1;        // median of the points' ratio()
  double worst = 1;         // largest ratio() of a point
  double least_median = 1;  // median of the points' least_ratio()
  double least_worst = 1;   // largest least_ratio() of a point
};
Regret regret_of(const std::vector<RegretRow>& rows);
std::string to_text(const Regret& regret);

}  // namespace tutti::tool

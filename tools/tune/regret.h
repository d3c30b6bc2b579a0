// `tutti tune --regret`: measures every algorithm of a collective and compares the fastest one with the one that the
// library selects. The ranks are processes. All algorithms are measured in turn in each round, so that drift of the
// machine affects all of them equally.
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
  std::vector<std::uint64_t> sizes{};  // lengths of messages in bytes: message_elements() of float32
  MemoryKind memory = MemoryKind::kPlain;
  // Largest number of rounds. If all algorithms of a point are slow, it has fewer, but at least 3.
  std::int64_t rounds = 5;
  double sample_us = 3000;  // approximate duration of all calls of one sample
  double point_s = 2;       // approximate duration of one point
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
  double least_us = 0;  // minimum, which a busy machine disturbs least
  std::int64_t samples = 0;

  bool operator==(const RegretRow&) const = default;
};

// Measures all points, as one rank. Collective. Only rank 0 gets rows.
Result<std::vector<RegretRow>> measure_regret(Communicator& communicator, const RegretOptions& options,
                                              std::string_view transport);

// Convert rows to CSV, one line each, and back. Errors: kInvalidArgument for an invalid line.
std::string to_csv(const std::vector<RegretRow>& rows);
Result<std::vector<RegretRow>> parse_regret(std::string_view csv);

// For each point, the time of the selected algorithm divided by that of the best one. Points without a measurement of
// the selected algorithm are left out.
struct Regret {
  struct Point {
    RegretRow chosen{};
    RegretRow best{};     // the one with the lowest median
    double least_us = 0;  // minimum over all algorithms
    double ratio() const { return chosen.median_us / best.median_us; }
    double least_ratio() const { return chosen.least_us / least_us; }
  };
  std::vector<Point> points{};
  double median = 1;  // median of the points' ratio()
  double worst = 1;
  double least_median = 1;  // median of the points' least_ratio()
  double least_worst = 1;
};
Regret regret_of(const std::vector<RegretRow>& rows);
std::string to_text(const Regret& regret);

}  // namespace tutti::tool

// `tutti tune --regret`: every algorithm of a collective against the one that the library chooses, in one run. The
// ranks are processes; rounds of all algorithms in turn, so that drift of the machine hits all alike.
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
  std::vector<std::uint64_t> sizes{};  // of a message, in bytes: message_elements() of float32
  MemoryKind memory = MemoryKind::kPlain;
  std::int64_t rounds = 5;  // at most; a point whose algorithms are all slow has fewer, at least 3
  double sample_us = 3000;  // what the calls of one sample take together, about
  double point_s = 2;       // of one point, about
};

// One algorithm of one point.
struct RegretRow {
  std::string collective{};
  std::string transport{};  // "shm" or "tcp"
  std::int32_t ranks = 0;
  std::uint64_t bytes = 0;
  std::string algorithm{};
  bool chosen = false;
  double median_us = 0;
  double least_us = 0;  // what a busy machine disturbs least
  std::int64_t samples = 0;

  bool operator==(const RegretRow&) const = default;
};

// This rank's part: all points. Collective; rows on rank 0 only.
Result<std::vector<RegretRow>> measure_regret(Communicator& communicator, const RegretOptions& options,
                                              std::string_view transport);

// A line each, and back. Errors: kInvalidArgument for a line that is none.
std::string to_csv(const std::vector<RegretRow>& rows);
Result<std::vector<RegretRow>> parse_regret(std::string_view csv);

// Of each point the choice's time over the best one's; a point without a choice that was measured is left out.
struct Regret {
  struct Point {
    RegretRow chosen{};
    RegretRow best{};     // by the medians
    double least_us = 0;  // of all algorithms
    double ratio() const { return chosen.median_us / best.median_us; }
    double least_ratio() const { return chosen.least_us / least_us; }
  };
  std::vector<Point> points{};
  double median = 1;  // of the points' ratios
  double worst = 1;
  double least_median = 1;  // of their least_ratios
  double least_worst = 1;
};
Regret regret_of(const std::vector<RegretRow>& rows);
std::string to_text(const Regret& regret);

}  // namespace tutti::tool

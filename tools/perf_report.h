// What `tutti perf` tells: a table for people while it measures, and a JSON file for programs (docs/perf-json.md).
//
// Used by rank 0's thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/perf_options.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::tool {

// One way of calling (out of place, in place) at one size.
struct PerfMeasurement {
  double time_us = 0;  // mean of a call, on the slowest rank
  std::int64_t iterations = 0;
  std::optional<std::uint64_t> wrong;  // elements, over all ranks and checks; nothing where nothing was checked
};

struct PerfRow {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::uint64_t count = 0;
  Algorithm algorithm = Algorithm::kRing;  // as carried out, never kAuto
  std::optional<PerfMeasurement> out_of_place;
  std::optional<PerfMeasurement> in_place;
  std::optional<double> bound_us;
};

// GB/s, 1 GB = 1e9 bytes. `busbw`: the bytes that each rank's link would have to carry for this algbw, 2 (n - 1) / n of
// them.
double algbw_GBps(std::uint64_t bytes, double time_us);
double busbw_GBps(std::uint64_t bytes, double time_us, std::int32_t ranks);

class PerfReport {
 public:
  PerfReport(const PerfOptions& options, std::int32_t ranks, int cores);

  // Errors: kSystem, stdout can't be written.
  Status print_header() const;
  Status add(const PerfRow& row);
  Status print_footer() const;

  std::string to_json(const std::string& date) const;

  std::uint64_t wrong() const;

 private:
  Status print_row(const PerfRow& row) const;
  double mean_busbw_GBps() const;

  const PerfOptions options_;
  const std::int32_t ranks_;
  const int cores_;
  std::vector<PerfRow> rows_;
};

}  // namespace tutti::tool

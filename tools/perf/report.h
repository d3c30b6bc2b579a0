// What `tutti perf` tells: a table for people while it measures, and JSON and CSV files for programs
// (docs/perf-json.md).
//
// Used by rank 0's thread only.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/perf/collective.h"
#include "tools/perf/options.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::tool {

// One way of calling (out of place, in place) at one size.
struct PerfMeasurement {
  double time_us = 0;  // mean of a call, on the slowest rank
  std::int64_t iterations = 0;
  std::optional<std::uint64_t> wrong;  // elements, over all ranks and checks; nothing where nothing was checked
  bool on_devices = false;             // rank 0's GPU carried out every call
};

struct PerfRow {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::uint64_t elements = 0;              // of the whole message
  Algorithm algorithm = Algorithm::kRing;  // as carried out, never kAuto
  std::optional<PerfMeasurement> out_of_place;
  std::optional<PerfMeasurement> in_place;
  std::optional<double> bound_us;
};

// Who takes part, and how the ranks reach each other.
struct PerfJob {
  std::int32_t ranks = 1;
  std::int32_t nodes = 1;  // machines, or what --nodes and TUTTI_NODE_ID make of them
  int cores = 1;           // that rank 0 may use
  std::string transport;   // "shm", "tcp", "mixed"
};

// Whether a row has a bound: that of tools/perf/bound.h is one for an all-reduce within one machine's memory only.
bool has_bound(const PerfCollective& collective, const PerfJob& job);

// GB/s, 1 GB = 1e9 bytes.
double algbw_GBps(std::uint64_t bytes, double time_us);

class PerfReport {
 public:
  PerfReport(const PerfOptions& options, PerfJob job);

  // Called before print_header(): why some messages are not measured. Empty: all are.
  void leave_out(std::string why) { left_out_ = std::move(why); }
  // Errors: kSystem, stdout can't be written.
  Status print_header() const;
  Status add(const PerfRow& row);
  Status print_footer() const;

  std::string to_json(const std::string& date) const;
  std::string to_csv() const;

  const PerfJob& job() const { return job_; }

 private:
  Status print_row(const PerfRow& row) const;
  std::uint64_t bytes_of(const PerfRow& row) const;
  double busbw_GBps(const PerfRow& row, double time_us) const;
  std::string measurement_text(const PerfRow& row, const std::optional<PerfMeasurement>& measurement) const;
  std::string type_text(const PerfRow& row) const;
  std::string op_text(const PerfRow& row) const;
  std::optional<std::uint64_t> wrong() const;  // nothing where nothing was checked
  double mean_busbw_GBps() const;
  std::string carried_out_text() const;  // of device memory
  std::vector<nlohmann::ordered_json> json_rows() const;

  const PerfOptions options_;
  const PerfJob job_;
  const bool bounded_;
  std::string left_out_;
  std::vector<PerfRow> rows_;
};

}  // namespace tutti::tool

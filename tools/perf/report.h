// PerfReport: the output of `tutti perf`. It is a table that is printed while the command measures, and JSON and CSV
// files for programs (docs/perf-json.md).
//
// Only used by the thread of rank 0.
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

// The measurement of one form of a call (out of place or in place) at one size.
struct PerfMeasurement {
  double time_us = 0;  // mean time of a call, on the slowest rank
  std::int64_t iterations = 0;
  // Wrong elements of all ranks and checks; nothing if results were not checked.
  std::optional<std::uint64_t> wrong;
  bool on_devices = false;  // rank 0's GPU executed every call
};

// One row of the table: one type, operation and size.
struct PerfRow {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::uint64_t elements = 0;              // elements of the whole message
  Algorithm algorithm = Algorithm::kRing;  // the algorithm that was executed, never kAuto
  std::optional<PerfMeasurement> out_of_place;
  std::optional<PerfMeasurement> in_place;
  std::optional<double> bound_us;
};

// The size of the job and its transport.
struct PerfJob {
  std::int32_t ranks = 1;
  std::int32_t nodes = 1;  // machines, real ones or as set by --nodes or TUTTI_NODE_ID
  int cores = 1;           // number of cores that rank 0 may use
  std::string transport;   // a result of agree_on_transport()
};

// Whether rows have a bound. The bound of tools/perf/bound.h applies only to an all-reduce in the memory of one
// machine.
bool has_bound(const PerfCollective& collective, const PerfJob& job);

// In GB/s, with 1 GB = 1e9 bytes.
double algbw_GBps(std::uint64_t bytes, double time_us);

class PerfReport {
 public:
  PerfReport(const PerfOptions& options, PerfJob job);

  // Sets the reason why some messages are not measured; empty: all are measured. To be called before print_header().
  void leave_out(std::string why) { left_out_ = std::move(why); }
  // Print to stdout. Errors: kSystem if stdout cannot be written.
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
  std::optional<std::uint64_t> wrong() const;  // nothing if nothing was checked
  double mean_busbw_GBps() const;
  std::string carried_out_text() const;  // for device memory
  std::vector<nlohmann::ordered_json> json_rows() const;

  const PerfOptions options_;
  const PerfJob job_;
  const bool bounded_;
  std::string left_out_;
  std::vector<PerfRow> rows_;
};

}  // namespace tutti::tool

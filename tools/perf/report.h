// PerfReport: the output of `tutti perf`. It consists of a table that is printed while the command measures, and of
// JSON and CSV files for programs (docs/perf-json.md).
//
// Used only on rank 0, by one thread.
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
  // Mean time of a timed call on the slowest rank. For a ping-pong, half of that, which is the time of one message.
  double time_us = 0;
  std::int64_t iterations = 0;
  // Number of wrong elements and of overwritten bytes behind buffers, of all ranks and of both checks together. For the
  // barrier: how often a rank left a barrier before all ranks had entered it. Nothing if results were not checked.
  std::optional<std::uint64_t> wrong;
  bool on_devices = false;  // rank 0's GPU executed every call; false: the host executed at least one
};

// One row of the table: one type, operation and size.
struct PerfRow {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::uint64_t elements = 0;  // elements of the whole message
  // The algorithm of the call or, if that is kAuto, the one that Communicator::auto_algorithm() returns. kDirect if the
  // call runs as sends and receives. kAuto only if there was not enough memory to find out.
  Algorithm algorithm = Algorithm::kRing;
  std::optional<PerfMeasurement> out_of_place;
  std::optional<PerfMeasurement> in_place;
  std::optional<double> reference_us;  // result of ReferenceMeter (reference.h); nothing: not measured
};

// The size of the job and its transport.
struct PerfJob {
  std::int32_t ranks = 1;
  std::int32_t nodes = 1;  // number of machines: real ones, or as set by --nodes or TUTTI_NODE_ID
  int cores = 1;           // number of cores that rank 0 may use
  std::string transport;   // a result of agree_on_transport()
};

// Whether the table has columns for the reference (tools/perf/reference.h). The reference exists only for an all-reduce
// of ranks that all communicate through shared memory.
bool has_reference(const PerfCollective& collective, const PerfJob& job);

// The length of the message divided by the time, in GB/s, with 1 GB = 1e9 bytes. 0 if the time is 0.
double algbw_GBps(std::uint64_t bytes, double time_us);

class PerfReport {
 public:
  PerfReport(const PerfOptions& options, PerfJob job);

  // Sets the reason why some messages are not measured; empty: all are measured. To be called before print_header(),
  // which prints the reason.
  void leave_out(std::string why) { left_out_ = std::move(why); }
  // Print to stdout; add() also stores the row for the files. Errors: kSystem if stdout cannot be written.
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
  // For GPU memory: the line of the footer that states whether the GPUs or the host executed the calls.
  std::string carried_out_text() const;
  std::vector<nlohmann::ordered_json> json_rows() const;

  const PerfOptions options_;
  const PerfJob job_;
  const bool has_reference_;
  std::string left_out_;
  std::vector<PerfRow> rows_;
};

}  // namespace tutti::tool

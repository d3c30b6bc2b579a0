// The options of a `tutti perf` run: PerfArguments is the command line as text, PerfOptions the checked values. All
// functions are pure and may be called from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/perf/collective.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::tool {

enum class MemoryKind : std::uint8_t { kPlain, kRegistered, kCuda };
std::string_view to_string(MemoryKind memory);

// The command line as it was given. The options have the names of nccl-tests if it has the same option. Empty: not
// given.
struct PerfArguments {
  std::string collective = "all_reduce";
  std::string min_bytes;
  std::string max_bytes;
  std::string step_bytes;
  std::string step_factor;
  std::string data_type = "float32";
  std::string op = "sum";
  std::string algorithm = "auto";
  std::string memory = "plain";
  std::string in_place = "both";
  std::string transport;
  std::string json_path;
  std::string csv_path;
  std::int64_t iterations = 0;
  std::int64_t warmup_iterations = 5;
  std::int32_t check = 1;
  std::int32_t root = 0;
  std::int32_t ranks_per_gpu = 1;
  std::optional<std::int32_t> ranks;
  std::optional<std::int32_t> nodes;
  std::optional<std::int32_t> corrupt;
  double timeout_s = 0;
  bool threads = false;
};

struct PerfOptions {
  PerfCollective collective;
  std::uint64_t min_bytes = 8;
  std::uint64_t max_bytes = 64 << 20;
  std::uint64_t step_bytes = 0;  // 0: sizes are multiplied by step_factor
  std::uint64_t step_factor = 2;
  std::vector<DataType> types;
  // If the collective does not reduce, one operation that only selects the pattern of the input.
  std::vector<ReduceOp> ops;
  Algorithm algorithm = Algorithm::kAuto;
  MemoryKind memory = MemoryKind::kPlain;
  bool out_of_place = true;
  bool in_place = true;
  bool check = true;
  bool threads = false;         // ranks are threads of one process
  std::int64_t iterations = 0;  // 0: chosen from the time of a call
  std::int64_t warmup_iterations = 5;
  std::int32_t root = 0;           // used by collectives with a root
  std::int32_t ranks = 0;          // 0: not given
  std::int32_t ranks_per_gpu = 1;  // with kCuda: number of consecutive ranks that share a GPU
  // Number of machines over which the ranks are split; 0: not given.
  std::int32_t nodes = 0;
  // This rank flips a bit of its results before they are checked; -1: no rank.
  std::int32_t corrupt = -1;
  std::string transport;                 // empty: not given
  std::chrono::milliseconds timeout{0};  // of set-up and of each collective; 0: the library's default
  std::string json_path;                 // empty: no file
  std::string csv_path;                  // empty: no file
};

inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{1} << 40;
inline constexpr std::size_t kMaxSizes = 10'000;  // largest number of sizes in one sweep

// Parses a size in bytes: an integer with an optional suffix K, M, G (upper or lower case, powers of 1024) or KiB,
// MiB, GiB. Examples: "8", "4K", "64M", "1GiB". Other texts are refused, for example 1GB, which some people read as
// 10^9 bytes.
std::optional<std::uint64_t> parse_size(std::string_view text);

// Checks and converts the command line. Errors: kInvalidArgument, with the option's name and its valid values.
Result<PerfOptions> resolve(const PerfArguments& arguments);

// Checks the options that depend on the number of ranks: root, machines, the rank to corrupt, the algorithm. Errors:
// as resolve().
Status check_ranks(const PerfOptions& options, std::int32_t ranks);

// The sizes of the sweep in bytes, in ascending order.
std::vector<std::uint64_t> sweep_sizes(const PerfOptions& options);

// The message lengths of the sweep in elements (message_elements()), without consecutive duplicates.
std::vector<std::uint64_t> sweep_elements(const PerfOptions& options, DataType type, std::int32_t ranks);

}  // namespace tutti::tool

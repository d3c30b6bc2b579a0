// The options of a `tutti perf` run: PerfArguments holds the options as they were given, PerfOptions the checked
// values. All functions are pure and may be called from any thread.
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

// The options as they were given on the command line, before they are checked. Sizes, numbers of calls, check, type,
// operation and root have the same option names as in nccl-tests. An empty text or an empty optional means that the
// option was not given.
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
  // Added to get the next size. 0: the size is multiplied by step_factor instead, and step_factor is the size after 0.
  std::uint64_t step_bytes = 0;
  std::uint64_t step_factor = 2;
  std::vector<DataType> types;
  // The reduction operations to measure. If the collective does not reduce, one operation, which is not executed and
  // only selects the DataPattern of the input.
  std::vector<ReduceOp> ops;
  Algorithm algorithm = Algorithm::kAuto;
  MemoryKind memory = MemoryKind::kPlain;
  bool out_of_place = true;
  bool in_place = true;
  bool check = true;
  bool threads = false;         // ranks are threads of one process
  std::int64_t iterations = 0;  // number of timed calls; 0: chosen from the time of a call
  std::int64_t warmup_iterations = 5;
  std::int32_t root = 0;           // used only by collectives with a root
  std::int32_t ranks = 0;          // 0: not given
  std::int32_t ranks_per_gpu = 1;  // with kCuda: number of consecutive ranks that share a GPU
  // Number of simulated machines over which the ranks are split; 0: not given, so the real machines count.
  std::int32_t nodes = 0;
  // The rank that flips a bit of its results before they are checked, to test the check; -1: no rank.
  std::int32_t corrupt = -1;
  std::string transport;                 // empty: not given
  std::chrono::milliseconds timeout{0};  // of set-up and of each collective; 0: the library's default
  std::string json_path;                 // empty: no file
  std::string csv_path;                  // empty: no file
};

inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{1} << 40;
inline constexpr std::size_t kMaxSizes = 10'000;  // largest number of sizes in one sweep

// Parses a size in bytes: an unsigned integer with an optional suffix K, M, G (upper or lower case, powers of 1024) or
// KiB, MiB, GiB. Examples: "8", "4K", "64M", "1GiB". Other texts are refused, for example 1GB, which some people read
// as 10^9 bytes, and sizes above kMaxMessageBytes.
std::optional<std::uint64_t> parse_size(std::string_view text);
// Parses the value of an option --slot-bytes: a size that parse_size() accepts and that is a multiple of 64 from 64 to
// 64G. Errors: kInvalidArgument, and the message has the name of the option.
Result<std::uint64_t> parse_slot_bytes(std::string_view text);

// Checks and converts the command line. Errors: kInvalidArgument; the message names the option and, for most options,
// its valid values.
Result<PerfOptions> resolve(const PerfArguments& arguments);

// Checks the options whose valid values depend on the number of ranks: root, nodes, corrupt and algorithm.
// Errors: as resolve().
Status check_ranks(const PerfOptions& options, std::int32_t ranks);

// The sizes of the sweep in bytes, in ascending order.
std::vector<std::uint64_t> sweep_sizes(const PerfOptions& options);

// The message lengths of the sweep in elements, which are the results of message_elements() for all sweep_sizes(). A
// length that is equal to the one before it is left out.
std::vector<std::uint64_t> sweep_elements(const PerfOptions& options, DataType type, std::int32_t ranks);

}  // namespace tutti::tool

// What a `tutti perf` run is asked to do: the command line's words turned into a checked value. Pure functions, any
// thread.
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

// The command line as it was given; the names are nccl-tests' where it has one. Empty: not given.
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
  std::uint64_t step_bytes = 0;  // 0: sizes grow by step_factor
  std::uint64_t step_factor = 2;
  std::vector<DataType> types;
  std::vector<ReduceOp> ops;  // where nothing is added one that inputs are made for, and nothing more
  Algorithm algorithm = Algorithm::kAuto;
  MemoryKind memory = MemoryKind::kPlain;
  bool out_of_place = true;
  bool in_place = true;
  bool check = true;
  bool threads = false;         // ranks as threads of one process
  std::int64_t iterations = 0;  // 0: chosen by time
  std::int64_t warmup_iterations = 5;
  std::int32_t root = 0;                 // for rooted collectives
  std::int32_t ranks = 0;                // 0: not given
  std::int32_t ranks_per_gpu = 1;        // of kCuda: neighbouring ranks share a GPU
  std::int32_t nodes = 0;                // machines to split the ranks over; 0: not given
  std::int32_t corrupt = -1;             // the rank whose results get a flipped bit before they are checked; -1: none
  std::string transport;                 // empty: not given
  std::chrono::milliseconds timeout{0};  // of set-up and of each collective; 0: the library's
  std::string json_path;                 // empty: none
  std::string csv_path;                  // empty: none
};

inline constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{1} << 40;
inline constexpr std::size_t kMaxSizes = 10'000;  // of one sweep

// "8", "4K", "64M", "1G", "1GiB": whole numbers of bytes, powers of 1024, K, M and G upper or lower case. Nothing else
// is a size: not 1GB, which some take for 10^9 bytes.
std::optional<std::uint64_t> parse_size(std::string_view text);

// Errors: kInvalidArgument, with the option's name and what it takes.
Result<PerfOptions> resolve(const PerfArguments& arguments);

// What can only be said once the number of ranks is known: root, machines, the rank to corrupt, the algorithm. Errors
// as above.
Status check_ranks(const PerfOptions& options, std::int32_t ranks);

// The sizes of the sweep in bytes, in ascending order.
std::vector<std::uint64_t> sweep_sizes(const PerfOptions& options);

// The messages of the sweep in elements (message_elements()), none twice in a row.
std::vector<std::uint64_t> sweep_elements(const PerfOptions& options, DataType type, std::int32_t ranks);

}  // namespace tutti::tool

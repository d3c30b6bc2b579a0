#include "tools/perf/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <system_error>
#include <utility>

#include "algorithms/algorithms.h"
#include "base/assert.h"
#include "base/config.h"
#include "tools/common/messages.h"
#include "tools/run/launch.h"

namespace tutti::tool {
namespace {

constexpr std::array kMemories = {MemoryKind::kPlain, MemoryKind::kRegistered, MemoryKind::kCuda};
constexpr std::array<std::string_view, 3> kInPlaceWords = {"0", "1", "both"};

Error invalid(std::string message) { return Error{.code = ErrorCode::kInvalidArgument, .message = std::move(message)}; }

Error too_small(std::string_view option, std::int64_t number, double least) {
  return wrong_option(option, not_a_number(std::to_string(number), least, std::nullopt));
}

Status resolve_sizes(const PerfArguments& arguments, PerfOptions& options) {
  const auto take = [](std::string_view option, const std::string& text, std::uint64_t& value) -> Status {
    if (text.empty()) return {};
    const std::optional<std::uint64_t> size = parse_size(text);
    if (!size) return wrong_option(option, not_a_size(text));
    value = *size;
    return {};
  };
  TUTTI_TRY(take("--minbytes", arguments.min_bytes, options.min_bytes));
  // If --minbytes is above the default maximum and --maxbytes is not given, only the size --minbytes is measured.
  options.max_bytes = std::max(options.max_bytes, options.min_bytes);
  TUTTI_TRY(take("--maxbytes", arguments.max_bytes, options.max_bytes));
  if (arguments.min_bytes.empty()) options.min_bytes = std::min(options.min_bytes, options.max_bytes);
  TUTTI_TRY(take("--stepbytes", arguments.step_bytes, options.step_bytes));
  TUTTI_TRY(take("--stepfactor", arguments.step_factor, options.step_factor));
  if (options.min_bytes > options.max_bytes) {
    return invalid(fmt::format("--minbytes {} is more than --maxbytes {}", options.min_bytes, options.max_bytes));
  }
  if (!arguments.step_bytes.empty() && options.step_bytes == 0) {
    return wrong_option("--stepbytes", not_a_number(arguments.step_bytes, 1, std::nullopt));
  }
  if (options.step_factor < 2) {
    return wrong_option("--stepfactor", not_a_number(arguments.step_factor, 2, std::nullopt));
  }
  if (options.step_bytes > 0 && (options.max_bytes - options.min_bytes) / options.step_bytes >= kMaxSizes) {
    return invalid(fmt::format("--stepbytes {} makes more than {} sizes", options.step_bytes, kMaxSizes));
  }
  return {};
}

// Stores the values of an option in `values`: all of `all` if `text` is "all", otherwise only `parsed`, which is the
// value that `text` names. Error: `parsed` is empty, because `text` names no value.
template <class Value>
Status resolve_list(std::string_view option, const std::string& text, std::optional<Value> parsed,
                    std::span<const Value> all, std::vector<Value>& values) {
  if (text == "all") {
    values.assign(all.begin(), all.end());
  } else if (parsed) {
    values = {*parsed};
  } else {
    std::vector<std::string_view> names;
    for (const Value value : all) names.push_back(to_string(value));
    names.emplace_back("all");
    return wrong_option(option, not_one_of(text, names));
  }
  return {};
}

Error wrong_collective(const std::string& name) {
  std::vector<std::string> names;
  for (const PerfCollective& each : perf_collectives()) names.push_back(name_of(each));
  return wrong_option("collective", not_one_of(name, std::vector<std::string_view>(names.begin(), names.end())));
}

// The algorithms that --algorithm allows for the collective, in addition to "auto".
std::vector<Algorithm> algorithms_for(const PerfCollective& collective) {
  return is_exchange(collective) ? std::vector{Algorithm::kDirect} : algorithms_of(collective.kind);
}

Status resolve_algorithm(const PerfArguments& arguments, PerfOptions& options) {
  if (arguments.algorithm == "auto") return {};
  const std::vector<Algorithm> known = algorithms_for(options.collective);
  const std::optional<Algorithm> algorithm = parse_algorithm(arguments.algorithm);
  if (!algorithm || std::find(known.begin(), known.end(), *algorithm) == known.end()) {
    std::vector<std::string_view> names{"auto"};
    for (const Algorithm each : known) names.push_back(to_string(each));
    return wrong_option("--algorithm", not_one_of(arguments.algorithm, names));
  }
  options.algorithm = *algorithm;
  return {};
}

Status resolve_in_place(const PerfArguments& arguments, PerfOptions& options) {
  if (arguments.in_place != "0" && arguments.in_place != "1" && arguments.in_place != "both") {
    return wrong_option("--in-place", not_one_of(arguments.in_place, kInPlaceWords));
  }
  if (arguments.in_place == "1" && !has_in_place(options.collective)) {
    return invalid(fmt::format("--in-place 1: {} has no in-place form", arguments.collective));
  }
  options.in_place = arguments.in_place != "0" && has_in_place(options.collective);
  options.out_of_place = arguments.in_place != "1";
  return {};
}

Status resolve_names(const PerfArguments& arguments, PerfOptions& options) {
  TUTTI_TRY(resolve_list("--datatype", arguments.data_type, parse_data_type(arguments.data_type), all_data_types(),
                         options.types));
  TUTTI_TRY(resolve_list("--op", arguments.op, parse_reduce_op(arguments.op), all_reduce_ops(), options.ops));
  // If the collective does not reduce, the operation only selects the DataPattern of the input. If there are several
  // ranks, no other pattern has more different values than the one for kMax.
  if (!adds(options.collective)) options.ops = {ReduceOp::kMax};
  if (!has_buffers(options.collective)) options.types = {DataType::kFloat32};
  TUTTI_TRY(resolve_algorithm(arguments, options));
  const auto memory = std::find_if(kMemories.begin(), kMemories.end(),
                                   [&](MemoryKind kind) { return to_string(kind) == arguments.memory; });
  if (memory == kMemories.end()) {
    std::vector<std::string_view> names;
    for (const MemoryKind kind : kMemories) names.push_back(to_string(kind));
    return wrong_option("--memory", not_one_of(arguments.memory, names));
  }
  options.memory = *memory;
  if (arguments.ranks_per_gpu < 1) {
    return too_small("--ranks-per-gpu", arguments.ranks_per_gpu, 1);
  }
  options.ranks_per_gpu = arguments.ranks_per_gpu;
  if (!arguments.transport.empty() && !parse_transport(arguments.transport)) {
    return wrong_option("--transport", not_one_of(arguments.transport, kTransportNames));
  }
  options.transport = arguments.transport;
  return resolve_in_place(arguments, options);
}

Status resolve_numbers(const PerfArguments& arguments, PerfOptions& options) {
  if (arguments.iterations < 0) return too_small("--iters", arguments.iterations, 0);
  if (arguments.warmup_iterations < 0) return too_small("--warmup_iters", arguments.warmup_iterations, 0);
  if (arguments.check != 0 && arguments.check != 1) {
    return wrong_option("--check", not_a_number(std::to_string(arguments.check), 0, 1));
  }
  if (arguments.ranks && (*arguments.ranks < 1 || *arguments.ranks > kMaxLocalRanks)) {
    return wrong_option("--ranks", not_a_number(std::to_string(*arguments.ranks), 1, kMaxLocalRanks));
  }
  if (arguments.nodes && *arguments.nodes < 1) return too_small("--nodes", *arguments.nodes, 1);
  if (arguments.nodes.value_or(1) > 1 && arguments.transport == "shm")
    return invalid(fmt::format("--nodes {}: --transport shm cannot connect several machines", *arguments.nodes));
  if (arguments.corrupt && (*arguments.corrupt < 0 || arguments.check == 0))
    return invalid(fmt::format("--corrupt {}: give a rank, and do not switch the check off", *arguments.corrupt));
  if (arguments.corrupt && !has_buffers(options.collective))
    return invalid(fmt::format("--corrupt {}: {} has no result", *arguments.corrupt, arguments.collective));
  if (!(arguments.timeout_s >= 0 && arguments.timeout_s <= 86'400))
    return wrong_option("--timeout-s", not_a_number(fmt::format("{}", arguments.timeout_s), 0, 86'400));
  options.iterations = arguments.iterations;
  options.warmup_iterations = arguments.warmup_iterations;
  options.check = arguments.check == 1;
  options.root = arguments.root;
  options.ranks = arguments.ranks.value_or(0);
  options.nodes = arguments.nodes.value_or(0);
  options.corrupt = arguments.corrupt.value_or(-1);
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(arguments.timeout_s * 1000));
  return {};
}

}  // namespace

std::string_view to_string(MemoryKind memory) {
  switch (memory) {
    case MemoryKind::kPlain: return "plain";
    case MemoryKind::kRegistered: return "registered";
    case MemoryKind::kCuda: return "cuda";
  }
  return "invalid";
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, number);
  if (failure != std::errc() || rest == text.data()) return std::nullopt;
  const std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
  // "1GB" is refused, because some people read it as 10^9 bytes.
  if (suffix.size() > 1 && suffix.substr(1) != "iB") return std::nullopt;
  const std::size_t power = std::string_view("KMGkmg").find(suffix.empty() ? '?' : suffix[0]);
  if (!suffix.empty() && power == std::string_view::npos) return std::nullopt;
  const auto shift = suffix.empty() ? 0U : static_cast<unsigned>(10 * (power % 3 + 1));
  if (number > (kMaxMessageBytes >> shift)) return std::nullopt;
  return number << shift;
}

Result<std::uint64_t> parse_slot_bytes(std::string_view text) {
  constexpr std::uint64_t kLeast = 64;
  constexpr std::uint64_t kMost = std::uint64_t{1} << 36;
  const std::optional<std::uint64_t> bytes = parse_size(text);
  if (!bytes) return wrong_option("--slot-bytes", not_a_size(text));
  if (*bytes < kLeast || *bytes > kMost || *bytes % kLeast != 0) {
    return wrong_option("--slot-bytes", fmt::format("{} is not a multiple of {} from {} to 64G", text, kLeast, kLeast));
  }
  return *bytes;
}

Result<PerfOptions> resolve(const PerfArguments& arguments) {
  PerfOptions options;
  const std::optional<PerfCollective> collective = parse_perf_collective(arguments.collective);
  if (!collective) {
    return wrong_collective(arguments.collective);
  }
  options.collective = *collective;
  TUTTI_TRY(resolve_sizes(arguments, options));
  TUTTI_TRY(resolve_names(arguments, options));
  TUTTI_TRY(resolve_numbers(arguments, options));
  options.threads = arguments.threads;
  options.json_path = arguments.json_path;
  options.csv_path = arguments.csv_path;
  return options;
}

Status check_ranks(const PerfOptions& options, std::int32_t ranks) {
  const auto not_a_rank = [ranks](std::string_view option, std::int32_t rank) {
    return wrong_option(option, not_a_number(std::to_string(rank), 0, ranks - 1));
  };
  if (options.root < 0 || options.root >= ranks) return not_a_rank("--root", options.root);
  if (options.nodes > ranks)
    return invalid(fmt::format("--nodes {}: {} ranks can be on at most {} machines", options.nodes, ranks, ranks));
  if (options.corrupt >= ranks) return not_a_rank("--corrupt", options.corrupt);
  if (options.algorithm == Algorithm::kAuto || is_exchange(options.collective)) return {};
  Collective collective;
  collective.kind = options.collective.kind;
  collective.ranks = static_cast<std::uint32_t>(ranks);
  const Result<Generator> generator = find_generator(collective, options.algorithm);
  if (!generator) return invalid("--algorithm: " + generator.error().message);
  return {};
}

std::vector<std::uint64_t> sweep_sizes(const PerfOptions& options) {
  std::vector<std::uint64_t> sizes;
  std::uint64_t bytes = options.min_bytes;
  while (bytes <= options.max_bytes && sizes.size() < kMaxSizes) {
    sizes.push_back(bytes);
    if (options.step_bytes > 0) {
      bytes += options.step_bytes;
      continue;
    }
    bytes = std::max<std::uint64_t>(1, bytes);
    if (bytes > options.max_bytes / options.step_factor) break;  // without the product, which may exceed 64 bits
    bytes *= options.step_factor;
  }
  return sizes;
}

std::vector<std::uint64_t> sweep_elements(const PerfOptions& options, DataType type, std::int32_t ranks) {
  std::vector<std::uint64_t> elements;
  for (const std::uint64_t bytes : sweep_sizes(options)) {
    const std::uint64_t message = message_elements(options.collective, ranks, bytes, size_of(type));
    if (elements.empty() || elements.back() != message) elements.push_back(message);
  }
  return elements;
}

}  // namespace tutti::tool

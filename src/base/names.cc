// Names, sizes and lists of the enumerations in tutti/types.h.
#include <array>

#include "base/collective_table.h"
#include "tutti/types.h"

namespace tutti {
namespace {

struct TypeFacts {
  DataType type;
  std::string_view name;
  // The name in NCCL's tests (nccl-tests), for example "half". It may be equal to `name`.
  std::string_view nccl_name;
  std::size_t bytes;
  bool floating;
};

constexpr std::array kTypes = {
    TypeFacts{DataType::kInt8, "int8", "char", 1, false},
    TypeFacts{DataType::kUint8, "uint8", "uint8", 1, false},
    TypeFacts{DataType::kInt32, "int32", "int", 4, false},
    TypeFacts{DataType::kUint32, "uint32", "uint32", 4, false},
    TypeFacts{DataType::kInt64, "int64", "int64", 8, false},
    TypeFacts{DataType::kUint64, "uint64", "uint64", 8, false},
    TypeFacts{DataType::kFloat16, "float16", "half", 2, true},
    TypeFacts{DataType::kFloat32, "float32", "float", 4, true},
    TypeFacts{DataType::kFloat64, "float64", "double", 8, true},
    TypeFacts{DataType::kBfloat16, "bfloat16", "bf16", 2, true},
    TypeFacts{DataType::kFloat8E4M3, "float8_e4m3", "f8e4m3", 1, true},
    TypeFacts{DataType::kFloat8E5M2, "float8_e5m2", "f8e5m2", 1, true},
};

// The names of ReduceOp and of Algorithm, in the order of the enumerations.
constexpr auto kOpNames = std::to_array<std::string_view>({"sum", "prod", "max", "min", "avg", "premulsum"});
constexpr auto kAlgorithmNames = std::to_array<std::string_view>({
    "auto",
    "ring",
    "double_tree",
    "one_shot",
    "two_shot",
    "halving_doubling",
    "circulant",
    "hierarchical",
    "hierarchical_tree",
    "binomial",
    "chain",
    "tree",
    "direct",
    "pairwise",
    "bruck",
    "recursive_doubling",
    "user",
});
static_assert(kAlgorithmNames.size() == static_cast<std::size_t>(Algorithm::kUser) + 1, "each algorithm has a name");

// An array of the n enumerators with the numbers first, first + 1, ..., first + n - 1.
template <class Enum, std::size_t n>
constexpr std::array<Enum, n> values_from(std::size_t first) {
  std::array<Enum, n> values{};
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<Enum>(first + i);
  return values;
}
constexpr auto kTypeList = values_from<DataType, kTypes.size()>(0);
constexpr auto kOpList = values_from<ReduceOp, kOpNames.size()>(0);
// All algorithms except kAuto, which is the first in kAlgorithmNames, and kUser, which is the last.
constexpr auto kAlgorithmList = values_from<Algorithm, kAlgorithmNames.size() - 2>(1);
// All collectives except kSendReceive.
constexpr auto kCollectiveList = [] {
  std::array<CollectiveKind, kCollectiveTable.size() - 1> kinds{};
  std::size_t count = 0;
  for (const CollectiveRow& row : kCollectiveTable) {
    if (has_plan(row.kind)) kinds[count++] = row.kind;
  }
  return kinds;
}();

template <class Enum, std::size_t n>
std::optional<Enum> find_name(const std::array<std::string_view, n>& names, std::string_view name) {
  for (std::size_t i = 0; i < n; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

template <class Enum, std::size_t n>
std::string_view name_at(const std::array<std::string_view, n>& names, Enum value) {
  const auto i = static_cast<std::size_t>(value);
  return i < n ? names[i] : "invalid";
}

}  // namespace

bool is_valid(DataType type) { return static_cast<std::size_t>(type) < kTypes.size(); }
bool is_valid(ReduceOp op) { return static_cast<std::size_t>(op) < kOpNames.size(); }
bool is_valid(Algorithm algorithm) { return static_cast<std::size_t>(algorithm) < kAlgorithmNames.size(); }
bool is_valid(CollectiveKind kind) { return static_cast<std::size_t>(kind) < kCollectiveTable.size(); }

std::size_t size_of(DataType type) { return is_valid(type) ? kTypes[static_cast<std::size_t>(type)].bytes : 0; }

bool is_floating(DataType type) { return is_valid(type) && kTypes[static_cast<std::size_t>(type)].floating; }

std::string_view to_string(DataType type) {
  return is_valid(type) ? kTypes[static_cast<std::size_t>(type)].name : "invalid";
}
std::string_view to_string(ReduceOp op) { return name_at(kOpNames, op); }
std::string_view to_string(Algorithm algorithm) { return name_at(kAlgorithmNames, algorithm); }
std::string_view to_string(CollectiveKind kind) { return is_valid(kind) ? row_of(kind).name : "invalid"; }

std::optional<DataType> parse_data_type(std::string_view name) {
  for (const TypeFacts& facts : kTypes) {
    if (facts.name == name || facts.nccl_name == name) return facts.type;
  }
  return std::nullopt;
}
std::optional<ReduceOp> parse_reduce_op(std::string_view name) { return find_name<ReduceOp>(kOpNames, name); }
std::optional<Algorithm> parse_algorithm(std::string_view name) { return find_name<Algorithm>(kAlgorithmNames, name); }
std::optional<CollectiveKind> parse_collective(std::string_view name) {
  for (const CollectiveRow& row : kCollectiveTable) {
    if (row.name == name) return row.kind;
  }
  return std::nullopt;
}

std::span<const DataType> all_data_types() { return kTypeList; }
std::span<const ReduceOp> all_reduce_ops() { return kOpList; }
std::span<const Algorithm> all_algorithms() { return kAlgorithmList; }
std::span<const CollectiveKind> all_collectives() { return kCollectiveList; }

}  // namespace tutti

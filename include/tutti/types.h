// The words of a collective call: element types, reductions, algorithms. Values; the numbers of DataType and ReduceOp
// are those of NCCL's enumerations, so that the C face needs no table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tutti/export.h"

namespace tutti {

enum class DataType : std::uint8_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,  // IEEE binary16; reduced in float32, rounded to nearest even once per step
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,  // reduced in float32, rounded to nearest even once per step
  // Reduced in float32, rounded to nearest even once per step; what is past the range, infinities included, becomes the
  // largest finite value of that sign. A NaN is stored as 0x7F.
  kFloat8E4M3 = 10,  // Open Compute Project's: largest 448, no infinities
  kFloat8E5M2 = 11,  // largest 57344; an infinity is read as one, and only ever copied
};

enum class ReduceOp : std::uint8_t {
  kSum = 0,        // integers wrap modulo 2^bits
  kProd = 1,       // integers wrap modulo 2^bits
  kMax = 2,        // a NaN operand gives NaN
  kMin = 3,        // a NaN operand gives NaN
  kAvg = 4,        // the sum divided by the number of ranks; integers: wrapped sum, then division towards zero
  kPreMulSum = 5,  // each rank's input times that rank's Scale, then summed
};

// The factor of kPreMulSum, which each rank gives for its own input. Floating types multiply by `real`, rounded to the
// type in which they are added (float64 for float64, else float32); integer types by `integer`, modulo 2^bits.
struct Scale {
  double real = 1.0;
  std::int64_t integer = 1;

  bool operator==(const Scale&) const = default;
};

// What the ranks do together. docs/collectives.md has buffers and meaning of each.
enum class CollectiveKind : std::uint8_t {
  kAllReduce = 0,
  kBroadcast = 1,
  kReduce = 2,
  kAllGather = 3,
  kReduceScatter = 4,
  kAllToAll = 5,
  kGather = 6,
  kScatter = 7,
  kBarrier = 8,
  kSendReceive = 9,  // point to point: has no plan of its own
};

// How a collective is carried out. kAuto leaves the choice to Tutti. Not every algorithm serves every collective.
enum class Algorithm : std::uint8_t {
  kAuto = 0,
  kRing,
  kDoubleTree,
  kOneShot,
  kTwoShot,
  kHalvingDoubling,    // recursive halving and doubling
  kCirculant,          // Traeff's circulant graphs; Bruck's order for all_gather
  kHierarchical,       // reduce_scatter inside a machine, all_reduce across, all_gather inside
  kHierarchicalTree,   // ring inside a machine, double binary tree across
  kBinomial,           // binomial tree
  kChain,              // pipelined chain
  kTree,               // pipelined binary tree
  kDirect,             // every pair of ranks that has something for each other talks
  kPairwise,           // the same in rounds, one peer at a time
  kBruck,              // log p rounds, data passed on
  kRecursiveDoubling,  // log p rounds of whole messages
  kUser,               // a plan of the caller's own
};

// The buffers of one rank that a plan's steps name.
enum class Space : std::uint8_t {
  kNone = 0,     // no buffer
  kInput = 1,    // the caller's input; only read
  kOutput = 2,   // the caller's output; in place, the same memory as all or some of the input
  kScratch = 3,  // the call's own, not kept from one tile to the next
};

// The order in which a plan adds the ranks' values of one chunk; a promise that the verifier holds a plan to.
enum class Order : std::uint8_t {
  kAny = 0,     // some order, the same on all ranks
  kByRank = 1,  // 0, 1, ..., p-1
  kCyclic = 2,  // f, f+1, ..., p-1, 0, ..., f-1, with an f that depends on the chunk only
};

TUTTI_API bool is_valid(DataType type);
TUTTI_API bool is_valid(ReduceOp op);
TUTTI_API bool is_valid(Algorithm algorithm);
TUTTI_API bool is_valid(CollectiveKind kind);

// Bytes of one element: 1, 2, 4 or 8; 0 for a value that is not one of ours.
TUTTI_API std::size_t size_of(DataType type);
TUTTI_API bool is_floating(DataType type);

// Names as they stand on command lines: "float32", "sum", "double_tree". "invalid" for a value that is not one of ours.
TUTTI_API std::string_view to_string(DataType type);
TUTTI_API std::string_view to_string(ReduceOp op);
TUTTI_API std::string_view to_string(Algorithm algorithm);
TUTTI_API std::string_view to_string(CollectiveKind kind);

// The inverse of to_string; nothing for an unknown name. Also takes the short type names of NCCL's tests
// ("float", "half", "f8e4m3").
TUTTI_API std::optional<DataType> parse_data_type(std::string_view name);
TUTTI_API std::optional<ReduceOp> parse_reduce_op(std::string_view name);
TUTTI_API std::optional<Algorithm> parse_algorithm(std::string_view name);
TUTTI_API std::optional<CollectiveKind> parse_collective(std::string_view name);

// Every value, in the order of the enumeration (all_algorithms() without kAuto and kUser, all_collectives() without
// kSendReceive).
TUTTI_API std::span<const DataType> all_data_types();
TUTTI_API std::span<const ReduceOp> all_reduce_ops();
TUTTI_API std::span<const Algorithm> all_algorithms();
TUTTI_API std::span<const CollectiveKind> all_collectives();

}  // namespace tutti

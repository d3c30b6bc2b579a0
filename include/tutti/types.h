// The types of the arguments of a collective call: element types, reductions and algorithms. All are values. The
// enumeration of the collectives is in collectives.h. DataType and ReduceOp (except kPreMulSum) have the numbers of
// NCCL's enumerations, so that the NCCL interface needs no conversion table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tutti/collectives.h"  // CollectiveKind and the table of collectives
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
  // The 8-bit types of the Open Compute Project (OCP). Reduced in float32, rounded to nearest even once per step. A
  // result that is out of range or infinite becomes the largest finite value with the same sign. A result that is NaN
  // is 0x7F. Values that are only copied keep their bits.
  kFloat8E4M3 = 10,  // largest value 448; has no infinities
  kFloat8E5M2 = 11,  // largest value 57344; infinities are read and copied, but are never the result of a reduction
};

enum class ReduceOp : std::uint8_t {
  kSum = 0,        // integers wrap modulo 2^bits
  kProd = 1,       // integers wrap modulo 2^bits
  kMax = 2,        // a NaN operand gives NaN
  kMin = 3,        // a NaN operand gives NaN
  kAvg = 4,        // the sum divided by the number of ranks; integers: wrapped sum, then division towards zero
  kPreMulSum = 5,  // each rank's input times that rank's Scale, then summed
};

// The factor of kPreMulSum. Each rank passes the factor for its own input. Floating-point types are multiplied by
// `real`, rounded to the type in which they are added (float64 for float64, otherwise float32). Integer types are
// multiplied by `integer`, modulo 2^bits.
struct Scale {
  double real = 1.0;
  std::int64_t integer = 1;

  bool operator==(const Scale&) const = default;
};

// The algorithm of a collective. With kAuto, Tutti selects one. Not every algorithm exists for every collective;
// docs/algorithms.md describes them.
enum class Algorithm : std::uint8_t {
  kAuto = 0,
  kRing,
  kDoubleTree,
  kOneShot,
  kTwoShot,
  kHalvingDoubling,  // recursive halving and doubling
  kCirculant,        // Traeff's circulant graphs; for all_gather, Bruck's algorithm with other distances
  // all_reduce: reduce_scatter in each machine, all_reduce between machines, all_gather in each machine. all_gather and
  // reduce_scatter: a ring between machines, and direct exchange in each machine at the same time; but a ring of all
  // ranks if there is only one machine, or if the numbers of ranks per machine differ, are 1, or are at least 1024.
  kHierarchical,
  // like kHierarchical, but with a double binary tree between machines, and if a machine has more than 16 ranks, with
  // rings inside the machines
  kHierarchicalTree,
  kBinomial,  // binomial tree
  kChain,     // pipelined chain
  kTree,      // pipelined binary tree
  kDirect,    // every message goes from its first sender directly to the rank that needs it; no rank forwards data
  kPairwise,  // like kDirect, but in rounds: in each round a rank exchanges data with one peer
  kBruck,     // log2(p) rounds (rounded up) for p ranks; ranks forward data of other ranks
  // log2(p) rounds (rounded down) for p ranks, and 1 or 2 more if p is not a power of two; a rank sends its whole
  // message in each round
  kRecursiveDoubling,
  kUser,  // a plan of the caller (Communicator::use_plan())
};

// The buffers of one rank that the steps of a plan read and write.
enum class Space : std::uint8_t {
  kNone = 0,     // no buffer
  kInput = 1,    // the caller's input; read only
  kOutput = 2,   // the caller's output; in an in-place call it shares memory with the input
  kScratch = 3,  // temporary memory of the call; its contents are lost after each tile
};

// The order in which a plan adds the ranks' values of one chunk. The verifier proves that a plan keeps it.
enum class Order : std::uint8_t {
  kAny = 0,     // any fixed order; the same on all ranks
  kByRank = 1,  // value of rank 0 + value of rank 1 + ... + value of rank p-1, for p ranks
  kCyclic = 2,  // the values of ranks f, f+1, ..., p-1, 0, ..., f-1, with an f that depends only on the chunk
};

// True if the value is an enumerator. Needed because a caller may cast any integer to the type.
TUTTI_API bool is_valid(DataType type);
TUTTI_API bool is_valid(ReduceOp op);
TUTTI_API bool is_valid(Algorithm algorithm);
TUTTI_API bool is_valid(CollectiveKind kind);

// Bytes of one element: 1, 2, 4 or 8; 0 for an invalid value.
TUTTI_API std::size_t size_of(DataType type);
TUTTI_API bool is_floating(DataType type);

// The names that command lines use, for example "float32", "sum", "double_tree"; "invalid" for an invalid value.
TUTTI_API std::string_view to_string(DataType type);
TUTTI_API std::string_view to_string(ReduceOp op);
TUTTI_API std::string_view to_string(Algorithm algorithm);
TUTTI_API std::string_view to_string(CollectiveKind kind);

// The inverse of to_string(). Return std::nullopt for an unknown name. parse_data_type() also accepts the short type
// names of NCCL's tests ("float", "half", "f8e4m3").
TUTTI_API std::optional<DataType> parse_data_type(std::string_view name);
TUTTI_API std::optional<ReduceOp> parse_reduce_op(std::string_view name);
TUTTI_API std::optional<Algorithm> parse_algorithm(std::string_view name);
TUTTI_API std::optional<CollectiveKind> parse_collective(std::string_view name);

// All values in the order of the enumeration, except that all_algorithms() omits kAuto and kUser, and
// all_collectives() omits kSendReceive.
TUTTI_API std::span<const DataType> all_data_types();
TUTTI_API std::span<const ReduceOp> all_reduce_ops();
TUTTI_API std::span<const Algorithm> all_algorithms();
TUTTI_API std::span<const CollectiveKind> all_collectives();

}  // namespace tutti

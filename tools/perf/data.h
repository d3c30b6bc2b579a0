// Inputs whose reduction is exact in every order, and what must come out, bit for bit.
//
// Integers take any value: they wrap modulo 2^bits, so order can't matter. Floating types take whole numbers that are
// so small that every partial sum or product of any subset of the ranks fits in the type's significand; the result then
// does not depend on the algorithm, and a single wrong, missing or doubled contribution shows. The expected values are
// computed here from the same whole numbers, without the library's kernels. Pure functions of (type, op, ranks, rank,
// index); any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tutti/types.h"

namespace tutti::tool {

// The nearest value of the type (ties to even) as its bits. `value` is finite.
std::uint16_t to_float16_bits(float value);
std::uint16_t to_bfloat16_bits(float value);
// `type` is one of the two of float8; what is past its largest finite value becomes that.
std::uint8_t to_float8_bits(DataType type, float value);

class DataPattern {
 public:
  DataPattern(DataType type, ReduceOp op, std::int32_t ranks);

  // The factor of `rank` for kPreMulSum; {1, 1} for every other operation.
  Scale scale(std::int32_t rank) const;

  // Writes elements [first, first + count) of the input of `rank`.
  void fill_input(std::int32_t rank, std::uint64_t first, std::uint64_t count, std::byte* input) const;

  // How many of the elements [first, first + count) of one rank's input, or of the reduction of all, are not what they
  // should be.
  std::uint64_t count_wrong_input(std::int32_t rank, std::uint64_t first, std::uint64_t count,
                                  const std::byte* input) const;
  std::uint64_t count_wrong_result(std::uint64_t first, std::uint64_t count, const std::byte* result) const;

  static constexpr std::size_t kBlock = 512;  // elements that are made at a time

 private:
  using Block = std::array<std::uint64_t, kBlock>;

  bool contributes(std::uint64_t index_hash, std::int32_t rank) const;
  void make_numbers(const Block& hashes, std::int32_t rank, Block& numbers) const;
  void hash_indices(std::uint64_t first, Block& hashes) const;
  void store_numbers(const Block& numbers, std::size_t count, std::byte* elements) const;
  void store_averages(Block& sums, std::size_t count, std::byte* elements) const;
  void store_inputs(std::int32_t rank, std::uint64_t first, std::size_t count, std::byte* input) const;
  void store_results(std::uint64_t first, std::size_t count, std::byte* result) const;
  std::uint64_t count_differences(const std::byte* left, const std::byte* right, std::size_t count) const;

  DataType type_;
  ReduceOp op_;
  std::int32_t ranks_;
  std::size_t element_bytes_;
  bool floating_;
  int value_bits_;                          // floating types: inputs span about 2^value_bits whole numbers
  std::int32_t contributors_;               // at one index at most so many ranks bring more than the neutral element
  std::vector<std::uint64_t> multipliers_;  // by rank: what makes one rank's values differ from another's
};

}  // namespace tutti::tool

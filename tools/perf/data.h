// DataPattern: inputs whose reduction has the same bits in any order, and the expected results, bit for bit.
//
// Integer types have arbitrary values (odd ones for products): sums and products wrap modulo 2^bits, so the order
// cannot matter. Floating-point types contain integers that are so small that the result of the operation over any
// subset of the ranks is exact in the type (of an average: the sum, which is then divided once). The result then does
// not depend on the algorithm, and a wrong, missing or doubled contribution is found if it changes any element of the
// exact result.
// The expected values are computed from the same integers, without the kernels of the library. All functions are pure
// functions of (type, op, ranks, rank, index) and may be called from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tutti/types.h"

namespace tutti::tool {

// The bits of the nearest value of the type (ties to even). `value` must be finite.
std::uint16_t to_float16_bits(float value);
std::uint16_t to_bfloat16_bits(float value);
// `type` must be one of the two float8 types. A value beyond the largest finite value of the type becomes that value,
// with the same sign.
std::uint8_t to_float8_bits(DataType type, float value);

class DataPattern {
 public:
  DataPattern(DataType type, ReduceOp op, std::int32_t ranks);

  // The factor of `rank` for kPreMulSum, and {1, 1} for every other operation.
  Scale scale(std::int32_t rank) const;

  // Writes the elements [first, first + count) of the input of `rank` to the start of `input`.
  void fill_input(std::int32_t rank, std::uint64_t first, std::uint64_t count, std::byte* input) const;

  // Return how many of the `count` elements at `input` or `result` are wrong. They should be the elements from index
  // `first` on of the input of `rank`, or of the reduction of all ranks' inputs.
  std::uint64_t count_wrong_input(std::int32_t rank, std::uint64_t first, std::uint64_t count,
                                  const std::byte* input) const;
  std::uint64_t count_wrong_result(std::uint64_t first, std::uint64_t count, const std::byte* result) const;

  static constexpr std::size_t kBlock = 512;  // elements that are generated at a time

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
  int value_bits_;  // floating-point types: 2^value_bits_ possible values, for kProd twice as many
  // At each index, at most this many ranks have an input that is not the neutral element of the operation.
  std::int32_t contributors_;
  std::vector<std::uint64_t> multipliers_;  // indexed by rank; makes the inputs of ranks different
};

}  // namespace tutti::tool

// The conformance suite: what every collective must give, over every way in which ranks can be connected. One suite;
// the worlds differ only in how the ranks' communicators come about. Ranks are threads of this process.
//
// Inputs are small whole numbers, so every sum and product here is exact in every type and order; what is expected is
// computed from the collective's definition alone, with no word of the library's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "communicator/support.h"
#include "tutti/tutti.h"

namespace tutti::test {

// ---- elements of any type as exact numbers ----

// `value` must be a whole number that the type holds exactly.
void put(std::byte* at, DataType type, std::int64_t value);
// For avg of integers etc. the value is a double that the type holds exactly; integers come back as they are.
double get(const std::byte* at, DataType type);

// A buffer of `count` elements of any type, with a guard behind it that must stay as it was.
class Elements {
 public:
  Elements(std::size_t count, DataType type);
  ~Elements();
  std::byte* data() { return bytes_.data(); }
  std::byte* at(std::size_t i) { return bytes_.data() + i * size_of(type_); }
  void set(std::size_t i, std::int64_t value) { put(at(i), type_, value); }
  double operator[](std::size_t i) const { return get(bytes_.data() + i * size_of(type_), type_); }
  std::size_t count() const { return count_; }

 private:
  std::size_t count_;
  DataType type_;
  std::vector<std::byte> bytes_;
};

// Floats of 8 bits hold the whole numbers up to 8 only.
inline bool is_float8(DataType type) { return is_floating(type) && size_of(type) == 1; }

// The i-th element that rank `rank` gives: 0 .. 5; of float8, for which sums of six ranks are to stay exact, 0 .. 1 and
// from every fourth rank nothing; for products 1 .. 2.
inline std::int64_t given(std::int32_t rank, std::size_t i, DataType type = DataType::kFloat32,
                          ReduceOp op = ReduceOp::kSum) {
  const auto x = (i * 7 + static_cast<std::size_t>(rank) * 5 + i / 97) % 6;
  if (op == ReduceOp::kProd)
    return static_cast<std::int64_t>(1 + (x + static_cast<std::size_t>(rank)) % 2 * (i % 3 == 0));
  if (is_float8(type)) return rank % 4 == 3 ? 0 : static_cast<std::int64_t>(x % 2);
  return static_cast<std::int64_t>(x);
}

// Op over all ranks' i-th elements. Integers: average truncates.
double reduced(std::int32_t ranks, std::size_t i, DataType type, ReduceOp op);
// The factor of rank `rank` in a kPreMulSum.
inline std::int64_t factor_of(std::int32_t rank) { return 1 + rank % 2; }

// One call and its check, by one rank; all ranks make it alike.
struct Case {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::size_t count = 1;  // of one block
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t root = 0;
  bool in_place = false;
  bool registered = false;  // buffers from Communicator::allocate()
  Algorithm algorithm = Algorithm::kAuto;
};
std::string to_string(const Case& each);
void run_case(Communicator& rank, const Case& each);

// What run_case() is made of, for ranks whose buffers are not the host's.

// Blocks of input and output that a rank has, and in which the two meet in place.
struct CaseShape {
  std::size_t in = 1;
  std::size_t out = 1;
  std::size_t in_offset = 0;  // of input in the shared buffer, in blocks
  std::size_t out_offset = 0;
};
CaseShape shape_of(const Case& each, std::int32_t rank, std::int32_t ranks);
// What element i of block `block` of rank `rank`'s output must be.
double expected(const Case& each, std::int32_t rank, std::int32_t ranks, std::size_t block, std::size_t i);
// A test failure for the first element of `blocks` blocks of a rank's output that is not what the collective gives.
void check_output(const Communicator& rank, const Case& each, const std::byte* output, std::size_t blocks);

}  // namespace tutti::test

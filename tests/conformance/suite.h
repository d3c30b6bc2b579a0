// The conformance suite: the required results of every collective, over every type of connection between ranks. The
// same suite runs in all configurations, which differ only in how the communicators are created. Ranks are threads
// of this process.
//
// The inputs are small whole numbers, so that every sum and product is exact in every type and order. The expected
// results are computed from the definition of the collective alone, its row in tutti/collectives.h.
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

// Stores a value. It must be a whole number that the type can represent exactly.
void put(std::byte* at, DataType type, std::int64_t value);
// Returns a value. The average of integers, for example, is a double that the type can represent exactly.
double get(const std::byte* at, DataType type);

// A buffer of `count` elements of any type, followed by guard bytes that must not change.
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

// 8-bit floating-point types represent all whole numbers only up to 8.
inline bool is_float8(DataType type) { return is_floating(type) && size_of(type) == 1; }

// The i-th input element of rank `rank`. Values are 0 to 5, but 1 or 2 for products. For 8-bit floating-point types
// they are 0 or 1, and 0 on every fourth rank, so that sums of six ranks are exact.
inline std::int64_t given(std::int32_t rank, std::size_t i, DataType type = DataType::kFloat32,
                          ReduceOp op = ReduceOp::kSum) {
  const auto x = (i * 7 + static_cast<std::size_t>(rank) * 5 + i / 97) % 6;
  if (op == ReduceOp::kProd)
    return static_cast<std::int64_t>(1 + (x + static_cast<std::size_t>(rank)) % 2 * (i % 3 == 0));
  if (is_float8(type)) return rank % 4 == 3 ? 0 : static_cast<std::int64_t>(x % 2);
  return static_cast<std::int64_t>(x);
}

// Applies the operation to the i-th elements of all ranks. For integers, the average is truncated.
double reduced(std::int32_t ranks, std::size_t i, DataType type, ReduceOp op);
// The factor of rank `rank` for kPreMulSum.
inline std::int64_t factor_of(std::int32_t rank) { return 1 + rank % 2; }

// One call and its check, as executed by one rank. All ranks execute the same cases.
struct Case {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::size_t count = 1;  // number of elements of one block
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t root = 0;
  bool in_place = false;
  bool registered = false;  // buffers from Communicator::allocate()
  Algorithm algorithm = Algorithm::kAuto;
};
std::string to_string(const Case& each);
void run_case(Communicator& rank, const Case& each);

// The parts of run_case(), for ranks whose buffers are not in host memory.

// The numbers of input and output blocks of a rank, and the offsets at which both overlap in place.
struct CaseShape {
  std::size_t in = 1;
  std::size_t out = 1;
  std::size_t in_offset = 0;  // offset of the input in the shared buffer, in blocks
  std::size_t out_offset = 0;
};
CaseShape shape_of(const Case& each, std::int32_t rank, std::int32_t ranks);
// The expected element i of block `block` of rank `rank`'s output.
double expected(const Case& each, std::int32_t rank, std::int32_t ranks, std::size_t block, std::size_t i);
// Adds a test failure for the first wrong element of the `blocks` blocks of a rank's output.
void check_output(const Communicator& rank, const Case& each, const std::byte* output, std::size_t blocks);

}  // namespace tutti::test

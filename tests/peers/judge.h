// Shared code of the comparisons with Open MPI: the inputs, which every rank can compute for all ranks, and the
// check of the results. One process is one rank of both libraries, with the same number. All ranks make all calls in
// the same order.
#pragma once

#include <mpi.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "algorithms/algorithms.h"
#include "tutti/tutti.h"

namespace tutti::test {

// An element type that both libraries have, with its two names.
struct TypePair {
  DataType ours;
  MPI_Datatype theirs;
};
template <class T>
TypePair type_pair() {
  if constexpr (std::is_same_v<T, std::int8_t>) return {DataType::kInt8, MPI_INT8_T};
  if constexpr (std::is_same_v<T, std::uint8_t>) return {DataType::kUint8, MPI_UINT8_T};
  if constexpr (std::is_same_v<T, std::int32_t>) return {DataType::kInt32, MPI_INT32_T};
  if constexpr (std::is_same_v<T, std::uint32_t>) return {DataType::kUint32, MPI_UINT32_T};
  if constexpr (std::is_same_v<T, std::int64_t>) return {DataType::kInt64, MPI_INT64_T};
  if constexpr (std::is_same_v<T, std::uint64_t>) return {DataType::kUint64, MPI_UINT64_T};
  if constexpr (std::is_same_v<T, float>) return {DataType::kFloat32, MPI_FLOAT};
  if constexpr (std::is_same_v<T, double>) return {DataType::kFloat64, MPI_DOUBLE};
}

// Returns random input: any bits for integers (sums and products wrap), and normally distributed floating-point
// numbers. It depends only on (rank, count, seed).
template <class T>
std::vector<T> random_input(std::int32_t rank, std::size_t count, std::uint32_t seed) {
  std::mt19937_64 random(seed * 65'537 + static_cast<std::uint64_t>(rank));
  std::vector<T> input(count);
  if constexpr (std::is_integral_v<T>) {
    for (T& x : input) x = static_cast<T>(random());
  } else {
    std::normal_distribution<T> normal;
    for (T& x : input) x = normal(random);
  }
  return input;
}

class Judge {
 public:
  explicit Judge(Communicator& communicator) : communicator_(communicator) {}

  Communicator& tutti() { return communicator_; }
  std::int32_t rank() const { return communicator_.rank(); }
  std::int32_t ranks() const { return communicator_.size(); }

  // Checks one result. `what` describes it in the error message.
  void expect(bool good, const std::string& what);
  void expect_ok(const Status& status, const std::string& what);
  void expect_mpi(int status, const std::string& what) { expect(status == MPI_SUCCESS, what + ": MPI refuses"); }
  template <class T>
  void expect_same_bits(const std::vector<T>& ours, const std::vector<T>& theirs, const std::string& what) {
    expect(ours.size() == theirs.size() && std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(T)) == 0,
           what + ": the results differ");
  }

  std::int64_t compared() const { return compared_; }
  std::int64_t failures() const { return failures_; }

 private:
  Communicator& communicator_;
  std::int64_t compared_ = 0;
  std::int64_t failures_ = 0;
};

void judge_reductions(Judge& judge);        // for every type and operation that both libraries have
void judge_user_reductions(Judge& judge);   // for operations that do not commute
void judge_movements(Judge& judge);         // collectives that only move data
void judge_uneven_movements(Judge& judge);  // their v-variants, and point-to-point transfers

}  // namespace tutti::test

// Compares sums, products, maxima, minima and user-defined reductions with those of Open MPI.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "judge.h"

namespace tutti::test {
namespace {

constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin};

MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProd: return MPI_PROD;
    case ReduceOp::kMax: return MPI_MAX;
    case ReduceOp::kMin: return MPI_MIN;
    default: return MPI_SUM;
  }
}

// The exact result, and the maximum error of any order of additions or multiplications: p - 1 roundings, relative to
// the sum of absolute values or to the product (Rump, Buenger, Jeannerod 2016; there are no higher-order terms).
template <class T>
struct Bounded {
  long double exact = 0;
  long double bound = 0;
};

template <class T>
Bounded<T> bounded(const std::vector<std::vector<T>>& inputs, std::size_t i, ReduceOp op) {
  const long double unit = std::is_same_v<T, float> ? 0x1p-24L : 0x1p-53L;
  long double sum = 0, size = 0, product = 1;
  for (const std::vector<T>& input : inputs) {
    sum += input[i];
    size += std::abs(static_cast<long double>(input[i]));
    product *= input[i];
  }
  const long double roundings = unit * static_cast<long double>(inputs.size() - 1);
  if (op == ReduceOp::kSum) return {sum, roundings * size};
  return {product, roundings * std::abs(product)};
}

// Compares both results of the elements from `first` on. For integers, maxima and minima, the bits must be equal.
template <class T>
bool agree(const std::vector<T>& ours, const std::vector<T>& theirs, const std::vector<std::vector<T>>& inputs,
           std::size_t first, ReduceOp op) {
  const bool rounds = std::is_floating_point_v<T> && (op == ReduceOp::kSum || op == ReduceOp::kProd);
  if (!rounds) return std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(T)) == 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const Bounded<T> right = bounded(inputs, first + i, op);
    // Long double has 11 bits more than double, so its own rounding error is at most 1/1024 of the bound.
    const long double allowed = right.bound * (1 + 0x1p-8L);
    if (std::abs(ours[i] - right.exact) > allowed || std::abs(theirs[i] - right.exact) > allowed) return false;
  }
  return true;
}

template <class T>
class Reductions {
 public:
  Reductions(Judge& judge, ReduceOp op, std::size_t count) : judge_(judge), op_(op), count_(count) {
    const std::size_t all = count * static_cast<std::size_t>(judge.ranks());
    for (std::int32_t r = 0; r < judge.ranks(); ++r) {
      inputs_.push_back(random_input<T>(r, all, static_cast<std::uint32_t>(count)));
      if constexpr (std::is_integral_v<T>) {
        // odd numbers, because otherwise most products would be 0
        for (T& x : inputs_.back()) x |= T{op == ReduceOp::kProd};
      }
    }
    mine_ = inputs_[static_cast<std::size_t>(judge.rank())];
  }

  void all_reduce() {
    std::vector<T> theirs(count_);
    judge_.expect_mpi(
        MPI_Allreduce(mine_.data(), theirs.data(), length(), type_pair<T>().theirs, mpi_op(op_), MPI_COMM_WORLD),
        name("MPI_Allreduce"));
    for (const Algorithm algorithm : algorithms_with_auto(CollectiveKind::kAllReduce)) {
      std::vector<T> ours(count_), in_place(mine_.begin(), mine_.begin() + static_cast<std::ptrdiff_t>(count_));
      CallOptions options;
      options.algorithm = algorithm;
      const std::string what = name("all_reduce", algorithm);
      auto& tutti = judge_.tutti();
      judge_.expect_ok(tutti.all_reduce(mine_.data(), ours.data(), count_, type_pair<T>().ours, op_, options), what);
      judge_.expect_ok(tutti.all_reduce(in_place.data(), in_place.data(), count_, type_pair<T>().ours, op_, options),
                       what);
      judge_.expect(agree(ours, theirs, inputs_, 0, op_), what + ": the results differ");
      judge_.expect_same_bits(ours, in_place, what + ", in place");
    }
  }

  void reduce() {
    for (std::int32_t root = 0; root < judge_.ranks(); ++root) {
      std::vector<T> theirs(count_);
      judge_.expect_mpi(
          MPI_Reduce(mine_.data(), theirs.data(), length(), type_pair<T>().theirs, mpi_op(op_), root, MPI_COMM_WORLD),
          name("MPI_Reduce"));
      for (const Algorithm algorithm : algorithms_with_auto(CollectiveKind::kReduce)) {
        std::vector<T> ours(count_);
        CallOptions options;
        options.algorithm = algorithm;
        const std::string what = name("reduce", algorithm);
        judge_.expect_ok(
            judge_.tutti().reduce(mine_.data(), ours.data(), count_, type_pair<T>().ours, op_, root, options), what);
        if (judge_.rank() == root) judge_.expect(agree(ours, theirs, inputs_, 0, op_), what + ": the results differ");
      }
    }
  }

  void reduce_scatter() {
    std::vector<T> theirs(count_);
    judge_.expect_mpi(MPI_Reduce_scatter_block(mine_.data(), theirs.data(), length(), type_pair<T>().theirs,
                                               mpi_op(op_), MPI_COMM_WORLD),
                      name("MPI_Reduce_scatter_block"));
    for (const Algorithm algorithm : algorithms_with_auto(CollectiveKind::kReduceScatter)) {
      std::vector<T> ours(count_);
      CallOptions options;
      options.algorithm = algorithm;
      const std::string what = name("reduce_scatter", algorithm);
      judge_.expect_ok(
          judge_.tutti().reduce_scatter(mine_.data(), ours.data(), count_, type_pair<T>().ours, op_, options), what);
      const std::size_t first = static_cast<std::size_t>(judge_.rank()) * count_;
      judge_.expect(agree(ours, theirs, inputs_, first, op_), what + ": the results differ");
    }
  }

  // Block r has r / p of the length that equal blocks would have, so the first one is empty.
  void reduce_scatter_v() {
    std::vector<std::size_t> counts;
    std::vector<int> mpi_counts;
    for (std::size_t r = 0; r < inputs_.size(); ++r) counts.push_back(count_ * r / inputs_.size());
    for (const std::size_t count : counts) mpi_counts.push_back(static_cast<int>(count));
    const auto me = static_cast<std::size_t>(judge_.rank());
    const std::size_t first = std::accumulate(counts.begin(), counts.begin() + judge_.rank(), std::size_t{0});
    std::vector<T> theirs(counts[me]);
    judge_.expect_mpi(MPI_Reduce_scatter(mine_.data(), theirs.data(), mpi_counts.data(), type_pair<T>().theirs,
                                         mpi_op(op_), MPI_COMM_WORLD),
                      name("MPI_Reduce_scatter"));
    for (const Algorithm algorithm : algorithms_with_auto(CollectiveKind::kReduceScatter)) {
      std::vector<T> ours(counts[me]);
      CallOptions options;
      options.algorithm = algorithm;
      const std::string what = name("reduce_scatter_v", algorithm);
      judge_.expect_ok(judge_.tutti().reduce_scatter_v(mine_.data(), ours.data(), {.counts = counts},
                                                       type_pair<T>().ours, op_, options),
                       what);
      judge_.expect(agree(ours, theirs, inputs_, first, op_), what + ": the results differ");
    }
  }

 private:
  static std::vector<Algorithm> algorithms_with_auto(CollectiveKind kind) {
    std::vector<Algorithm> algorithms = algorithms_of(kind);
    algorithms.push_back(Algorithm::kAuto);
    return algorithms;
  }
  int length() const { return static_cast<int>(count_); }
  std::string name(const char* call, Algorithm algorithm = Algorithm::kAuto) const {
    return fmt::format("{} of {} {}, {}, {}", call, count_, to_string(type_pair<T>().ours), to_string(op_),
                       to_string(algorithm));
  }

  Judge& judge_;
  ReduceOp op_;
  std::size_t count_;
  std::vector<std::vector<T>> inputs_;  // indexed by rank
  std::vector<T> mine_;
};

template <class T>
void judge_type(Judge& judge) {
  for (const ReduceOp op : kOps) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{1003}, std::size_t{40'009}}) {
      Reductions<T> reductions(judge, op, count);
      reductions.all_reduce();
      reductions.reduce();
      reductions.reduce_scatter();
      reductions.reduce_scatter_v();
    }
  }
}

// Affine maps x -> a x + b modulo 2^32. Their composition is associative but not commutative.
struct Map {
  std::uint32_t a, b;
  bool operator==(const Map&) const = default;
};
Map after(const Map& f, const Map& g) { return {f.a * g.a, f.b * g.a + g.b}; }  // g after f

void combine(const void* left, const void* right, void* result, std::size_t count, void* /*context*/) {
  const auto* f = static_cast<const Map*>(left);
  const auto* g = static_cast<const Map*>(right);
  for (std::size_t i = 0; i < count; ++i) static_cast<Map*>(result)[i] = after(f[i], g[i]);
}

void mpi_combine(void* left, void* right, int* count, MPI_Datatype* /*type*/) {
  combine(left, right, right, static_cast<std::size_t>(*count), nullptr);
}

}  // namespace

void judge_reductions(Judge& judge) {
  judge_type<std::int8_t>(judge);
  judge_type<std::uint8_t>(judge);
  judge_type<std::int32_t>(judge);
  judge_type<std::uint32_t>(judge);
  judge_type<std::int64_t>(judge);
  judge_type<std::uint64_t>(judge);
  judge_type<float>(judge);
  judge_type<double>(judge);
}

void judge_user_reductions(Judge& judge) {
  MPI_Op op = MPI_OP_NULL;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Op_create(mpi_combine, 0, &op);
  MPI_Type_contiguous(2, MPI_UINT32_T, &type);
  MPI_Type_commit(&type);
  CallOptions options;
  options.reduction = {.combine = combine, .element_bytes = sizeof(Map), .commutative = false};
  for (const std::size_t count : {std::size_t{1}, std::size_t{30'011}}) {
    const auto numbers = random_input<std::uint32_t>(judge.rank(), 2 * count, 5);
    std::vector<Map> input(count), ours(count), theirs(count);
    std::memcpy(input.data(), numbers.data(), count * sizeof(Map));
    const int length = static_cast<int>(count);
    MPI_Allreduce(input.data(), theirs.data(), length, type, op, MPI_COMM_WORLD);
    auto status = judge.tutti().all_reduce(input.data(), ours.data(), count, DataType::kUint8, ReduceOp::kSum, options);
    judge.expect_ok(status, "all_reduce by a function");
    judge.expect_same_bits(ours, theirs, "all_reduce by a function");
    for (std::int32_t root = 0; root < judge.ranks(); ++root) {
      MPI_Reduce(input.data(), theirs.data(), length, type, op, root, MPI_COMM_WORLD);
      status = judge.tutti().reduce(input.data(), ours.data(), count, DataType::kUint8, ReduceOp::kSum, root, options);
      judge.expect_ok(status, "reduce by a function");
      if (judge.rank() == root) judge.expect_same_bits(ours, theirs, "reduce by a function");
    }
  }
  MPI_Type_free(&type);
  MPI_Op_free(&op);
}

}  // namespace tutti::test

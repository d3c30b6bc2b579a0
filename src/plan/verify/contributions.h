// The value domain of the verifier: a value of a plan is represented by the set of the ranks that contributed to
// it. Internal to this folder.
//
// Most values of a sensible plan are sums over consecutive ranks, in rank order, perhaps wrapping around from the
// last rank to the first. Such a *run* is stored as two numbers. Any other set of ranks is stored as a list of
// intervals in a pool. The order of its additions is then recorded only in the hash of the expression. Equal sets
// are stored once, and the results of recent unions are cached, because a plan of thousands of ranks and millions
// of sums has far fewer different sets. The size of the pool is limited only by the number of different sets.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace tutti {

struct Value {
  std::uint64_t expression = 0;  // hash of the exact additions: operands, order and grouping
  std::uint32_t chunk = 0;
  // The tile and call that the value belongs to. 0: the memory was never written.
  std::uint32_t generation = 0;
  std::uint32_t first = 0;  // a run: the ranks first, first + 1, ..., modulo the number of ranks
  std::uint32_t count = 0;  // number of ranks that contributed
  std::uint32_t set = 0;    // 0: a run; otherwise 1 + index into the pool
  bool complete = false;    // a step has marked the value as the sum over all ranks
};
static_assert(sizeof(Value) == 32);

class Contributions {
 public:
  explicit Contributions(std::uint32_t ranks) : ranks_(ranks) {}

  Value input(std::uint32_t rank, std::uint32_t chunk, std::uint32_t generation) const;

  // Appends `right` to `sum`, but leaves sum.expression unchanged. Returns an empty string if the sum is valid,
  // and otherwise an error message.
  std::string add(Value& sum, const Value& right);

  // True if the ranks in the value were added in the order first, first + 1, ..., modulo the number of ranks. A value
  // of one rank is in every order, so the result is then true for any `first`.
  bool in_order_from(const Value& value, std::uint32_t first) const {
    return value.set == 0 && (value.count == 1 || value.first == first);
  }

  static std::uint64_t leaf_expression(std::uint32_t rank);
  static std::uint64_t mix(std::uint64_t hash, std::uint64_t operand);

 private:
  struct Interval {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;

    bool operator==(const Interval&) const = default;
  };
  struct Set {
    std::size_t first = 0;  // index into intervals_; the intervals are ascending, with gaps between them
    std::size_t count = 0;
  };
  std::uint32_t distance(std::uint32_t from, std::uint32_t to) const {
    return to >= from ? to - from : to + ranks_ - from;
  }
  // A cached result: the union of two sets of ranks.
  struct Union {
    std::uint64_t left = 0;  // the two sets, see key_of(); 0: this entry is empty
    std::uint64_t right = 0;
    std::uint32_t shared = 0;  // a rank that is in both sets, or kNoRank
    std::uint32_t set = 0;     // the union, if no rank is in both sets
  };
  static std::uint64_t key_of(const Value& value);
  std::uint32_t shared_by_runs(const Value& a, const Value& b) const;
  const Union& unite(const Value& a, const Value& b);
  std::uint32_t intern();
  void list(const Value& value, std::vector<Interval>& intervals) const;
  std::uint32_t merge();
  std::span<const Interval> intervals_of(const Set& set) const {
    return std::span(intervals_).subspan(set.first, set.count);
  }

  std::uint32_t ranks_;
  std::vector<Interval> intervals_;
  std::vector<Set> sets_;
  // The operands and the result of merge().
  std::vector<Interval> left_;
  std::vector<Interval> right_;
  std::vector<Interval> merged_;
  std::unordered_map<std::uint64_t, std::uint32_t> set_of_hash_;
  // A cache, indexed by the hash of both keys. A new entry replaces the old one at the same index.
  std::vector<Union> unions_;
};

}  // namespace tutti

// The values of the verifier: instead of numbers, a value of a plan is represented by the set of the ranks whose
// contributions it contains (see datum in plan/collective.h). Internal to this folder.
//
// Most values of a sensible plan are sums over consecutive ranks, in rank order, perhaps wrapping around from the last
// rank to the first. Such a sum is called an *arc* (of the circle of ranks), and is stored as two numbers, the first
// rank and the number of ranks. For any other sum, the set of ranks is stored in a pool as a list of intervals. The
// order of the additions of such a sum is recorded only in Value::expression. Equal sets are stored once (except after
// a collision of hashes), and the results of recent unions are cached, because a plan of thousands of ranks and
// millions of sums has far fewer different sets. The pool has no fixed limit: it grows with the number of different
// sets.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace tutti {

struct Value {
  std::uint64_t expression = 0;  // hash of the additions that made the value: operands, order and grouping
  std::uint32_t chunk = 0;
  // A number for the tile and the call to which the value belongs; different for every tile of every call. 0: the
  // memory was never written.
  std::uint32_t generation = 0;
  // If the value is an arc, it contains `count` ranks: first, first + 1, ..., modulo the number of ranks.
  std::uint32_t first = 0;
  std::uint32_t count = 0;  // number of ranks whose contributions the value contains
  std::uint32_t set = 0;    // 0: the value is an arc; otherwise 1 + index of its set of ranks in the pool
  // True if the value is the sum over all ranks, and the step that completed the sum was marked (Step::completes).
  bool complete = false;
};
static_assert(sizeof(Value) == 32);

class Contributions {
 public:
  explicit Contributions(std::uint32_t ranks) : ranks_(ranks) {}

  Value input(std::uint32_t rank, std::uint32_t chunk, std::uint32_t generation) const;

  // Adds `right` to `sum` as its last operand. Leaves sum.expression unchanged: the caller sets it after all
  // operands of a step were added. Returns an empty string if the two values may be added. Otherwise (different
  // data or tiles, or a rank that is in both values) returns an error message.
  std::string add(Value& sum, const Value& right);

  // True if the contributions in the value were added in the order of the ranks first, first + 1, ..., modulo the
  // number of ranks. The value of a single rank has no additions, so the result is then true for any `first`.
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
    // index into intervals_ of the set's first interval; its intervals are ascending, with gaps between them
    std::size_t first = 0;
    std::size_t count = 0;
  };
  std::uint32_t distance(std::uint32_t from, std::uint32_t to) const {
    return to >= from ? to - from : to + ranks_ - from;
  }
  // An entry of the cache: the union of two sets of ranks.
  struct Union {
    std::uint64_t left = 0;  // left and right: key_of() of the two values that were united; 0: this entry is empty
    std::uint64_t right = 0;
    std::uint32_t shared = 0;  // a rank that is in both sets, so the two values must not be added; kNoRank: none
    std::uint32_t set = 0;     // if no rank is in both sets: the number of their union (as Value::set); otherwise 0
  };
  static std::uint64_t key_of(const Value& value);
  std::uint32_t shared_by_arcs(const Value& a, const Value& b) const;
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
  // The operands (left_, right_) and the result (merged_) of merge(). Members, so that their memory is reused.
  std::vector<Interval> left_;
  std::vector<Interval> right_;
  std::vector<Interval> merged_;
  std::unordered_map<std::uint64_t, std::uint32_t> set_of_hash_;
  // The cache of unions, indexed by a hash of the keys of both values. A new entry replaces the old one at the
  // same index.
  std::vector<Union> unions_;
};

}  // namespace tutti

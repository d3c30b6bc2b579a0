// The value domain of the verifier: what a value of a plan is a sum of. Internal to this folder.
//
// Most values that a sensible plan makes are sums over ranks that stand side by side, in rank order, perhaps wrapping
// round from the last rank to the first. Such a run is two numbers. Any other set of ranks is a row of intervals in a
// pool, and its order is then known only through the hash of the expression. Equal sets are kept once, and unions that
// were made lately are remembered: plans of thousands of ranks and millions of sums have far fewer sets. The pool's
// bound is the number of different sets.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace tutti {

struct Value {
  std::uint64_t expression = 0;  // hash of the exact additions: operands, order, grouping
  std::uint32_t chunk = 0;
  std::uint32_t generation = 0;  // which tile of which call it belongs to; 0: nothing was ever written
  std::uint32_t first = 0;       // a run: first, first + 1, ..., modulo the ranks
  std::uint32_t count = 0;       // how many ranks contributed
  std::uint32_t set = 0;         // 0: a run; else 1 + index into the pool
  bool complete = false;         // a step marked it as holding every rank's contribution
};
static_assert(sizeof(Value) == 32);

class Contributions {
 public:
  explicit Contributions(std::uint32_t ranks) : ranks_(ranks) {}

  Value input(std::uint32_t rank, std::uint32_t chunk, std::uint32_t generation) const;

  // Adds `right` behind `sum`, whose expression is left as it was. Empty when that is a proper sum, else what is wrong
  // with it.
  std::string add(Value& sum, const Value& right);

  // True when the ranks were added in the order first, first + 1, ... modulo the ranks.
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
    std::size_t first = 0;  // into intervals_, ascending, none touching the next one
    std::size_t count = 0;
  };
  std::uint32_t distance(std::uint32_t from, std::uint32_t to) const {
    return to >= from ? to - from : to + ranks_ - from;
  }
  // What adding two sets of ranks gives.
  struct Union {
    std::uint64_t left = 0;  // who was added, see key_of(); 0: nothing yet
    std::uint64_t right = 0;
    std::uint32_t shared = 0;  // a rank that both hold, or kNobody
    std::uint32_t set = 0;     // where none is shared
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
  std::vector<Interval> left_;  // what unite() works on
  std::vector<Interval> right_;
  std::vector<Interval> merged_;
  std::unordered_map<std::uint64_t, std::uint32_t> set_of_hash_;
  std::vector<Union> unions_;  // by the hash of both keys, a later one in the place of an earlier one
};

}  // namespace tutti

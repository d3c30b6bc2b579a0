// Adds values, which are arcs or sets of ranks. The sum of two arcs is again an arc if the second starts with the
// rank after the last rank of the first. All other sums are sets, which are looked up in the cache of unions
// first.
#include "plan/verify/contributions.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/mix_bits.h"

namespace tutti {
namespace {

constexpr std::uint32_t kNoRank = ~std::uint32_t{0};
// Number of entries of the cache of unions, per rank. Several are needed, because at any time of the run different
// ranks can be in different rounds of the plan, and so add different sets.
constexpr std::size_t kUnionsPerRank = 16;

}  // namespace

// Adds `operand` to a 64-bit hash. Two different expressions have the same hash with a probability of about 2^-64.
std::uint64_t Contributions::mix(std::uint64_t hash, std::uint64_t operand) {
  return mix_bits((hash + 0x9e3779b97f4a7c15u) * 0xd1342543de82ef95u ^ operand);
}

std::uint64_t Contributions::leaf_expression(std::uint32_t rank) { return mix(1, rank); }

Value Contributions::input(std::uint32_t rank, std::uint32_t chunk, std::uint32_t generation) const {
  return {.expression = leaf_expression(rank), .chunk = chunk, .generation = generation, .first = rank, .count = 1};
}

void Contributions::list(const Value& value, std::vector<Interval>& intervals) const {
  if (value.set != 0) {
    const std::span<const Interval> known = intervals_of(sets_[value.set - 1]);
    intervals.assign(known.begin(), known.end());
    return;
  }
  const std::uint32_t end = value.first + value.count;
  intervals.clear();
  if (end > ranks_) intervals.push_back({.begin = 0, .end = end - ranks_});
  intervals.push_back({.begin = value.first, .end = std::min(end, ranks_)});
}

// Stores the union of the sets left_ and right_ to merged_. If a rank is in both sets, stops and returns the first
// such rank. Otherwise returns kNoRank.
std::uint32_t Contributions::merge() {
  merged_.clear();
  std::size_t l = 0;
  std::size_t r = 0;
  while (l < left_.size() || r < right_.size()) {
    const bool from_left = r == right_.size() || (l < left_.size() && left_[l].begin < right_[r].begin);
    const Interval next = from_left ? left_[l++] : right_[r++];
    if (!merged_.empty() && next.begin < merged_.back().end) return next.begin;
    if (!merged_.empty() && next.begin == merged_.back().end) {
      merged_.back().end = next.end;
    } else {
      merged_.push_back(next);
    }
  }
  return kNoRank;
}

// `a` and `b` must be arcs. Returns a rank that is in both, or kNoRank.
std::uint32_t Contributions::shared_by_arcs(const Value& a, const Value& b) const {
  if (distance(a.first, b.first) < a.count) return b.first;
  if (distance(b.first, a.first) < b.count) return a.first;
  return kNoRank;
}

// Returns a number for the set of ranks of a value. Different sets in the pool and different arcs have different
// keys. A key is never 0, because an arc has at least one rank.
std::uint64_t Contributions::key_of(const Value& value) {
  if (value.set != 0) return (std::uint64_t{1} << 63) | value.set;
  return (std::uint64_t{value.first} << 32) | value.count;
}

// Returns the number of the set merged_ in the pool (as in Value::set). Adds it to the pool if it is not there
// yet.
std::uint32_t Contributions::intern() {
  std::uint64_t hash = 0;
  for (const Interval& each : merged_) hash = mix(hash, (std::uint64_t{each.begin} << 32) | each.end);
  const auto [entry, added] = set_of_hash_.try_emplace(hash, static_cast<std::uint32_t>(sets_.size() + 1));
  if (!added && std::ranges::equal(intervals_of(sets_[entry->second - 1]), merged_)) return entry->second;
  sets_.push_back({.first = intervals_.size(), .count = merged_.size()});
  intervals_.insert(intervals_.end(), merged_.begin(), merged_.end());
  // If another set in the pool has the same hash, set_of_hash_ refers to that one. Then this set is not found
  // again, and may be stored several times.
  return static_cast<std::uint32_t>(sets_.size());
}

const Contributions::Union& Contributions::unite(const Value& a, const Value& b) {
  if (unions_.empty()) unions_.resize(std::bit_ceil(std::size_t{ranks_} * kUnionsPerRank));
  const std::uint64_t left = key_of(a);
  const std::uint64_t right = key_of(b);
  Union& known = unions_[mix(left, right) & (unions_.size() - 1)];
  if (known.left == left && known.right == right) return known;
  list(a, left_);
  list(b, right_);
  const std::uint32_t shared = merge();
  known = {.left = left, .right = right, .shared = shared, .set = shared == kNoRank ? intern() : 0};
  return known;
}

std::string Contributions::add(Value& sum, const Value& right) {
  if (sum.chunk != right.chunk) return fmt::format("adds chunk {} to chunk {}", right.chunk, sum.chunk);
  if (sum.generation != right.generation)
    return fmt::format("adds values of chunk {} that belong to different tiles", sum.chunk);
  const auto twice = [&](std::uint32_t rank) {
    return fmt::format("counts the contribution of rank {} to chunk {} twice", rank, sum.chunk);
  };
  const bool arcs = sum.set == 0 && right.set == 0;
  if (arcs) {
    if (const std::uint32_t rank = shared_by_arcs(sum, right); rank != kNoRank) return twice(rank);
  }
  if (!arcs || (sum.first + sum.count) % ranks_ != right.first) {
    const Union& both = unite(sum, right);
    if (both.shared != kNoRank) return twice(both.shared);
    sum.set = both.set;
  }
  sum.count += right.count;
  return {};
}

}  // namespace tutti

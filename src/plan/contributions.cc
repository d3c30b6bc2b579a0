#include "plan/contributions.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

namespace tutti {
namespace {

constexpr std::uint32_t kNobody = ~std::uint32_t{0};
constexpr std::size_t kUnionsPerRank = 16;  // remembered: ranks are at different rounds of the same plan

}  // namespace

// A strong 64-bit mix (the finaliser of SplitMix64): expressions that differ have the same hash with a chance of 2^-64.
std::uint64_t Contributions::mix(std::uint64_t hash, std::uint64_t operand) {
  std::uint64_t x = (hash + 0x9e3779b97f4a7c15u) * 0xd1342543de82ef95u ^ operand;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t Contributions::leaf_expression(std::uint32_t rank) { return mix(1, rank); }

Value Contributions::input(std::uint32_t rank, std::uint32_t chunk, std::uint32_t generation) const {
  return {.expression = leaf_expression(rank), .chunk = chunk, .generation = generation, .first = rank, .count = 1};
}

Contributions::Bits Contributions::bits_of(const Value& value) const {
  if (value.set != 0) return sets_[value.set - 1];
  Bits bits((ranks_ + 63) / 64, 0);
  for (std::uint32_t i = 0; i < value.count; ++i) {
    const std::uint32_t rank = (value.first + i) % ranks_;
    bits[rank / 64] |= std::uint64_t{1} << (rank % 64);
  }
  return bits;
}

// A rank that both runs hold, or kNobody.
std::uint32_t Contributions::shared_by_runs(const Value& a, const Value& b) const {
  if (distance(a.first, b.first) < a.count) return b.first;
  if (distance(b.first, a.first) < b.count) return a.first;
  return kNobody;
}

// Different for different sets of the pool and for different runs; never 0, as no run is empty.
std::uint64_t Contributions::key_of(const Value& value) {
  if (value.set != 0) return (std::uint64_t{1} << 63) | value.set;
  return (std::uint64_t{value.first} << 32) | value.count;
}

// The pool's number for these ranks.
std::uint32_t Contributions::intern(Bits bits) {
  std::uint64_t hash = 0;
  for (const std::uint64_t word : bits) hash = mix(hash, word);
  const auto [entry, added] = set_of_hash_.try_emplace(hash, static_cast<std::uint32_t>(sets_.size() + 1));
  if (!added && sets_[entry->second - 1] == bits) return entry->second;
  sets_.push_back(std::move(bits));  // also where another set has this hash: it then is kept more than once
  return static_cast<std::uint32_t>(sets_.size());
}

const Contributions::Union& Contributions::unite(const Value& a, const Value& b) {
  if (unions_.empty()) unions_.resize(std::bit_ceil(std::size_t{ranks_} * kUnionsPerRank));
  const std::uint64_t left = key_of(a);
  const std::uint64_t right = key_of(b);
  Union& known = unions_[mix(left, right) & (unions_.size() - 1)];
  if (known.left == left && known.right == right) return known;
  known = {.left = left, .right = right, .shared = kNobody, .set = 0};
  Bits bits = bits_of(a);
  const Bits more = bits_of(b);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (const std::uint64_t both = bits[i] & more[i]; both != 0) {
      known.shared = static_cast<std::uint32_t>(i * 64) + static_cast<std::uint32_t>(std::countr_zero(both));
      return known;
    }
    bits[i] |= more[i];
  }
  known.set = intern(std::move(bits));
  return known;
}

std::string Contributions::add(Value& sum, const Value& right) {
  if (sum.chunk != right.chunk) return fmt::format("adds chunk {} to chunk {}", right.chunk, sum.chunk);
  if (sum.generation != right.generation)
    return fmt::format("adds values of chunk {} that belong to different tiles", sum.chunk);
  const auto twice = [&](std::uint32_t rank) {
    return fmt::format("counts the contribution of rank {} to chunk {} twice", rank, sum.chunk);
  };
  const bool runs = sum.set == 0 && right.set == 0;
  if (runs) {
    if (const std::uint32_t rank = shared_by_runs(sum, right); rank != kNobody) return twice(rank);
  }
  if (!runs || (sum.first + sum.count) % ranks_ != right.first) {
    const Union& both = unite(sum, right);
    if (both.shared != kNobody) return twice(both.shared);
    sum.set = both.set;
  }
  sum.count += right.count;
  return {};
}

}  // namespace tutti

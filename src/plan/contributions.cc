#include "plan/contributions.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

namespace tutti {
namespace {

constexpr std::uint32_t kNobody = ~std::uint32_t{0};

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

// A rank that both hold, or kNobody.
std::uint32_t Contributions::shared_rank(const Value& a, const Value& b) const {
  if (a.set == 0 && b.set == 0) {
    if (distance(a.first, b.first) < a.count) return b.first;
    if (distance(b.first, a.first) < b.count) return a.first;
    return kNobody;
  }
  const Bits left = bits_of(a);
  const Bits right = bits_of(b);
  for (std::size_t i = 0; i < left.size(); ++i) {
    const std::uint64_t both = left[i] & right[i];
    if (both != 0) return static_cast<std::uint32_t>(i * 64) + static_cast<std::uint32_t>(std::countr_zero(both));
  }
  return kNobody;
}

std::string Contributions::add(Value& sum, const Value& right) {
  if (sum.chunk != right.chunk) return fmt::format("adds chunk {} to chunk {}", right.chunk, sum.chunk);
  if (sum.generation != right.generation)
    return fmt::format("adds values of chunk {} that belong to different tiles", sum.chunk);
  if (const std::uint32_t rank = shared_rank(sum, right); rank != kNobody) {
    return fmt::format("counts the contribution of rank {} to chunk {} twice", rank, sum.chunk);
  }
  const bool runs = sum.set == 0 && right.set == 0;
  if (!runs || (sum.first + sum.count) % ranks_ != right.first) {
    Bits bits = bits_of(sum);
    const Bits more = bits_of(right);
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] |= more[i];
    sets_.push_back(std::move(bits));
    sum.set = static_cast<std::uint32_t>(sets_.size());
  }
  sum.count += right.count;
  return {};
}

}  // namespace tutti

// Folding: how algorithms for powers of two are extended to any number of ranks. A value without side effects.
//
// Let p = Q + f ranks, with Q a power of two and f < Q. Among the first 2f ranks, each odd rank is the *helper* of
// the even rank before it. All other ranks are the Q core ranks. They are numbered from 0, in the order of the
// ranks.
#pragma once

#include <bit>
#include <cstdint>

namespace tutti {

inline constexpr std::uint32_t kNoHelper = ~std::uint32_t{0};

struct Folding {
  explicit Folding(std::uint32_t ranks) : cores(std::bit_floor(ranks)), helpers(ranks - cores) {}

  bool is_helper(std::uint32_t rank) const { return rank < 2 * helpers && rank % 2 == 1; }
  std::uint32_t core_of(std::uint32_t rank) const { return rank < 2 * helpers ? rank / 2 : rank - helpers; }
  std::uint32_t rank_of(std::uint32_t core) const { return core < helpers ? 2 * core : core + helpers; }
  std::uint32_t helper_of(std::uint32_t core) const { return core < helpers ? 2 * core + 1 : kNoHelper; }
  std::uint32_t rounds() const { return static_cast<std::uint32_t>(std::countr_zero(cores)); }

  const std::uint32_t cores;
  const std::uint32_t helpers;
};

}  // namespace tutti

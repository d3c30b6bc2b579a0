// Folding: makes algorithms for which the number of ranks must be a power of two usable with any number of ranks. Some
// ranks, the helpers, each send their input to a core rank. Only the core ranks run the algorithm, and each helper gets
// the result from its core rank. Pure functions.
//
// Let p = Q + f be the number of ranks, with Q a power of two and f < Q. Among the ranks 0 .. 2f-1, each odd rank
// is the *helper* of the even rank before it. All ranks that are not helpers are the Q *core ranks*. The core
// ranks are numbered from 0 in the order of the ranks; this number is called a core. For example, of 5 ranks, rank
// 1 is the helper of rank 0, and the cores 0, 1, 2, 3 are the ranks 0, 2, 3, 4.
#pragma once

#include <bit>
#include <cstdint>

namespace tutti {

// The result of Folding::helper_of() for a core rank that has no helper.
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

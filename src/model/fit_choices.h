// Computes the choices between ways to carry out a call (MachineChoices) from times that `tutti tune`, or the first job
// on a machine, has measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/parameters.h"
#include "plan/machine_choices.h"

namespace tutti {

// The ways whose times are compared. The sizes (Measurement::bytes) are the lengths of one block.
enum class MeasuredWay : std::uint8_t {
  kOneShot,              // an all_reduce by one_shot, in ordinary memory
  kTwoShot,              // an all_reduce by two_shot, in ordinary memory, without system calls
  kRegisteredOneShot,    // an all_reduce by one_shot, in registered memory
  kRegisteredTwoShot,    // an all_reduce by two_shot, in registered memory
  kAllReduceByMessages,  // a long all_reduce by two_shot, in ordinary memory, without system calls
  kAllReduceByCalls,     // a long all_reduce by two_shot, in ordinary memory, by system calls (TUTTI_ATTACH=calls)
  kBroadcastByMessages,  // a broadcast in ordinary memory, without system calls
  kBroadcastByCalls,     // a broadcast in ordinary memory, by system calls
  kAllGatherByMessages,  // an all_gather in ordinary memory, without system calls
  kAllGatherByCalls,     // an all_gather in ordinary memory, by system calls
};
inline constexpr std::size_t kMeasuredWays = 10;

// The name of the measurement (Measurement::what) of a way with this number of ranks, for example "2 ranks: one_shot".
std::string measurement_name(std::uint32_t ranks, MeasuredWay way);
// a part of these names, and of no others
inline constexpr std::string_view kChoiceMark = " ranks: ";

// Of several measurements with the same name and size, keeps the one with the shortest median. The order stays.
std::vector<Measurement> shortest_of(std::span<const Measurement> measured);

// How much several measurements with the same name and size differ: the middle median of each name and size is divided
// by its shortest one, and the result is the median of these ratios. 1: not at all, or nothing was measured.
double noise_of_passes(std::span<const Measurement> measured);

// Returns the choices for each of these numbers of ranks, except for those with which nothing was measured. For each
// limit between two ways, the time of each measured call is divided by that of the faster way, and the limit with the
// smallest product of these ratios is taken, if it is clearly better than that of default_choices(). A limit whose ways
// were not measured is that of default_choices(). If its ways were measured, one_shot_bytes is at least the shortest
// measured size. `cores`: the cores that the ranks share. Pure function.
std::vector<RankChoices> fit_choices(std::span<const Measurement> measured, std::span<const std::uint32_t> ranks,
                                     std::uint32_t cores);

}  // namespace tutti

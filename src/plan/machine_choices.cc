#include "plan/machine_choices.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti {

MachineChoices default_choices(std::uint32_t ranks, std::uint32_t cores) {
  // With more ranks than cores, an all_reduce by system calls takes up to twice as long as one by messages
  // (docs/results/2026-11-22-tuner.md).
  return {.one_shot_bytes = 8 * 1024,
          .copy_by_calls_bytes = 128 * 1024,
          .all_reduce_by_calls_bytes = cores == 0 || ranks <= cores ? 128 * 1024u : 0u};
}

namespace {

// Whether there are more ranks than cores, so that ranks share cores. False if the number of cores is unknown (0).
bool is_crowded(std::uint32_t ranks, std::uint32_t cores) { return cores > 0 && ranks > cores; }

}  // namespace

bool has_choices(std::span<const RankChoices> measured, std::uint32_t ranks, std::uint32_t cores) {
  return std::any_of(measured.begin(), measured.end(), [&](const RankChoices& one) {
    return is_crowded(one.ranks, one.cores) == is_crowded(ranks, cores);
  });
}

MachineChoices choices_for(std::span<const RankChoices> measured, std::uint32_t ranks, std::uint32_t cores) {
  const RankChoices* best = nullptr;
  for (const RankChoices& one : measured) {
    if (is_crowded(one.ranks, one.cores) != is_crowded(ranks, cores)) continue;
    const bool better = best == nullptr || (one.ranks <= ranks ? best->ranks > ranks || one.ranks > best->ranks
                                                               : best->ranks > ranks && one.ranks < best->ranks);
    if (better) best = &one;
  }
  return best != nullptr ? best->choices : default_choices(ranks, cores);
}

std::string to_string(const MachineChoices& choices) {
  const auto from = [](std::uint64_t bytes) {
    return bytes == 0 ? std::string("never by system calls") : fmt::format("by system calls from {} bytes", bytes);
  };
  return fmt::format("all_reduce by one_shot up to {} bytes; copies {}; a rank's share of an all_reduce {}",
                     choices.one_shot_bytes, from(choices.copy_by_calls_bytes),
                     from(choices.all_reduce_by_calls_bytes));
}

}  // namespace tutti

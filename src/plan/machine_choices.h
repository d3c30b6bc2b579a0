// MachineChoices: the sizes (lengths of calls, in bytes) at which ranks that share one machine's memory change from one
// way of carrying out a call to another. Which way is faster depends on the processor, so `tutti tune`, or the first
// job on a machine, measures the sizes (model/fit_choices.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tutti {

struct MachineChoices {
  // An all_reduce of at most this many bytes uses one_shot, and a longer one two_shot. 0: two_shot for every call with
  // data. (With more than 256 ranks, an all_reduce uses other algorithms, unless it must combine the inputs in rank
  // order.)
  std::uint64_t one_shot_bytes = 0;
  // With TUTTI_ATTACH=auto: if each rank copies at least this many bytes from or to another rank, ranks use each
  // other's ordinary memory by system calls. Otherwise they send messages. 0: they always send messages.
  std::uint64_t copy_by_calls_bytes = 0;
  // The same for an all_reduce, for which the length of a rank's share of the elements counts (the bytes of the call,
  // divided by the number of ranks). With TUTTI_ATTACH=auto, other reductions never use system calls.
  std::uint64_t all_reduce_by_calls_bytes = 0;

  bool operator==(const MachineChoices&) const = default;
};

// The choices that were measured with this number of ranks, which shared this number of cores.
struct RankChoices {
  std::uint32_t ranks = 0;
  std::uint32_t cores = 0;
  MachineChoices choices{};

  bool operator==(const RankChoices&) const = default;
};

// The choices on a machine that was not measured: those of the machines on which the library was developed (two cores
// each). `cores`: the number of cores that the ranks share; 0: unknown, and treated as enough for all ranks.
MachineChoices default_choices(std::uint32_t ranks, std::uint32_t cores);

// The choices for `ranks` ranks that share `cores` cores (0: unknown, and treated as enough for all ranks). Ranks with
// a core each wait in another way than ranks that share cores. So of the measurements, only those count in which the
// ranks had a core each, if these ranks have, and otherwise only the others. Of these, the one with the largest number
// of ranks that is not greater than `ranks` is taken, or else the one with the smallest number of ranks. If there is
// none, the result is default_choices(ranks, cores).
MachineChoices choices_for(std::span<const RankChoices> measured, std::uint32_t ranks, std::uint32_t cores);

// Whether choices_for() finds a measurement for these ranks.
bool has_choices(std::span<const RankChoices> measured, std::uint32_t ranks, std::uint32_t cores);

// The sizes as a text for people.
std::string to_string(const MachineChoices& choices);

}  // namespace tutti

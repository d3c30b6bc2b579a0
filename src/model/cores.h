// The cores of each machine, for simulations in which the ranks are processes that share the cores
// (Parameters::cores is not 0). A rank runs one channel at a time, so it holds at most one core. If a core switches
// from one rank to another, the switch takes time (Parameters::handover_us). Internal to the event engine. Used by
// one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tutti {

class Cores {
 public:
  // Stands for "no core" and for "no rank".
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  Cores(std::uint32_t machines, std::uint32_t cores, std::uint32_t ranks)
      : cores_(cores), holders_(std::size_t{machines} * cores), waiting_(machines), core_of_(ranks, kNone) {}

  struct CoreRequest {
    // The channel that wants to run: its number as a task of EventRun.
    std::uint32_t channel = 0;
    // The rank of this channel.
    std::uint32_t rank = 0;
  };
  void enqueue(std::uint32_t machine, CoreRequest request) { waiting_[machine].push_back(request); }

  // Gives free cores of this machine to the waiting channels, in the order of their requests. Skips a channel if its
  // rank holds a core already, or if no core is free. A rank preferably gets the core that it held last, if no other
  // rank has held it since. For each channel that gets a core, calls start(channel, handed), where `handed` is true if
  // another rank held this core last.
  template <class Start>
  void hand_out(std::uint32_t machine, Start start) {
    auto& waiting = waiting_[machine];
    for (std::size_t i = 0; i < waiting.size();) {
      const CoreRequest next = waiting[i];
      const std::uint32_t core = core_of_[next.rank] == kNone ? free_core(machine, next.rank) : kNone;
      if (core == kNone) {
        ++i;
        continue;
      }
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
      Holder& holder = holders_[core];
      const bool handed = holder.last != kNone && holder.last != next.rank;
      holder = {.last = next.rank, .held = true};
      core_of_[next.rank] = core;
      start(next.channel, handed);
    }
  }

  // Frees the core that this rank holds. The rank must hold one.
  void give_back(std::uint32_t rank) {
    holders_[core_of_[rank]].held = false;
    core_of_[rank] = kNone;
  }

 private:
  struct Holder {
    // the rank that held this core last, or holds it now; kNone if no rank has held it
    std::uint32_t last = kNone;
    bool held = false;
  };

  // Returns a free core of this machine for this rank: preferably the core whose last holder is this rank, otherwise
  // one that no rank has held yet, otherwise the first free one. Returns kNone if all cores are held.
  std::uint32_t free_core(std::uint32_t machine, std::uint32_t rank) const {
    std::uint32_t best = kNone;
    for (std::uint32_t core = machine * cores_; core < (machine + 1) * cores_; ++core) {
      if (holders_[core].held) continue;
      if (holders_[core].last == rank) return core;
      if (best == kNone || (holders_[best].last != kNone && holders_[core].last == kNone)) best = core;
    }
    return best;
  }

  // number of cores of one machine
  std::uint32_t cores_;
  std::vector<Holder> holders_;
  // indexed by machine: the requests of channels that wait for a core, at most one for each channel
  std::vector<std::vector<CoreRequest>> waiting_;
  // indexed by rank: the core that it holds, or kNone
  std::vector<std::uint32_t> core_of_;
};

}  // namespace tutti

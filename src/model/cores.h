// The cores of the machines, where ranks are processes that share them: a rank runs one channel at a time, and a core
// that passes from one rank to another loses the hand-over. Internal to the event engine. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tutti {

class Cores {
 public:
  static constexpr std::uint32_t kNobody = ~std::uint32_t{0};

  Cores(std::uint32_t machines, std::uint32_t cores, std::uint32_t ranks)
      : cores_(cores), holders_(std::size_t{machines} * cores), waiting_(machines), core_of_(ranks, kNobody) {}

  struct Wanting {
    std::uint32_t channel = 0;  // of a rank
    std::uint32_t rank = 0;
  };
  void want(std::uint32_t machine, Wanting wanting) { waiting_[machine].push_back(wanting); }

  // Gives free cores to those that want one, in their order; a rank that had a core last gets that one. Calls
  // start(channel, whether the core comes from another rank).
  template <class Start>
  void hand_out(std::uint32_t machine, Start start) {
    auto& waiting = waiting_[machine];
    for (std::size_t i = 0; i < waiting.size();) {
      const Wanting next = waiting[i];
      const std::uint32_t core = core_of_[next.rank] == kNobody ? free_core(machine, next.rank) : kNobody;
      if (core == kNobody) {
        ++i;
        continue;
      }
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
      Holder& holder = holders_[core];
      const bool handed = holder.last != kNobody && holder.last != next.rank;
      holder = {.last = next.rank, .held = true};
      core_of_[next.rank] = core;
      start(next.channel, handed);
    }
  }

  void give_back(std::uint32_t rank) {
    holders_[core_of_[rank]].held = false;
    core_of_[rank] = kNobody;
  }

 private:
  struct Holder {
    std::uint32_t last = kNobody;  // rank
    bool held = false;
  };

  // Of this machine: the rank's last one, else one that nobody had, else the first; kNobody: none is free.
  std::uint32_t free_core(std::uint32_t machine, std::uint32_t rank) const {
    std::uint32_t best = kNobody;
    for (std::uint32_t core = machine * cores_; core < (machine + 1) * cores_; ++core) {
      if (holders_[core].held) continue;
      if (holders_[core].last == rank) return core;
      if (best == kNobody || (holders_[best].last != kNobody && holders_[core].last == kNobody)) best = core;
    }
    return best;
  }

  std::uint32_t cores_;  // of each machine
  std::vector<Holder> holders_;
  std::vector<std::vector<Wanting>> waiting_;  // by machine; at most one entry for each channel
  std::vector<std::uint32_t> core_of_;         // of each rank that runs
};

}  // namespace tutti

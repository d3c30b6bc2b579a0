// The cores of each machine, for ranks that are processes and share the cores. A rank runs one channel at a time.
// If a core switches from one rank to another, the switch takes time (Parameters::handover_us). Internal to the
// event engine. Used by one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tutti {

class Cores {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  Cores(std::uint32_t machines, std::uint32_t cores, std::uint32_t ranks)
      : cores_(cores), holders_(std::size_t{machines} * cores), waiting_(machines), core_of_(ranks, kNone) {}

  struct CoreRequest {
    std::uint32_t channel = 0;  // a channel of a rank, numbered as in EventRun
    std::uint32_t rank = 0;
  };
  void enqueue(std::uint32_t machine, CoreRequest request) { waiting_[machine].push_back(request); }

  // Gives free cores to the waiting channels, in their order. A rank preferably gets the core that it had last.
  // Calls start(channel, handed), where `handed` is true if the core ran another rank before.
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

  void give_back(std::uint32_t rank) {
    holders_[core_of_[rank]].held = false;
    core_of_[rank] = kNone;
  }

 private:
  struct Holder {
    std::uint32_t last = kNone;  // the rank that ran last
    bool held = false;
  };

  // Returns a free core of this machine: the rank's last one, or one that has not been used, or the first free
  // one. Returns kNone if all are in use.
  std::uint32_t free_core(std::uint32_t machine, std::uint32_t rank) const {
    std::uint32_t best = kNone;
    for (std::uint32_t core = machine * cores_; core < (machine + 1) * cores_; ++core) {
      if (holders_[core].held) continue;
      if (holders_[core].last == rank) return core;
      if (best == kNone || (holders_[best].last != kNone && holders_[core].last == kNone)) best = core;
    }
    return best;
  }

  std::uint32_t cores_;  // number per machine
  std::vector<Holder> holders_;
  std::vector<std::vector<CoreRequest>> waiting_;  // indexed by machine; at most one entry for each channel
  std::vector<std::uint32_t> core_of_;             // indexed by rank; kNone if the rank is not running
};

}  // namespace tutti

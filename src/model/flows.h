// Messages that share links share their bandwidth, max-min fair: no flow can have more without one that has as little
// having less. Internal to this folder: the event engine runs it. One thread.
//
// Only links that can be the narrow place are looked at: those on which all senders together may want more than there
// is. Flows that share such links, directly or through others, are solved together, once for each set of them that
// occurs: the steps of a collective repeat themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace tutti {

class Flows {
 public:
  // Called with a flow and its rate, when the flow begins or its rate changes. GB/s.
  using Changed = std::function<void(std::uint32_t flow, double gbytes_per_s)>;

  // Flows from one place to another. All of one source together take no more than one of them can.
  struct Kind {
    std::vector<std::uint64_t> links;
    double most = 0;  // GB/s that a flow can use
    std::uint64_t source = 0;
  };
  // GB/s of each link that kinds pass.
  Flows(const std::vector<Kind>& kinds, const std::function<double(std::uint64_t link)>& capacity);

  // Flows of a kind, by its number, begin and end; at most one at any time. Rates change with settle() only.
  void begin(std::uint32_t kind);
  void end(std::uint32_t kind);
  void settle(const Changed& changed);

  // Whether some link on the way can be the narrow place.
  bool can_be_narrow(std::uint32_t kind) const { return !routes_[kind].empty(); }

  std::uint64_t solved() const { return solved_; }  // sets of flows, for tests

 private:
  static constexpr std::size_t kMostRemembered = 1 << 22;  // rates, of all sets together

  void collect();
  void solve(std::vector<double>& rates);

  std::vector<double> capacities_;
  std::vector<std::vector<std::uint32_t>> routes_;
  std::vector<double> most_;
  std::vector<double> rates_;                        // of each kind; negative: not under way
  std::vector<std::vector<std::uint32_t>> on_link_;  // kinds under way
  std::vector<std::uint32_t> touched_;               // links whose flows have changed
  std::vector<std::uint32_t> begun_;                 // kinds that pass no link, since the last settle()
  std::vector<std::uint32_t> set_;                   // kinds that are solved together
  std::vector<std::uint32_t> links_;                 // of these
  std::vector<std::uint8_t> seen_kind_, seen_link_;
  std::unordered_map<std::string, std::vector<double>> remembered_;
  std::size_t remembered_rates_ = 0;
  std::uint64_t solved_ = 0;
  std::vector<double> room_;            // of each link, while solving
  std::vector<std::uint32_t> unfixed_;  // flows of each link, while solving
};

}  // namespace tutti

// Flows: messages that share links share their bandwidth max-min fairly. That means that a flow cannot get more
// bandwidth without taking some from a flow that has no more than it. Internal to this folder: the event engine
// uses it. Used by one thread.
//
// Only links that can be a bottleneck are considered: those on which all senders together may need more than the
// capacity. Flows that share such links, directly or through other flows, are solved together. The solution of
// each set of flows is cached, because the steps of a collective repeat themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace tutti {

class Flows {
 public:
  // Called with a flow and its rate in GB/s, when the flow begins or its rate changes.
  using Changed = std::function<void(std::uint32_t flow, double gbytes_per_s)>;

  // The route of flows from one rank to another. All flows of one source together use at most the rate of the
  // fastest of them.
  struct FlowRoute {
    std::vector<std::uint64_t> links;
    double most = 0;  // largest rate of a flow, in GB/s
    std::uint64_t source = 0;
  };
  // `capacity` returns the bandwidth in GB/s of each link on a route.
  Flows(const std::vector<FlowRoute>& kinds, const std::function<double(std::uint64_t link)>& capacity);

  // Begins and ends a flow on a route, given by its index. A route has at most one flow at any time. Rates change
  // only in settle().
  void begin(std::uint32_t kind);
  void end(std::uint32_t kind);
  void settle(const Changed& changed);

  // True if some link of the route can be a bottleneck.
  bool can_be_narrow(std::uint32_t kind) const { return !routes_[kind].empty(); }

  std::uint64_t solved() const { return solved_; }  // number of sets of flows that were solved, for tests

 private:
  static constexpr std::size_t kMostRemembered = 1 << 22;  // limit on the cached rates, of all sets together

  void collect();
  void solve(std::vector<double>& rates);

  std::vector<double> capacities_;
  std::vector<std::vector<std::uint32_t>> routes_;
  std::vector<double> most_;
  std::vector<double> rates_;                        // indexed by route; negative: it has no flow
  std::vector<std::vector<std::uint32_t>> on_link_;  // indexed by link: the routes that have a flow
  std::vector<std::uint32_t> touched_;               // links whose flows have changed
  // routes without bottleneck links whose flows began since the last settle()
  std::vector<std::uint32_t> begun_;
  std::vector<std::uint32_t> set_;    // routes that are solved together
  std::vector<std::uint32_t> links_;  // links of these routes
  std::vector<std::uint8_t> seen_kind_, seen_link_;
  std::unordered_map<std::string, std::vector<double>> remembered_;
  std::size_t remembered_rates_ = 0;
  std::uint64_t solved_ = 0;
  std::vector<double> room_;            // indexed by link, while solving: capacity that is left
  std::vector<std::uint32_t> unfixed_;  // indexed by link, while solving: number of flows without a rate
};

}  // namespace tutti

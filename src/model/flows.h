// Flows: messages that are in transit at the same time share the bandwidth of the links of their routes, max-min
// fairly. Max-min fair means: no flow can get more bandwidth without taking bandwidth from a flow that does not
// have more than it. Internal to this folder: the event engine uses it. Used by one thread.
//
// Only links that can be a bottleneck are considered: a link on which all senders together could use more than its
// capacity. Flows that share such links, directly or through other flows, form a set, and the rates of a set are
// solved together. The solution of each set is cached, because a collective repeats its steps, so the same sets of
// flows occur again and again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace tutti {

class Flows {
 public:
  // settle() calls this with the index of a route and the rate of its flow in GB/s, if the flow has begun or if its
  // rate has changed.
  using Changed = std::function<void(std::uint32_t flow, double gbytes_per_s)>;

  // The route of the flows of one connection of one sending rank. `source` identifies the part that sends them: a
  // port or a channel. A link can be a bottleneck if its bandwidth is less than the sum, over the sources with a route
  // over it, of the largest `most` of these routes. If any route of a source has such a link, all flows of the source
  // together use at most the largest `most` of all its routes.
  struct FlowRoute {
    std::vector<std::uint64_t> links;
    // upper bound on the rate of one flow, in GB/s
    double most = 0;
    std::uint64_t source = 0;
  };
  // `capacity` returns the bandwidth in GB/s of a link. It is only called in the constructor, once for each link that
  // is on a route.
  Flows(const std::vector<FlowRoute>& kinds, const std::function<double(std::uint64_t link)>& capacity);

  // begin() starts a flow on a route, and end() ends it. The route is given by its index in `kinds`. A route has at
  // most one flow at any time. Neither changes a rate: settle() computes the new rates, and calls `changed` for
  // each rate that changed.
  void begin(std::uint32_t kind);
  void end(std::uint32_t kind);
  void settle(const Changed& changed);

  // True if some link of this route, or of another route of the same source, can be a bottleneck. If false, the flows
  // of this route always have the rate FlowRoute::most.
  bool can_be_narrow(std::uint32_t kind) const { return !routes_[kind].empty(); }

  // how often the rates of a set were computed, because they were not in the cache; for tests
  std::uint64_t solved() const { return solved_; }

 private:
  // Limit on the number of cached rates, of all sets together. If it would be exceeded, the cache is emptied.
  static constexpr std::size_t kMostRemembered = 1 << 22;

  void collect();
  void solve(std::vector<double>& rates);

  // In the members below, a "link" is a link that can be a bottleneck, or a source that has a route with such a link.
  // These links have new numbers from 0.
  std::vector<double> capacities_;
  std::vector<std::vector<std::uint32_t>> routes_;
  std::vector<double> most_;
  // indexed by route: the rate of its flow in GB/s; negative if it has no flow
  std::vector<double> rates_;
  // indexed by link: the routes that use it and have a flow
  std::vector<std::vector<std::uint32_t>> on_link_;
  // links on which a flow began or ended since the last settle()
  std::vector<std::uint32_t> touched_;
  // routes that use none of these links, and on which a flow began since the last settle()
  std::vector<std::uint32_t> begun_;
  // for settle(): routes with rates that are solved together
  std::vector<std::uint32_t> set_;
  // for settle(): the links of these routes
  std::vector<std::uint32_t> links_;
  std::vector<std::uint8_t> seen_kind_, seen_link_;
  // The cache. The key is the sorted indices of the routes of a set, as bytes; the value is their rates in this
  // order.
  std::unordered_map<std::string, std::vector<double>> remembered_;
  std::size_t remembered_rates_ = 0;
  std::uint64_t solved_ = 0;
  // for solve(), indexed by link: the capacity that is left
  std::vector<double> room_;
  // for solve(), indexed by link: number of its flows that have no rate yet
  std::vector<std::uint32_t> unfixed_;
};

}  // namespace tutti

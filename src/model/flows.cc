// The constructor selects the links that can be a bottleneck. settle() finds the connected sets of flows to which a
// flow was added or from which one was removed, and solves each of them, or takes its rates from the cache.
#include "model/flows.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

constexpr double kSame = 1 + 1e-12;   // tolerance, because equal shares may differ by rounding
constexpr double kEnough = 1 + 1e-9;  // tolerance when a link's capacity is compared with the rates of its sources

}  // namespace

Flows::Flows(const std::vector<FlowRoute>& kinds, const std::function<double(std::uint64_t link)>& capacity)
    : routes_(kinds.size()), rates_(kinds.size(), -1), seen_kind_(kinds.size()) {
  // indexed by link, then by source: the largest rate that the source may send over the link
  std::map<std::uint64_t, std::map<std::uint64_t, double>> wanted;
  for (const FlowRoute& kind : kinds) {
    most_.push_back(kind.most);
    for (const std::uint64_t link : kind.links) {
      double& most = wanted[link][kind.source];
      most = std::max(most, kind.most);
    }
  }
  // The links that can be a bottleneck get new numbers. Indexed by the old number.
  std::map<std::uint64_t, std::uint32_t> number;
  for (const auto& [link, sources] : wanted) {
    double together = 0;
    for (const auto& [source, most] : sources) together += most;
    const double room = capacity(link);
    if (together <= room * kEnough) continue;
    number[link] = static_cast<std::uint32_t>(capacities_.size());
    capacities_.push_back(room);
  }
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    for (const std::uint64_t link : kinds[i].links) {
      if (const auto found = number.find(link); found != number.end()) routes_[i].push_back(found->second);
    }
  }
  // A source that has a route with a bottleneck is treated like one more link of all its routes. Only such a source
  // may have several flows at a time, because a bottleneck can leave it bandwidth for a further flow. The map
  // holds, by source, the number of its routes with a bottleneck, and the largest rate of all its routes.
  std::map<std::uint64_t, std::pair<std::uint32_t, double>> sources;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    auto& [narrow, most] = sources[kinds[i].source];
    narrow += routes_[i].empty() ? 0 : 1;
    most = std::max(most, kinds[i].most);
  }
  std::map<std::uint64_t, std::uint32_t> number_of_source;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const auto& [narrow, most] = sources[kinds[i].source];
    if (narrow == 0) continue;
    const auto next = static_cast<std::uint32_t>(capacities_.size());
    const auto [found, added] = number_of_source.try_emplace(kinds[i].source, next);
    if (added) capacities_.push_back(most);
    routes_[i].push_back(found->second);
  }
  on_link_.resize(capacities_.size());
  seen_link_.resize(capacities_.size());
  room_.resize(capacities_.size());
  unfixed_.resize(capacities_.size());
}

void Flows::begin(std::uint32_t kind) {
  TUTTI_ASSERT(rates_[kind] < 0, "flow {} is under way", kind);
  rates_[kind] = 0;
  if (routes_[kind].empty()) begun_.push_back(kind);
  for (const std::uint32_t link : routes_[kind]) {
    on_link_[link].push_back(kind);
    touched_.push_back(link);
  }
}

void Flows::end(std::uint32_t kind) {
  TUTTI_ASSERT(rates_[kind] >= 0, "flow {} is not under way", kind);
  rates_[kind] = -1;
  for (const std::uint32_t link : routes_[kind]) {
    auto& flows = on_link_[link];
    *std::find(flows.begin(), flows.end(), kind) = flows.back();
    flows.pop_back();
    touched_.push_back(link);
  }
}

// Starting with the one link in links_, collects in set_ all routes with flows that are connected with it, directly
// or through other routes, and in links_ all their links.
void Flows::collect() {
  set_.clear();
  for (std::size_t i = 0; i < links_.size(); ++i) {
    for (const std::uint32_t kind : on_link_[links_[i]]) {
      if (seen_kind_[kind] != 0) continue;
      seen_kind_[kind] = 1;
      set_.push_back(kind);
      for (const std::uint32_t link : routes_[kind]) {
        if (seen_link_[link] != 0) continue;
        seen_link_[link] = 1;
        links_.push_back(link);
      }
    }
  }
  for (const std::uint32_t kind : set_) seen_kind_[kind] = 0;
  std::sort(set_.begin(), set_.end());
}

// Computes the max-min fair rates of set_ by progressive filling. Each round finds the link that has the least
// bandwidth left for each of its flows without a rate. If no flow has a smaller upper bound than that, the flows of
// this link get that rate. Otherwise the flows with the smallest upper bound get this bound.
void Flows::solve(std::vector<double>& rates) {
  ++solved_;
  rates.assign(set_.size(), -1);
  for (const std::uint32_t link : links_) {
    room_[link] = capacities_[link];
    unfixed_[link] = static_cast<std::uint32_t>(on_link_[link].size());
  }
  for (std::size_t left = set_.size(); left > 0;) {
    double least = std::numeric_limits<double>::infinity();
    for (const std::uint32_t link : links_) {
      if (unfixed_[link] > 0) least = std::min(least, std::max(room_[link], 0.0) / unfixed_[link]);
    }
    double level = least;
    for (std::size_t i = 0; i < set_.size(); ++i) {
      if (rates[i] < 0) level = std::min(level, most_[set_[i]]);
    }
    std::vector<std::uint32_t> fixed;
    for (std::size_t i = 0; i < set_.size(); ++i) {
      if (rates[i] >= 0) continue;
      bool at_level = most_[set_[i]] <= level * kSame;
      for (const std::uint32_t link : routes_[set_[i]]) {
        at_level = at_level || std::max(room_[link], 0.0) / unfixed_[link] <= level * kSame;
      }
      if (at_level) fixed.push_back(static_cast<std::uint32_t>(i));
    }
    TUTTI_ASSERT(!fixed.empty());
    for (const std::uint32_t i : fixed) {
      rates[i] = level;
      --left;
      for (const std::uint32_t link : routes_[set_[i]]) {
        room_[link] -= level;
        --unfixed_[link];
      }
    }
  }
}

void Flows::settle(const Changed& changed) {
  for (const std::uint32_t kind : begun_) changed(kind, rates_[kind] = most_[kind]);
  begun_.clear();
  std::vector<std::uint32_t> touched;
  touched.swap(touched_);
  std::vector<std::uint32_t> cleared;
  for (const std::uint32_t first : touched) {
    if (seen_link_[first] != 0 || on_link_[first].empty()) continue;
    links_.assign(1, first);
    seen_link_[first] = 1;
    collect();
    cleared.insert(cleared.end(), links_.begin(), links_.end());
    const std::string key(reinterpret_cast<const char*>(set_.data()), set_.size() * sizeof(set_[0]));
    auto found = remembered_.find(key);
    if (found == remembered_.end()) {
      if (remembered_rates_ + set_.size() > kMostRemembered) {
        remembered_.clear();
        remembered_rates_ = 0;
      }
      std::vector<double> rates;
      solve(rates);
      remembered_rates_ += set_.size();
      found = remembered_.emplace(key, std::move(rates)).first;
    }
    for (std::size_t i = 0; i < set_.size(); ++i) {
      const double rate = found->second[i];
      if (rate == rates_[set_[i]]) continue;
      changed(set_[i], rates_[set_[i]] = rate);
    }
  }
  for (const std::uint32_t link : cleared) seen_link_[link] = 0;
}

}  // namespace tutti

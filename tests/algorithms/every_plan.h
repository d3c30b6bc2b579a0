// Helpers for tests that cover the plans of every collective: all pairs of collective and algorithm, and
// measurements that work for any plan.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "algorithms/algorithms.h"
#include "plan/collective.h"
#include "plan/evaluate.h"
#include "plan/plan.h"

namespace tutti {

struct Pair {
  CollectiveKind kind;
  Algorithm algorithm;
};

inline std::string name_of(const Pair& pair) {
  return std::string(to_string(pair.kind)) + "_" + std::string(to_string(pair.algorithm));
}
inline std::ostream& operator<<(std::ostream& out, const Pair& pair) { return out << name_of(pair); }

// All pairs except those of all_reduce and barrier, which have separate tests.
inline std::vector<Pair> every_pair() {
  std::vector<Pair> pairs;
  for (const CollectiveKind kind : all_collectives()) {
    if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kBarrier) continue;
    for (const Algorithm algorithm : algorithms_of(kind)) pairs.push_back({kind, algorithm});
  }
  return pairs;
}

inline Plan plan_of(const Pair& pair, std::uint32_t ranks, std::uint32_t root = 0) {
  return build_plan(*find_generator({.kind = pair.kind, .ranks = ranks, .root = root}, pair.algorithm));
}

inline std::vector<std::uint32_t> all_roots(const Pair& pair, std::uint32_t ranks) {
  std::vector<std::uint32_t> roots;
  for (std::uint32_t root = 0; root < (has_root(pair.kind) ? ranks : 1); ++root) roots.push_back(root);
  return roots;
}

// Returns the number of messages that a rank sends in one tile.
inline std::uint32_t messages_sent(const RankPlan& plan) {
  std::uint32_t messages = 0;
  for (const Channel& channel : plan.channels) {
    for (const Step& step : channel.steps) messages += step.send_count;
  }
  return messages;
}

// Computes the number of messages on the longest chain of dependent steps. A step depends on another one through a
// message, through the order of its channel, or through an After. It evaluates the plan with the lengths of chains
// as values.
class LongestPath {
 public:
  explicit LongestPath(const Plan& plan) {
    for (const RankPlan& rank : plan.ranks) {
      cursors_.emplace_back(rank.channels.size());
      done_.emplace_back(rank.channels.size());
    }
    for (std::uint64_t ran = 1; ran > 0;) {
      ran = 0;
      for (rank_ = 0; rank_ < plan.ranks.size(); ++rank_) {
        for (channel_ = 0; channel_ < plan.ranks[rank_].channels.size(); ++channel_) {
          program_ = &plan.ranks[rank_].channels[channel_];
          ran += advance(*program_, cursors_[rank_][channel_], 1, ~std::uint64_t{0}, *this);
        }
      }
    }
  }
  std::uint32_t messages() const { return longest_; }

  bool receive_ready(std::uint16_t port) { return !queue(port).empty(); }
  bool send_ready(std::uint16_t) const { return true; }
  bool reached(std::uint32_t channel, std::uint32_t step, std::uint64_t) const {
    return done_[rank_][channel].size() > step;
  }
  void apply(const Channel& channel, const Step& step, std::uint64_t) {
    std::vector<std::uint32_t>& done = done_[rank_][channel_];
    std::uint32_t length = done.empty() ? 0 : done.back();
    for (const After& after : channel.after) {
      if (after.step == done.size()) length = std::max(length, done_[rank_][after.other_channel][after.other_step]);
    }
    for (const std::uint16_t port : channel.receives(step)) {
      length = std::max(length, queue(port).front() + 1);
      queue(port).pop_front();
    }
    for (const std::uint16_t port : channel.sends(step)) queue(port).push_back(length);
    longest_ = std::max(longest_, length);
    done.push_back(length);
  }

 private:
  std::deque<std::uint32_t>& queue(std::uint16_t port) {
    const Port& end = program_->ports[port];
    const bool sends = end.direction == Direction::kSend;
    return queues_[sends ? std::tuple(rank_, end.peer, end.lane) : std::tuple(end.peer, rank_, end.lane)];
  }

  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint16_t>, std::deque<std::uint32_t>> queues_;
  std::vector<std::vector<Cursor>> cursors_;
  std::vector<std::vector<std::vector<std::uint32_t>>> done_;  // indexed by rank, channel, step
  std::uint32_t longest_ = 0;
  std::uint32_t rank_ = 0;
  std::uint32_t channel_ = 0;
  const Channel* program_ = nullptr;
};

}  // namespace tutti

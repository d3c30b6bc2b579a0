// Helpers for the tests of algorithms: measurements of plans, and layouts of machines.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "algorithms/algorithms.h"
#include "plan/evaluate.h"
#include "plan/plan.h"
#include "plan/verify/verify.h"

namespace tutti {

inline Plan plan_of(const Collective& collective, Algorithm algorithm) {
  const Result<Generator> generator = find_generator(collective, algorithm);
  EXPECT_TRUE(generator.ok());
  return build_plan(*generator);
}

// Verifies the plan in all four modes. Returns the error message; empty if all succeed.
inline std::string fault_of(const Plan& plan) {
  const Result<VerifyReport> report = verify_all(plan);
  return report.ok() ? "" : report.error().message;
}

// Returns the number of messages that one rank sends in one tile.
inline std::uint64_t messages_sent(const RankPlan& plan) {
  std::uint64_t messages = 0;
  for (const Channel& channel : plan.channels) {
    for (const Step& step : channel.steps) messages += step.send_count;
  }
  return messages;
}

// Returns the machine of each rank, for machines of the given sizes with consecutive ranks.
inline std::vector<std::uint32_t> side_by_side(const std::vector<std::uint32_t>& sizes) {
  std::vector<std::uint32_t> nodes;
  for (std::uint32_t n = 0; n < sizes.size(); ++n) nodes.insert(nodes.end(), sizes[n], n);
  return nodes;
}

// The same machines, but ranks are assigned round-robin, and the machines are numbered in descending order.
inline std::vector<std::uint32_t> interleaved(std::vector<std::uint32_t> sizes) {
  std::vector<std::uint32_t> nodes;
  const std::uint32_t ranks = std::accumulate(sizes.begin(), sizes.end(), 0u);
  for (std::uint32_t n = 0; nodes.size() < ranks; n = (n + 1) % static_cast<std::uint32_t>(sizes.size())) {
    if (sizes[n] == 0) continue;
    --sizes[n];
    nodes.push_back(static_cast<std::uint32_t>(sizes.size()) - 1 - n);
  }
  return nodes;
}

inline Collective on_machines(std::vector<std::uint32_t> nodes) {
  const auto ranks = static_cast<std::uint32_t>(nodes.size());
  return {.ranks = ranks, .nodes = std::move(nodes)};
}

// Evaluates one tile of a plan. The value of a chunk is the number of consecutive messages on which it depends. No
// order of the program, no slot and no wait can reduce this number.
class Rounds {
 public:
  explicit Rounds(const Plan& plan) : plan_(plan) {}

  std::uint32_t run() {
    std::vector<std::vector<Cursor>> cursors;
    for (const RankPlan& rank : plan_.ranks) cursors.emplace_back(rank.channels.size());
    cursors_ = &cursors;
    for (std::uint64_t ran = 1; ran > 0;) {
      ran = 0;
      for (rank_ = 0; rank_ < plan_.ranks.size(); ++rank_) {
        for (std::size_t c = 0; c < cursors[rank_].size(); ++c) {
          channel_ = &plan_.ranks[rank_].channels[c];
          ran += advance(*channel_, cursors[rank_][c], 1, ~std::uint64_t{0}, *this);
        }
      }
    }
    return most_;
  }

  bool receive_ready(std::uint16_t port) { return !queue(port).empty(); }
  bool send_ready(std::uint16_t) const { return true; }
  bool reached(std::uint32_t channel, std::uint32_t step, std::uint64_t tile) const {
    const Cursor& other = (*cursors_)[rank_][channel];
    return other.tile > tile || (other.tile == tile && other.step > step);
  }
  void apply(const Channel& channel, const Step& step, std::uint64_t) {
    std::uint32_t depth = 0;
    if (step.source.space != Space::kNone) depth = memory_[{rank_, step.source.space, step.source.chunk}];
    for (const std::uint16_t port : channel.receives(step)) {
      depth = std::max(depth, queue(port).front() + 1);
      queue(port).pop_front();
    }
    if (step.sink.space != Space::kNone) memory_[{rank_, step.sink.space, step.sink.chunk}] = depth;
    for (const std::uint16_t port : channel.sends(step)) queue(port).push_back(depth);
    most_ = std::max(most_, depth);
  }

 private:
  std::deque<std::uint32_t>& queue(std::uint16_t port) {
    const Port& end = channel_->ports[port];
    const bool sends = end.direction == Direction::kSend;
    return queues_[{sends ? rank_ : end.peer, sends ? end.peer : rank_, end.lane}];
  }

  const Plan& plan_;
  std::vector<std::vector<Cursor>>* cursors_ = nullptr;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint16_t>, std::deque<std::uint32_t>> queues_;
  std::map<std::tuple<std::uint32_t, Space, std::uint32_t>, std::uint32_t> memory_;
  std::uint32_t rank_ = 0;
  const Channel* channel_ = nullptr;
  std::uint32_t most_ = 0;
};

inline std::uint32_t rounds_of(const Plan& plan) { return Rounds(plan).run(); }

inline std::uint32_t log2_up(std::uint32_t ranks) {
  std::uint32_t rounds = 0;
  while ((std::uint64_t{1} << rounds) < ranks) ++rounds;
  return rounds;
}

}  // namespace tutti

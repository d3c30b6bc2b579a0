// The texts of spaces and orders (to_string()), ChannelBuilder, and build_plan().
#include "plan/plan.h"

#include <limits>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

constexpr std::size_t kMaxPorts = std::numeric_limits<std::uint16_t>::max();

}  // namespace

std::string_view to_string(Space space) {
  switch (space) {
    case Space::kNone: return "none";
    case Space::kInput: return "in";
    case Space::kOutput: return "out";
    case Space::kScratch: return "scratch";
  }
  return "invalid";
}

std::string_view to_string(Order order) {
  switch (order) {
    case Order::kAny: return "any order";
    case Order::kByRank: return "rank order";
    case Order::kCyclic: return "cyclic rank order";
  }
  return "invalid";
}

std::uint16_t ChannelBuilder::port(std::uint32_t peer, std::uint16_t lane, Direction direction) {
  const std::uint64_t key =
      (std::uint64_t{peer} << 32) | (std::uint64_t{lane} << 8) | static_cast<std::uint64_t>(direction);
  const auto index = static_cast<std::uint16_t>(channel_.ports.size());
  const auto [entry, added] = port_index_.try_emplace(key, index);
  if (added) {
    TUTTI_ASSERT(channel_.ports.size() < kMaxPorts, "a channel has at most {} ports", kMaxPorts);
    channel_.ports.push_back({.peer = peer, .lane = lane, .direction = direction});
  }
  return entry->second;
}

std::uint16_t ChannelBuilder::receive_from(std::uint32_t peer, std::uint16_t lane) {
  return port(peer, lane, Direction::kReceive);
}

std::uint16_t ChannelBuilder::send_to(std::uint32_t peer, std::uint16_t lane) {
  return port(peer, lane, Direction::kSend);
}

ChannelBuilder::StepBuilder ChannelBuilder::step() {
  channel_.steps.emplace_back().list_begin = static_cast<std::uint32_t>(channel_.lists.size());
  return StepBuilder(*this);
}

ChannelBuilder::StepBuilder& ChannelBuilder::StepBuilder::receive(std::uint16_t port) {
  Channel& channel = builder_.channel_;
  Step& step = channel.steps.back();
  TUTTI_ASSERT(port < channel.ports.size() && channel.ports[port].direction == Direction::kReceive);
  TUTTI_ASSERT(step.send_count == 0, "operands come before sends");
  channel.lists.push_back(port);
  ++step.receive_count;
  return *this;
}

ChannelBuilder::StepBuilder& ChannelBuilder::StepBuilder::local(Space space, std::uint32_t chunk) {
  Step& step = builder_.channel_.steps.back();
  TUTTI_ASSERT(space != Space::kNone && step.source.space == Space::kNone, "at most one local operand");
  step.source = {.space = space, .chunk = chunk};
  step.source_position = step.receive_count;
  return *this;
}

ChannelBuilder::StepBuilder& ChannelBuilder::StepBuilder::store(Space space, std::uint32_t chunk) {
  Step& step = builder_.channel_.steps.back();
  TUTTI_ASSERT(space != Space::kNone && space != Space::kInput && step.sink.space == Space::kNone, "at most one sink");
  step.sink = {.space = space, .chunk = chunk};
  return *this;
}

ChannelBuilder::StepBuilder& ChannelBuilder::StepBuilder::send(std::uint16_t port) {
  Channel& channel = builder_.channel_;
  TUTTI_ASSERT(port < channel.ports.size() && channel.ports[port].direction == Direction::kSend);
  channel.lists.push_back(port);
  ++channel.steps.back().send_count;
  return *this;
}

ChannelBuilder::StepBuilder& ChannelBuilder::StepBuilder::completes() {
  builder_.channel_.steps.back().completes = 1;
  return *this;
}

ChannelBuilder::StepBuilder& ChannelBuilder::StepBuilder::run(std::uint32_t chunks) {
  builder_.channel_.steps.back().run = chunks;
  return *this;
}

void ChannelBuilder::after(std::uint16_t other_channel, std::uint32_t other_step, std::uint16_t tiles_before) {
  TUTTI_ASSERT(!channel_.steps.empty());
  channel_.after.push_back(
      {.step = steps() - 1, .other_channel = other_channel, .tiles_before = tiles_before, .other_step = other_step});
}

Channel ChannelBuilder::build() && { return std::move(channel_); }

Plan build_plan(const Generator& generator) {
  Plan plan{.shape = generator.shape, .ranks = {}};
  plan.ranks.reserve(generator.shape.collective.ranks);
  for (std::uint32_t rank = 0; rank < generator.shape.collective.ranks; ++rank) {
    plan.ranks.push_back(generator.build(generator.shape, rank));
  }
  return plan;
}

}  // namespace tutti

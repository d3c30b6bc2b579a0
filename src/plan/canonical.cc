// canonical() renumbers the ports of each channel and sorts its waits. digest() hashes a plan.
#include "plan/canonical.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/mix_bits.h"

namespace tutti {
namespace {

constexpr std::uint16_t kNotUsed = 0xffff;

Channel canonical(const Channel& channel) {
  Channel result{.steps = channel.steps, .ports = {}, .lists = {}, .after = channel.after};
  std::vector<std::uint16_t> number(channel.ports.size(), kNotUsed);
  const auto append = [&](std::span<const std::uint16_t> ports) {
    for (const std::uint16_t port : ports) {
      if (number[port] == kNotUsed) {
        number[port] = static_cast<std::uint16_t>(result.ports.size());
        result.ports.push_back(channel.ports[port]);
      }
      result.lists.push_back(number[port]);
    }
  };
  for (std::size_t s = 0; s < channel.steps.size(); ++s) {
    result.steps[s].list_begin = static_cast<std::uint32_t>(result.lists.size());
    append(channel.receives(channel.steps[s]));
    append(channel.sends(channel.steps[s]));
  }
  std::sort(result.after.begin(), result.after.end(), [](const After& a, const After& b) {
    return std::tuple(a.step, a.other_channel, a.other_step, a.tiles_before) <
           std::tuple(b.step, b.other_channel, b.other_step, b.tiles_before);
  });
  return result;
}

// Combines numbers, one after another, into a 64-bit hash. Each bit of a number can change every bit of the state.
class Hash {
 public:
  void add(std::uint64_t number) { state_ = mix_bits(state_ * 0x9fb21c651e98df25u + number + 0x9e3779b97f4a7c15u); }
  void add(const Slice& slice) { add((static_cast<std::uint64_t>(slice.space) << 32) | slice.chunk); }
  std::uint32_t fold() const {
    const auto folded = static_cast<std::uint32_t>(state_ ^ (state_ >> 32));
    return folded == 0 ? 1 : folded;
  }

 private:
  std::uint64_t state_ = 0;
};

void add(Hash& hash, const PlanShape& shape) {
  for (const std::uint64_t number :
       {static_cast<std::uint64_t>(shape.collective.kind), std::uint64_t{shape.collective.ranks},
        std::uint64_t{shape.collective.root}, static_cast<std::uint64_t>(shape.algorithm), std::uint64_t{shape.chunks},
        std::uint64_t{shape.scratch_chunks}, std::uint64_t{shape.slots}, std::uint64_t{shape.lanes},
        static_cast<std::uint64_t>(shape.windows_in_place), static_cast<std::uint64_t>(shape.order)}) {
    hash.add(number);
  }
  if (shape.longest_run != 1) hash.add(shape.longest_run);
  hash.add(shape.collective.nodes.size());
  for (const std::uint32_t node : shape.collective.nodes) hash.add(node);
}

void add(Hash& hash, const Channel& channel) {
  hash.add(channel.steps.size());
  for (const Step& step : channel.steps) {
    hash.add(step.source);
    hash.add(step.sink);
    hash.add((std::uint64_t{step.receive_count} << 40) | (std::uint64_t{step.send_count} << 24) |
             (std::uint64_t{step.source_position} << 8) | step.completes);
    // Added only for a step with a run of several chunks, so that plans without such steps have the digests that they
    // had before runs were introduced.
    if (step.run != 1) hash.add(step.run);
  }
  hash.add(channel.ports.size());
  for (const Port& port : channel.ports) {
    hash.add((std::uint64_t{port.peer} << 32) | (std::uint64_t{port.lane} << 8) |
             static_cast<std::uint64_t>(port.direction));
  }
  hash.add(channel.lists.size());
  for (const std::uint16_t port : channel.lists) hash.add(port);
  hash.add(channel.after.size());
  for (const After& after : channel.after) {
    hash.add((std::uint64_t{after.step} << 32) | after.other_step);
    hash.add((std::uint64_t{after.other_channel} << 16) | after.tiles_before);
  }
}

}  // namespace

Plan canonical(const Plan& plan) {
  Plan result{.shape = plan.shape, .ranks = {}};
  result.shape.algorithm = Algorithm::kUser;
  result.ranks.resize(plan.ranks.size());
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    for (const Channel& channel : plan.ranks[rank].channels) result.ranks[rank].channels.push_back(canonical(channel));
  }
  return result;
}

std::uint32_t digest(const Plan& plan) {
  Hash hash;
  add(hash, plan.shape);
  for (const RankPlan& rank : plan.ranks) {
    hash.add(rank.channels.size());
    for (const Channel& channel : rank.channels) add(hash, channel);
  }
  return hash.fold();
}

}  // namespace tutti

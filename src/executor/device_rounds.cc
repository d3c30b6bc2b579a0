// DeviceRounds: simulates the plans of all ranks with counters of messages and credits.
#include "executor/device_rounds.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "base/assert.h"
#include "plan/windows.h"

namespace tutti {
namespace {

// A counter, and the value that it had at the barrier before the current round, which all launches of the round are
// certain to see.
struct Count {
  std::uint64_t now = 0;
  std::uint64_t seen = 0;
};

// A connection between two ranks, reduced to its numbers of messages.
struct Wire {
  Count sent;
  Count received;
  std::uint64_t messages_of_a_tile = 0;
  // Some message may be published, which means that the receiver reads it in the sender's memory.
  bool publishes = false;
};

// One channel of one rank.
struct Walker {
  const Channel* channel = nullptr;
  std::size_t first_of_rank = 0;     // index of the rank's first channel in walkers_
  std::vector<std::uint32_t> wires;  // indexed by port: index into wires_
  Count steps;                       // number of steps that have run, in all tiles together
};

// Simulates all channels of all ranks, round by round.
class Simulation {
 public:
  Simulation(const Generator& generator, std::uint32_t slots, std::uint32_t max_tiles);
  void run();

  // The results, indexed by tile; see DeviceRounds::ended_ and DeviceRounds::drained_.
  std::vector<std::uint64_t> ended, drained;

 private:
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint16_t>;  // sender, receiver, lane

  void add_channel(std::uint32_t rank, const Channel& channel, std::size_t first_of_rank,
                   std::map<Key, std::uint32_t>& found);
  bool can_run(const Walker& walker, const Step& step, std::span<const After> afters, std::uint64_t tile) const;
  void take(Walker& walker, const Step& step, std::uint64_t tile);
  bool walk(Walker& walker);

  const std::uint32_t slots_;
  std::vector<RankPlan> plans_;
  std::vector<Walker> walkers_;
  std::vector<Wire> wires_;
  std::uint64_t round_ = 0;
};

Simulation::Simulation(const Generator& generator, std::uint32_t slots, std::uint32_t max_tiles) : slots_(slots) {
  const std::uint32_t ranks = generator.shape.collective.ranks;
  TUTTI_ASSERT(slots >= generator.shape.slots, "the plan needs {} slots and has {}", generator.shape.slots, slots);
  TUTTI_ASSERT(max_tiles > 0);
  std::uint64_t steps = 1;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    plans_.push_back(generator.build(generator.shape, rank));
    for (const Channel& channel : plans_.back().channels) steps += channel.steps.size();
  }
  std::map<Key, std::uint32_t> found;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::size_t first = walkers_.size();
    for (const Channel& channel : plans_[rank].channels) add_channel(rank, channel, first, found);
  }
  const std::uint64_t tiles = std::clamp<std::uint64_t>(DeviceRounds::kMaxSteps / steps, 1, max_tiles);
  ended.assign(tiles, 1);
  drained.assign(tiles, 1);
}

void Simulation::add_channel(std::uint32_t rank, const Channel& channel, std::size_t first_of_rank,
                             std::map<Key, std::uint32_t>& found) {
  Walker& walker = walkers_.emplace_back();
  walker.channel = &channel;
  walker.first_of_rank = first_of_rank;
  for (const Port& port : channel.ports) {
    const bool sends = port.direction == Direction::kSend;
    const Key key{sends ? rank : port.peer, sends ? port.peer : rank, port.lane};
    const auto [at, added] = found.try_emplace(key, static_cast<std::uint32_t>(wires_.size()));
    if (added) wires_.emplace_back();
    walker.wires.push_back(at->second);
  }
  for (const Step& step : channel.steps) {
    for (const std::uint16_t port : channel.sends(step)) {
      Wire& wire = wires_[walker.wires[port]];
      ++wire.messages_of_a_tile;
      wire.publishes |= can_publish(step);
    }
  }
}

// Whether a step can run, by the conditions of Evaluator::prepare_step() (kernels/device/evaluate.h): its messages,
// credits and waits for other channels. Progress of other channels counts only from the next barrier on, even on
// the same rank, because their blocks may run after this one.
bool Simulation::can_run(const Walker& walker, const Step& step, std::span<const After> afters,
                         std::uint64_t tile) const {
  for (const std::uint16_t port : walker.channel->receives(step)) {
    const Wire& wire = wires_[walker.wires[port]];
    if (wire.sent.seen <= wire.received.now) return false;
  }
  for (const std::uint16_t port : walker.channel->sends(step)) {
    const Wire& wire = wires_[walker.wires[port]];
    if (wire.received.seen + slots_ <= wire.sent.now) return false;
  }
  return std::ranges::all_of(afters, [&](const After& after) {
    if (tile < after.tiles_before) return true;
    const Walker& other = walkers_[walker.first_of_rank + after.other_channel];
    return other.steps.seen > (tile - after.tiles_before) * other.channel->steps.size() + after.other_step;
  });
}

// Runs one step: counts the messages that it receives and those that it sends.
void Simulation::take(Walker& walker, const Step& step, std::uint64_t tile) {
  for (const std::uint16_t port : walker.channel->receives(step)) {
    Wire& wire = wires_[walker.wires[port]];
    ++wire.received.now;
    // The sender sees only in the next round that the last message of the tile on this connection was read.
    if (wire.publishes && wire.received.now == (tile + 1) * wire.messages_of_a_tile)
      drained[tile] = std::max(drained[tile], round_ + 1);
  }
  for (const std::uint16_t port : walker.channel->sends(step)) ++wires_[walker.wires[port]].sent.now;
  ++walker.steps.now;
}

// Simulates one launch for one channel, which runs as many steps as possible. Returns false if no step could run.
bool Simulation::walk(Walker& walker) {
  const Channel& channel = *walker.channel;
  const std::uint64_t step_count = channel.steps.size();
  const std::uint64_t before = walker.steps.now;
  while (walker.steps.now < step_count * ended.size()) {
    const std::uint64_t tile = walker.steps.now / step_count;
    const auto index = static_cast<std::uint32_t>(walker.steps.now % step_count);
    const auto before_step = [](const After& after, std::uint32_t step) { return after.step < step; };
    const auto first = std::lower_bound(channel.after.begin(), channel.after.end(), index, before_step);
    const auto last = std::lower_bound(first, channel.after.end(), index + 1, before_step);
    if (!can_run(walker, channel.steps[index], std::span(first, last), tile)) break;
    take(walker, channel.steps[index], tile);
    if (index + 1 == step_count) ended[tile] = std::max(ended[tile], round_);
  }
  return walker.steps.now > before;
}

void Simulation::run() {
  const auto open = [&](const Walker& walker) {
    return walker.steps.now < walker.channel->steps.size() * ended.size();
  };
  while (std::ranges::any_of(walkers_, open)) {
    ++round_;
    bool moved = false;
    for (Walker& walker : walkers_) moved |= walk(walker);
    TUTTI_ASSERT(moved, "the plan makes no progress in round {}", round_);
    for (Walker& walker : walkers_) walker.steps.seen = walker.steps.now;
    for (Wire& wire : wires_) {
      wire.sent.seen = wire.sent.now;
      wire.received.seen = wire.received.now;
    }
  }
  for (std::size_t tile = 0; tile < ended.size(); ++tile) {
    if (tile > 0) ended[tile] = std::max(ended[tile], ended[tile - 1]);
    drained[tile] = std::max({drained[tile], ended[tile], tile > 0 ? drained[tile - 1] : 0});
  }
}

}  // namespace

DeviceRounds::DeviceRounds(const Generator& generator, std::uint32_t slots, std::uint32_t max_tiles) {
  Simulation simulation(generator, slots, max_tiles);
  simulation.run();
  ended_ = std::move(simulation.ended);
  drained_ = std::move(simulation.drained);
}

std::uint64_t DeviceRounds::of(std::uint64_t tiles_per_slice, Draining draining) const {
  const std::vector<std::uint64_t>& by_tile = draining == Draining::kNothing ? ended_ : drained_;
  const std::uint64_t times = tiles_per_slice / by_tile.size();
  const std::uint64_t rest = tiles_per_slice % by_tile.size();
  if (times == 0) return rest == 0 ? 1 : by_tile[rest - 1];
  return times * by_tile.back() + (rest == 0 ? 0 : by_tile[rest - 1]);
}

}  // namespace tutti

#include "algorithms/compose.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

// The first and the last step of one channel that reads or stores one place; `steps` of them.
struct Span {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  std::uint32_t steps = 0;

  void add(std::uint32_t step) {
    if (steps++ == 0) first = step;
    last = step;
  }
};

struct Place {
  std::map<std::uint16_t, Span> reads;  // by channel
  std::map<std::uint16_t, Span> stores;
};

// Memory that is handed from step to step: (space, chunk) of scratch and output.
using Memory = std::map<std::pair<Space, std::uint32_t>, Place>;

Memory memory_of(const RankPlan& plan) {
  Memory memory;
  for (std::size_t index = 0; index < plan.channels.size(); ++index) {
    const auto c = static_cast<std::uint16_t>(index);
    const std::vector<Step>& steps = plan.channels[c].steps;
    for (std::uint32_t s = 0; s < steps.size(); ++s) {
      const auto handed_on = [](const Slice& slice) {
        return slice.space == Space::kScratch || slice.space == Space::kOutput;
      };
      const Slice& source = steps[s].source;
      const Slice& sink = steps[s].sink;
      if (handed_on(source)) memory[{source.space, source.chunk}].reads[c].add(s);
      if (handed_on(sink)) memory[{sink.space, sink.chunk}].stores[c].add(s);
    }
  }
  return memory;
}

void order_channels(RankPlan& plan) {
  for (const auto& [where, place] : memory_of(plan)) {
    TUTTI_ASSERT(place.stores.size() == 1, "{}[{}] is stored to by {} channels", to_string(where.first), where.second,
                 place.stores.size());
    const auto& [writer, stores] = *place.stores.begin();
    for (const auto& [reader, reads] : place.reads) {
      if (reader == writer) continue;
      plan.channels[reader].after.push_back(
          {.step = reads.first, .other_channel = writer, .tiles_before = 0, .other_step = stores.last});
      if (where.first != Space::kScratch) continue;
      plan.channels[writer].after.push_back(
          {.step = stores.first, .other_channel = reader, .tiles_before = 1, .other_step = reads.last});
    }
  }
  for (Channel& channel : plan.channels) {
    std::stable_sort(channel.after.begin(), channel.after.end(),
                     [](const After& a, const After& b) { return a.step < b.step; });
  }
}

// Appends the steps of one channel of a stage.
void append_channel(const Channel& stage, const Embedding& embedding, std::span<const std::uint32_t> first_steps,
                    ChannelBuilder& channel) {
  std::vector<std::uint16_t> ports;
  for (const Port& port : stage.ports) {
    const std::uint32_t peer = embedding.team.ranks[port.peer];
    const auto lane = static_cast<std::uint16_t>(embedding.first_lane + port.lane);
    ports.push_back(port.direction == Direction::kSend ? channel.send_to(peer, lane)
                                                       : channel.receive_from(peer, lane));
  }
  std::size_t after = 0;
  for (std::uint32_t s = 0; s < stage.steps.size(); ++s) {
    const Step& step = stage.steps[s];
    auto copy = channel.step();
    const std::span<const std::uint16_t> receives = stage.receives(step);
    for (std::size_t i = 0; i <= receives.size(); ++i) {
      if (step.source.space != Space::kNone && i == step.source_position) {
        const Slice source = embedding.place(step.source);
        copy.local(source.space, source.chunk);
      }
      if (i < receives.size()) copy.receive(ports[receives[i]]);
    }
    if (step.sink.space != Space::kNone) {
      const Slice sink = embedding.place(step.sink);
      copy.store(sink.space, sink.chunk);
    }
    if (step.completes != 0 && embedding.completes) copy.completes();
    for (const std::uint16_t port : stage.sends(step)) copy.send(ports[port]);
    for (; after < stage.after.size() && stage.after[after].step == s; ++after) {
      const After& wait = stage.after[after];
      channel.after(static_cast<std::uint16_t>(embedding.first_channel + wait.other_channel),
                    first_steps[wait.other_channel] + wait.other_step, wait.tiles_before);
    }
  }
}

}  // namespace

void Composer::append(const RankPlan& stage, const Embedding& embedding) {
  const std::size_t end = embedding.first_channel + stage.channels.size();
  if (channels_.size() < end) channels_.resize(end);
  std::vector<std::uint32_t> first_steps;
  for (std::size_t c = 0; c < stage.channels.size(); ++c) {
    first_steps.push_back(channels_[embedding.first_channel + c].steps());
  }
  for (std::size_t c = 0; c < stage.channels.size(); ++c) {
    append_channel(stage.channels[c], embedding, first_steps, channels_[embedding.first_channel + c]);
  }
}

RankPlan Composer::build() && {
  RankPlan plan;
  for (ChannelBuilder& channel : channels_) plan.channels.push_back(std::move(channel).build());
  order_channels(plan);
  return plan;
}

}  // namespace tutti

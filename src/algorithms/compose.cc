// append() copies the steps of a stage to the channels of the plan. build() then adds waits between channels that
// access the same slices of output or scratch.
#include "algorithms/compose.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/assert.h"

namespace tutti {
namespace {

// The first and the last step of one channel that read one slice, or that store to it (see Uses).
struct Span {
  std::uint16_t channel = 0;
  std::uint32_t first = 0;
  std::uint32_t last = 0;
};

// An index from slices to steps. With &Step::source it has, for each slice of output and scratch, the first and the
// last step of each channel that read the slice; with &Step::sink, those that store to it. Stages pass data through
// these slices. A place is the index of a slice in the order (space, chunk). Each place has one Span for each channel
// that uses it, in the order of the channels. The index is built by counting, in time proportional to the number of
// steps and chunks.
class Uses {
 public:
  Uses(const RankPlan& plan, Slice Step::*slice) : chunks_(chunks_of(plan)) {
    static_assert(Space::kOutput < Space::kScratch, "the order of the places");
    begins_.assign(places() + 1, 0);
    for_each(plan, slice, [&](std::size_t place, std::uint16_t, std::uint32_t) { ++begins_[place + 1]; });
    for (std::size_t place = 0; place < places(); ++place) begins_[place + 1] += begins_[place];
    spans_.resize(begins_.back());
    counts_.assign(places(), 0);
    for_each(plan, slice, [&](std::size_t place, std::uint16_t channel, std::uint32_t step) {
      std::uint32_t& count = counts_[place];
      Span* const last = count > 0 ? &spans_[begins_[place] + count - 1] : nullptr;
      if (last != nullptr && last->channel == channel) {
        last->last = step;
      } else {
        spans_[begins_[place] + count++] = {.channel = channel, .first = step, .last = step};
      }
    });
  }

  std::size_t places() const { return 2 * std::size_t{chunks_}; }
  Slice slice(std::size_t place) const {
    return {.space = place < chunks_ ? Space::kOutput : Space::kScratch,
            .chunk = static_cast<std::uint32_t>(place % chunks_)};
  }
  std::span<const Span> at(std::size_t place) const {
    return std::span(spans_).subspan(begins_[place], counts_[place]);
  }

 private:
  static bool handed_on(const Slice& slice) { return slice.space == Space::kScratch || slice.space == Space::kOutput; }

  static std::uint32_t chunks_of(const RankPlan& plan) {
    std::uint32_t most = 0;
    for (const Channel& channel : plan.channels) {
      for (const Step& step : channel.steps) {
        for (const Slice& slice : {step.source, step.sink}) {
          if (handed_on(slice)) most = std::max(most, slice.chunk + 1);
        }
      }
    }
    return most;
  }

  template <class Visit>
  void for_each(const RankPlan& plan, Slice Step::*member, Visit visit) const {
    for (std::size_t c = 0; c < plan.channels.size(); ++c) {
      const std::vector<Step>& steps = plan.channels[c].steps;
      for (std::uint32_t s = 0; s < steps.size(); ++s) {
        const Slice& slice = steps[s].*member;
        if (!handed_on(slice)) continue;
        const std::size_t place = slice.chunk + (slice.space == Space::kScratch ? chunks_ : 0);
        visit(place, static_cast<std::uint16_t>(c), s);
      }
    }
  }

  std::uint32_t chunks_;
  // Indexed by place: index in spans_ of the first span of the place. Each place has space for one span per step that
  // uses it. (It needs fewer if several steps are in one channel.)
  std::vector<std::uint32_t> begins_;
  std::vector<std::uint32_t> counts_;  // indexed by place: number of spans of the place
  std::vector<Span> spans_;
};

void order_channels(RankPlan& plan) {
  const Uses reads(plan, &Step::source);
  const Uses stores(plan, &Step::sink);
  for (std::size_t place = 0; place < stores.places(); ++place) {
    const std::span<const Span> readers = reads.at(place);
    const std::span<const Span> writers = stores.at(place);
    if (readers.empty() && writers.empty()) continue;
    const Slice where = stores.slice(place);
    TUTTI_ASSERT(writers.size() == 1, "{}[{}] is stored to by {} channels", to_string(where.space), where.chunk,
                 writers.size());
    const Span& writer = writers[0];
    for (const Span& reader : readers) {
      if (reader.channel == writer.channel) continue;
      plan.channels[reader.channel].after.push_back(
          {.step = reader.first, .other_channel = writer.channel, .tiles_before = 0, .other_step = writer.last});
      if (where.space != Space::kScratch) continue;
      plan.channels[writer.channel].after.push_back(
          {.step = writer.first, .other_channel = reader.channel, .tiles_before = 1, .other_step = reader.last});
    }
  }
  for (Channel& channel : plan.channels) {
    std::stable_sort(channel.after.begin(), channel.after.end(),
                     [](const After& a, const After& b) { return a.step < b.step; });
  }
}

// Appends the steps of one channel of a stage to `channel`, a channel of the plan. `first_steps` is indexed by channel
// of the stage: the number of steps that the corresponding channel of the plan had before this stage. It is added to
// the step numbers in the waits of the stage.
void append_channel(const Channel& stage, const Embedding& embedding, std::span<const std::uint32_t> first_steps,
                    ChannelBuilder& channel) {
  std::vector<std::uint16_t> ports;
  for (const Port& port : stage.ports) {
    const std::uint32_t peer = embedding.rank_of(port.peer);
    const auto lane = static_cast<std::uint16_t>(embedding.first_lane + port.lane);
    ports.push_back(port.direction == Direction::kSend ? channel.send_to(peer, lane)
                                                       : channel.receive_from(peer, lane));
  }
  std::size_t after = 0;
  for (std::uint32_t s = 0; s < stage.steps.size(); ++s) {
    const Step& step = stage.steps[s];
    TUTTI_ASSERT(step.run == 1, "a stage has a run of {} chunks", step.run);
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

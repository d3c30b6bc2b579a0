#include "executor/bytes.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"
#include "kernels/cpu/reduce.h"

namespace tutti {
namespace {
constexpr std::uint64_t kLeastPublished = 4096;  // bytes: a shorter value is copied sooner than its reading is awaited
constexpr std::uint64_t kStepsPerTurn = 64;      // of one channel before the next channel has its turn
}  // namespace

// The evaluator's domain of bytes, for one channel of this rank.
class Execution::Domain {
 public:
  Domain(Execution& execution, std::size_t channel)
      : execution_(execution), bound_(execution.plan_.channels[channel]) {}

  bool receive_ready(std::uint16_t port) {
    if (execution_.bad_) return false;  // the step before this one failed: nothing runs after it
    const Arrival arrival = bound_.ports[port].receive->arrival(execution_.call_.tag);
    if (arrival == Arrival::kMessage) return true;
    if (arrival != Arrival::kNothing) report(port, arrival);
    return false;
  }
  bool send_ready(std::uint16_t port) { return !execution_.bad_ && bound_.ports[port].send->ready(); }
  bool reached(std::uint16_t channel, std::uint32_t step, std::uint64_t tile) {
    const Cursor& cursor = execution_.cursors_[channel];
    return cursor.tile > tile || (cursor.tile == tile && cursor.step > step);
  }
  void apply(const Channel& channel, const Step& step, std::uint64_t tile);

 private:
  void report(std::uint16_t port, Arrival kind) {
    if (execution_.bad_) return;  // the first is the cause
    ReceiveConnection& connection = *bound_.ports[port].receive;
    execution_.bad_ = BadMessage{.peer = bound_.ports[port].peer, .kind = kind, .tag = connection.mismatched_tag()};
  }
  std::size_t element_bytes() const { return size_of(execution_.call_.type); }
  std::byte* address(const Slice& slice, std::uint64_t tile) const;
  WindowRef window(const Slice& slice, std::uint64_t tile) const;
  kernels::Reduction reduction(const Step& step) const;
  bool gather_operands(const Channel& channel, const Step& step, std::uint64_t tile, std::uint64_t bytes);
  bool may_publish(const Step& step, const kernels::Reduction& reduction, std::uint64_t bytes) const;
  bool published_operands_hold(const Channel& channel, const Step& step);
  Way way(const BoundPort& port, const SendRule& rule, const Step& step, std::uint64_t tile, bool may_publish) const;
  void post(const BoundPort& port, const Way& way, const Step& step, std::uint64_t tile, std::uint64_t bytes);

  Execution& execution_;
  const BoundChannel& bound_;
};

std::byte* Execution::Domain::address(const Slice& slice, std::uint64_t tile) const {
  if (slice.space == Space::kScratch) {
    return execution_.scratch_.data() + slice.chunk * execution_.tiling_->max_chunk_count() * element_bytes();
  }
  const std::uint64_t offset = execution_.extent(tile, slice.chunk).offset * element_bytes();
  // Inputs are only ever read; the cast spares a second path for sources.
  return (slice.space == Space::kInput ? const_cast<std::byte*>(execution_.call_.input) : execution_.call_.output) +
         offset;
}

WindowRef Execution::Domain::window(const Slice& slice, std::uint64_t tile) const {
  if (slice.space == Space::kScratch) return {};
  WindowRef place = slice.space == Space::kInput ? execution_.call_.input_window : execution_.call_.output_window;
  place.offset += execution_.extent(tile, slice.chunk).offset * element_bytes();
  return place;
}

kernels::Reduction Execution::Domain::reduction(const Step& step) const {
  const Call& call = execution_.call_;
  kernels::Reduction reduction{
      .type = call.type, .op = call.op, .scaled_source = -1, .scale = call.scale, .divisor = 1};
  if (call.op == ReduceOp::kPreMulSum && step.source.space == Space::kInput)
    reduction.scaled_source = step.source_position;
  if (call.op == ReduceOp::kAvg && step.completes != 0) reduction.divisor = call.ranks;
  return reduction;
}

// Fills sources_ in the stated order. False on a message that does not fit the step.
bool Execution::Domain::gather_operands(const Channel& channel, const Step& step, std::uint64_t tile,
                                        std::uint64_t bytes) {
  auto& sources = execution_.sources_;
  sources.clear();
  const auto receives = channel.receives(step);
  for (std::size_t i = 0; i <= receives.size(); ++i) {
    if (step.source.space != Space::kNone && i == step.source_position) sources.push_back(address(step.source, tile));
    if (i == receives.size()) break;
    const Message message = bound_.ports[receives[i]].receive->front();
    const bool delivered = message.carrier == Carrier::kDelivered;
    const bool may_be_delivered =
        receives.size() == 1 && step.source.space == Space::kNone && step.sink.space == Space::kOutput;
    if (message.bytes != bytes || (delivered && !may_be_delivered)) {
      report(receives[i], Arrival::kCorrupt);
      return false;
    }
    sources.push_back(delivered ? address(step.sink, tile) : message.data);
  }
  return true;
}

bool Execution::Domain::may_publish(const Step& step, const kernels::Reduction& reduction, std::uint64_t bytes) const {
  const bool modified = reduction.scaled_source >= 0 || reduction.divisor != 1;
  return step.receive_count == 0 && !modified && bytes >= kLeastPublished &&
         (!execution_.in_place_ || execution_.plan_.shape.windows_in_place);
}

Execution::Way Execution::Domain::way(const BoundPort& port, const SendRule& rule, const Step& step, std::uint64_t tile,
                                      bool may_publish) const {
  if (rule.carry == Carry::kPublish && may_publish && window(step.source, tile).window != 0) {
    return {.carrier = Carrier::kPublished, .destination = nullptr};
  }
  if (rule.unpublished == Carry::kPush && rule.peer_sink.space == Space::kOutput) {
    const Call& call = execution_.call_;
    const std::uint64_t whole_bytes = call.tag.count * element_bytes();
    // Not offered, or not known yet: a slot will do.
    std::byte* output = execution_.transport_.peer_output(port.peer, call.tag.sequence, whole_bytes).value_or(nullptr);
    if (output != nullptr) {
      const std::uint64_t offset = execution_.extent(tile, rule.peer_sink.chunk).offset * element_bytes();
      return {.carrier = Carrier::kDelivered, .destination = output + offset};
    }
  }
  return {.carrier = Carrier::kSlot, .destination = port.send->slot()};
}

void Execution::Domain::post(const BoundPort& port, const Way& way, const Step& step, std::uint64_t tile,
                             std::uint64_t bytes) {
  switch (way.carrier) {
    case Carrier::kSlot: return port.send->send_slot(bytes, execution_.call_.tag);
    case Carrier::kDelivered: return port.send->send_delivered(bytes, execution_.call_.tag);
    case Carrier::kPublished: break;
  }
  port.send->send_published(window(step.source, tile), bytes, execution_.call_.tag);
  auto& drains = execution_.published_to_;
  if (std::find(drains.begin(), drains.end(), port.send) == drains.end()) drains.push_back(port.send);
}

// Looked at after the reads. False (and reported) when a peer gave the call up meanwhile.
bool Execution::Domain::published_operands_hold(const Channel& channel, const Step& step) {
  for (const std::uint16_t port : channel.receives(step)) {
    const BoundPort& from = bound_.ports[port];
    if (from.receive->front().carrier != Carrier::kPublished) continue;
    if (!execution_.transport_.peer_has_left(from.peer, execution_.call_.tag.sequence)) continue;
    report(port, Arrival::kWithdrawn);
    return false;
  }
  return true;
}

void Execution::Domain::apply(const Channel& channel, const Step& step, std::uint64_t tile) {
  // A step that only passes a value on takes its length from the message.
  const std::uint64_t bytes =
      step.source.space != Space::kNone ? execution_.extent(tile, step.source.chunk).count * element_bytes()
      : step.sink.space != Space::kNone ? execution_.extent(tile, step.sink.chunk).count * element_bytes()
                                        : bound_.ports[channel.receives(step)[0]].receive->front().bytes;
  if (!gather_operands(channel, step, tile, bytes)) return;
  kernels::Reduction how = reduction(step);
  const auto& sources = execution_.sources_;
  auto& destinations = execution_.destinations_;
  destinations.clear();
  const bool already_there = step.sink.space != Space::kNone && sources.size() == 1 && step.receive_count == 1 &&
                             sources[0] == address(step.sink, tile);  // delivered
  if (step.sink.space != Space::kNone && !already_there) destinations.push_back(address(step.sink, tile));
  const bool publishable = may_publish(step, how, bytes);
  auto& ways = execution_.ways_;
  bool to_slots = false;
  ways.clear();
  const std::size_t first_send = step.list_begin + step.receive_count;
  for (std::size_t i = first_send; i < first_send + step.send_count; ++i) {
    ways.push_back(way(bound_.ports[channel.lists[i]], bound_.rules[i], step, tile, publishable));
    to_slots |= ways.back().carrier == Carrier::kSlot;
    if (ways.back().destination != nullptr) destinations.push_back(ways.back().destination);
  }
  // A slot is read again at once; users' buffers when the rest of all ranks' messages has gone through the caches.
  if (!to_slots) how.bytes_until_reuse = execution_.call_.tag.count * element_bytes() * execution_.call_.ranks;
  if (!destinations.empty() && bytes > 0) kernels::reduce(how, sources, destinations, bytes / element_bytes());
  if (!published_operands_hold(channel, step)) return;
  // Released before the results go out, so that a peer which has the result also sees that its memory is free again.
  for (const std::uint16_t port : channel.receives(step)) bound_.ports[port].receive->release();
  for (std::size_t i = first_send; i < first_send + step.send_count; ++i) {
    post(bound_.ports[channel.lists[i]], ways[i - first_send], step, tile, bytes);
  }
}

Execution::Execution(const BoundPlan& plan, Transport& transport) : plan_(plan), transport_(transport) {
  cursors_.resize(plan.channels.size());
  published_to_.reserve(plan.most_sends * plan.channels.size());
  sources_.reserve(plan.most_operands);
  destinations_.reserve(plan.most_sends + 1);
  ways_.reserve(plan.most_sends);
}

Execution::~Execution() = default;

void Execution::start(const Call& call) {
  call_ = call;
  in_place_ = call.input == call.output;
  tiling_.emplace(call.tag.count, size_of(call.type), plan_.shape.chunks, call.tag.tile_bytes);
  tiles_ = std::max<std::uint64_t>(tiling_->tiles(), 1);
  std::fill(cursors_.begin(), cursors_.end(), Cursor{});
  published_to_.clear();
  bad_.reset();
  if (plan_.shape.scratch_chunks > 0) {
    scratch_.resize(plan_.shape.scratch_chunks * tiling_->max_chunk_count() * size_of(call.type));
  }
}

Extent Execution::extent(std::uint64_t tile, std::uint32_t chunk) const {
  return call_.tag.count == 0 ? Extent{} : tiling_->extent(tile, chunk);
}

bool Execution::progress() {
  bool moved = false;
  for (std::size_t c = 0; c < cursors_.size() && !bad_; ++c) {
    Domain domain(*this, c);
    moved |= advance(plan_.program.channels[c], cursors_[c], tiles_, kStepsPerTurn, domain) > 0;
  }
  return moved;
}

bool Execution::done() {
  if (bad_) return false;
  for (const Cursor& cursor : cursors_) {
    if (!finished(cursor, tiles_)) return false;
  }
  return std::all_of(published_to_.begin(), published_to_.end(), [](SendConnection* to) { return to->drained(); });
}

std::string Execution::waits_for() {
  std::string text;
  for (std::size_t c = 0; c < cursors_.size(); ++c) {
    const Cursor& cursor = cursors_[c];
    const Channel& channel = plan_.program.channels[c];
    if (finished(cursor, tiles_)) continue;
    const Step& step = channel.steps[cursor.step];
    text += fmt::format("{}channel {} step {} of {}, tile {} of {}", text.empty() ? "" : "; ", c, cursor.step,
                        channel.steps.size(), cursor.tile, tiles_);
    for (const std::uint16_t port : channel.receives(step)) {
      const BoundPort& from = plan_.channels[c].ports[port];
      if (from.receive->arrival(call_.tag) == Arrival::kNothing)
        text += fmt::format(", no message from rank {}", from.peer);
    }
    for (const std::uint16_t port : channel.sends(step)) {
      const BoundPort& to = plan_.channels[c].ports[port];
      if (!to.send->ready()) text += fmt::format(", no credit from rank {}", to.peer);
    }
  }
  return text.empty() ? "peers have yet to read this rank's memory" : text;
}

}  // namespace tutti

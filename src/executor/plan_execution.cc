#include "executor/plan_execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/assert.h"
#include "kernels/cpu/reduce.h"

namespace tutti {
namespace {
constexpr std::uint64_t kLeastPublished = 4096;  // bytes: a shorter value is copied sooner than its reading is awaited
constexpr std::uint64_t kStepsPerTurn = 64;      // of one channel before the next channel has its turn

kernels::Reduction copying() {
  kernels::Reduction how;
  how.type = DataType::kUint8;
  return how;
}
}  // namespace

// The evaluator's domain of bytes, for one channel of this rank.
class PlanExecution::Domain {
 public:
  Domain(PlanExecution& execution, std::size_t channel)
      : plan_execution_(execution),
        program_(execution.plan_.program.channels[channel]),
        bound_(execution.plan_.channels[channel]),
        cursor_(execution.cursors_[channel]) {}

  bool receive_ready(std::uint16_t port) {
    if (plan_execution_.bad_) return false;  // the step before this one failed: nothing runs after it
    const BoundPort& from = bound_.ports[port];
    const Arrival arrival =
        from.receive->arrival(plan_execution_.call_.tag, from.by_memory ? place() : std::span<std::byte>());
    if (arrival == Arrival::kMessage) return true;
    if (arrival != Arrival::kNothing) report(port, arrival);
    return false;
  }
  bool send_ready(std::uint16_t port) { return !plan_execution_.bad_ && bound_.ports[port].send->ready(); }
  bool reached(std::uint16_t channel, std::uint32_t step, std::uint64_t tile) {
    const Cursor& cursor = plan_execution_.cursors_[channel];
    return cursor.tile > tile || (cursor.tile == tile && cursor.step > step);
  }
  void apply(const Channel& channel, const Step& step, std::uint64_t tile);

 private:
  void report(std::uint16_t port, Arrival kind) {
    if (plan_execution_.bad_) return;  // the first is the cause
    ReceiveConnection& connection = *bound_.ports[port].receive;
    plan_execution_.bad_ = BadMessage{.peer = bound_.ports[port].peer,
                                      .kind = kind,
                                      .tag = connection.mismatched_tag(),
                                      .damage = connection.damage(),
                                      .loss = connection.loss()};
  }
  std::size_t element_bytes() const { return plan_execution_.call_.element_bytes; }
  Extent extent(const Slice& slice, std::uint64_t tile) const {
    return slice.space == Space::kInput ? plan_execution_.layout_->input(tile, slice.chunk)
                                        : plan_execution_.layout_->output(tile, slice.chunk);
  }
  std::span<std::byte> place();
  std::uint64_t bytes_of(const Channel& channel, const Step& step, std::uint64_t tile) const;
  void combine(const kernels::Reduction& how, std::uint64_t bytes);
  std::byte* address(const Slice& slice, std::uint64_t tile) const;
  WindowRef window(const Slice& slice, std::uint64_t tile) const;
  kernels::Reduction reduction(const Step& step) const;
  bool gather_operands(const Channel& channel, const Step& step, std::uint64_t tile, std::uint64_t bytes);
  bool may_publish(const Step& step, const kernels::Reduction& reduction, std::uint64_t bytes) const;
  bool published_operands_hold(const Channel& channel, const Step& step);
  struct Value {
    bool may_publish;       // it is one slice of this rank's memory, as it stands there
    bool stands_in_memory;  // or will, once the step has stored it
  };
  Way way(const BoundPort& port, const SendRule& rule, const Step& step, std::uint64_t tile, const Value& value) const;
  void aim(const BoundPort& port, const SendRule& rule, std::uint64_t tile) const;
  void post(const BoundPort& port, const Way& way, const Step& step, std::uint64_t tile, std::uint64_t bytes);

  PlanExecution& plan_execution_;
  const Channel& program_;
  const BoundChannel& bound_;
  const Cursor& cursor_;
};

// Where the step at hand would store its one received value; nothing when it does more than that, or may not do it yet.
std::span<std::byte> PlanExecution::Domain::place() {
  const Step& step = program_.steps[cursor_.step];
  if (!can_push(step)) return {};
  for (const std::uint16_t port : program_.sends(step)) {
    if (!send_ready(port)) return {};
  }
  const std::uint64_t most = step.sink.space == Space::kScratch ? plan_execution_.layout_->max_chunk_count()
                                                                : extent(step.sink, cursor_.tile).count;
  return {address(step.sink, cursor_.tile), most * element_bytes()};
}

std::byte* PlanExecution::Domain::address(const Slice& slice, std::uint64_t tile) const {
  if (slice.space == Space::kScratch) {
    return plan_execution_.scratch_.data() + slice.chunk * plan_execution_.layout_->max_chunk_count() * element_bytes();
  }
  const std::uint64_t offset = extent(slice, tile).offset * element_bytes();
  // Inputs are only ever read; the cast spares a second path for sources.
  return (slice.space == Space::kInput ? const_cast<std::byte*>(plan_execution_.call_.input)
                                       : plan_execution_.call_.output) +
         offset;
}

WindowRef PlanExecution::Domain::window(const Slice& slice, std::uint64_t tile) const {
  if (slice.space == Space::kScratch) return {};
  WindowRef place =
      slice.space == Space::kInput ? plan_execution_.call_.input_window : plan_execution_.call_.output_window;
  place.offset += extent(slice, tile).offset * element_bytes();
  return place;
}

// The length of the step's value: that of its slice of input or output, else of the value in scratch, else of the
// message that it passes on.
std::uint64_t PlanExecution::Domain::bytes_of(const Channel& channel, const Step& step, std::uint64_t tile) const {
  if (step.source.space == Space::kScratch) return plan_execution_.scratch_bytes_[step.source.chunk];
  if (step.source.space != Space::kNone) return extent(step.source, tile).count * element_bytes();
  if (step.sink.space == Space::kOutput) return extent(step.sink, tile).count * element_bytes();
  return bound_.ports[channel.receives(step)[0]].receive->front().bytes;
}

kernels::Reduction PlanExecution::Domain::reduction(const Step& step) const {
  const Call& call = plan_execution_.call_;
  if (call.user.combine != nullptr) return copying();
  kernels::Reduction reduction{
      .type = call.type, .op = call.op, .scaled_source = -1, .scale = call.scale, .divisor = 1};
  if (call.op == ReduceOp::kPreMulSum && step.source.space == Space::kInput)
    reduction.scaled_source = step.source_position;
  if (call.op == ReduceOp::kAvg && step.completes != 0) {
    reduction.divisor = plan_execution_.plan_.shape.collective.ranks;
  }
  return reduction;
}

// Fills sources_ in the stated order. False on a message that does not fit the step.
bool PlanExecution::Domain::gather_operands(const Channel& channel, const Step& step, std::uint64_t tile,
                                            std::uint64_t bytes) {
  auto& sources = plan_execution_.sources_;
  sources.clear();
  const auto receives = channel.receives(step);
  for (std::size_t i = 0; i <= receives.size(); ++i) {
    if (step.source.space != Space::kNone && i == step.source_position) sources.push_back(address(step.source, tile));
    if (i == receives.size()) break;
    const Message message = bound_.ports[receives[i]].receive->front();
    const bool delivered = message.carrier == Carrier::kDelivered;
    const bool may_be_delivered =
        receives.size() == 1 && step.source.space == Space::kNone && step.sink.space != Space::kNone;
    const bool fits =
        step.sink.space != Space::kScratch || bytes <= plan_execution_.layout_->max_chunk_count() * element_bytes();
    const bool elsewhere = message.landing && (step.sink.space != Space::kOutput ||
                                               *message.landing != extent(step.sink, tile).offset * element_bytes());
    if (message.bytes != bytes || !fits || (delivered && !may_be_delivered) || elsewhere) {
      report(receives[i], Arrival::kCorrupt);
      return false;
    }
    sources.push_back(delivered ? address(step.sink, tile) : message.data);
  }
  return true;
}

bool PlanExecution::Domain::may_publish(const Step& step, const kernels::Reduction& reduction,
                                        std::uint64_t bytes) const {
  const bool modified = reduction.scaled_source >= 0 || reduction.divisor != 1;
  return step.receive_count == 0 && !modified && bytes >= kLeastPublished &&
         (!plan_execution_.call_.in_place || plan_execution_.plan_.shape.windows_in_place);
}

// Whether the peer means the same call: its output is as long as it says, whatever else lies in that memory.
bool PlanExecution::agrees_with(std::uint32_t peer) {
  std::uint64_t& agreed = agreed_[peer];
  if (agreed == call_.tag.sequence) return true;
  if (transport_.peer_call(peer, call_.tag.sequence) != call_.tag) return false;
  agreed = call_.tag.sequence;
  return true;
}

PlanExecution::Way PlanExecution::Domain::way(const BoundPort& port, const SendRule& rule, const Step& step,
                                              std::uint64_t tile, const Value& value) const {
  if (rule.carrier == Carrier::kPublished && value.may_publish && window(step.source, tile).window != 0) {
    return {.carrier = Carrier::kPublished};
  }
  if (rule.unpublished == Carrier::kDelivered && rule.peer_sink.space == Space::kOutput) {
    const Layout& layout = *plan_execution_.layout_;
    const std::uint64_t whole_bytes =
        layout.length(output_blocks(plan_execution_.plan_.shape.collective, port.peer)) * element_bytes();
    // Not offered, or not known yet: a slot will do.
    std::byte* output =
        plan_execution_.transport_.peer_output(port.peer, plan_execution_.call_.tag.sequence, whole_bytes)
            .value_or(nullptr);
    if (output != nullptr && plan_execution_.agrees_with(port.peer)) {
      const std::uint64_t offset = layout.output_of(port.peer, tile, rule.peer_sink.chunk).offset * element_bytes();
      return {.carrier = Carrier::kDelivered, .from_memory = false, .destination = output + offset};
    }
  }
  if (rule.answers != kNoPort && port.send->can_reply()) {
    const Message over = bound_.ports[rule.answers].receive->front();
    if (over.carrier == Carrier::kSlot) {  // in the peer's slot, which it will not use before it has read this
      return {.carrier = Carrier::kReplied, .destination = const_cast<std::byte*>(over.data), .over = over};
    }
  }
  if (port.by_memory && value.stands_in_memory) return {.carrier = Carrier::kSlot, .from_memory = true};
  return {.carrier = Carrier::kSlot, .from_memory = false, .destination = port.send->slot()};
}

// What a peer would store to its output unchanged is written there by the network, if the peer has shown it.
void PlanExecution::Domain::aim(const BoundPort& port, const SendRule& rule, std::uint64_t tile) const {
  if (rule.unpublished != Carrier::kDelivered || rule.peer_sink.space != Space::kOutput) return;
  if (plan_execution_.transport_.peer_has_left(port.peer, plan_execution_.call_.tag.sequence))
    return;  // it has given up
  const Layout& layout = *plan_execution_.layout_;
  const Blocks blocks = output_blocks(plan_execution_.plan_.shape.collective, port.peer);
  port.send->aim(plan_execution_.call_.tag, layout.length(blocks) * element_bytes(),
                 layout.output_of(port.peer, tile, rule.peer_sink.chunk).offset * element_bytes());
}

void PlanExecution::Domain::post(const BoundPort& port, const Way& way, const Step& step, std::uint64_t tile,
                                 std::uint64_t bytes) {
  switch (way.carrier) {
    case Carrier::kSlot:
      if (!way.from_memory) return port.send->send_slot(bytes, plan_execution_.call_.tag);
      return port.send->send_from(address(step.sink.space != Space::kNone ? step.sink : step.source, tile), bytes,
                                  plan_execution_.call_.tag);
    case Carrier::kDelivered: return port.send->send_delivered(bytes, plan_execution_.call_.tag);
    case Carrier::kReplied: return port.send->send_reply(way.over, plan_execution_.call_.tag);
    case Carrier::kPublished: break;
  }
  port.send->send_published(window(step.source, tile), bytes, plan_execution_.call_.tag);
  auto& drains = plan_execution_.published_to_;
  if (std::find(drains.begin(), drains.end(), port.send) == drains.end()) drains.push_back(port.send);
}

// Looked at after the reads. False (and reported) when a peer gave the call up meanwhile.
bool PlanExecution::Domain::published_operands_hold(const Channel& channel, const Step& step) {
  for (const std::uint16_t port : channel.receives(step)) {
    const BoundPort& from = bound_.ports[port];
    if (from.receive->front().carrier != Carrier::kPublished) continue;
    if (!plan_execution_.transport_.peer_has_left(from.peer, plan_execution_.call_.tag.sequence)) continue;
    report(port, Arrival::kWithdrawn);
    return false;
  }
  return true;
}

// Sources to destinations: by the kernels, or by the caller's own function from left to right.
void PlanExecution::Domain::combine(const kernels::Reduction& how, std::uint64_t bytes) {
  const auto& sources = plan_execution_.sources_;
  const auto& destinations = plan_execution_.destinations_;
  const UserReduction& user = plan_execution_.call_.user;
  if (user.combine == nullptr) return kernels::reduce(how, sources, destinations, bytes / element_bytes());
  const std::byte* sum = sources[0];
  for (std::size_t i = 1; i < sources.size(); ++i) {
    user.combine(sum, sources[i], plan_execution_.sum_.data(), bytes / element_bytes(), user.context);
    sum = plan_execution_.sum_.data();
  }
  kernels::reduce(how, std::span(&sum, 1), destinations, bytes);
}

void PlanExecution::Domain::apply(const Channel& channel, const Step& step, std::uint64_t tile) {
  const std::uint64_t bytes = bytes_of(channel, step, tile);
  if (!gather_operands(channel, step, tile, bytes)) return;
  kernels::Reduction how = reduction(step);
  const auto& sources = plan_execution_.sources_;
  auto& destinations = plan_execution_.destinations_;
  destinations.clear();
  const bool already_there = step.sink.space != Space::kNone && sources.size() == 1 && step.receive_count == 1 &&
                             sources[0] == address(step.sink, tile);  // delivered
  if (step.sink.space != Space::kNone && !already_there) destinations.push_back(address(step.sink, tile));
  const bool unmodified = sources.size() == 1 && how.scaled_source < 0 && how.divisor == 1;
  const Value value{.may_publish = may_publish(step, how, bytes),
                    .stands_in_memory = step.sink.space != Space::kNone || (unmodified && step.receive_count == 0)};
  auto& ways = plan_execution_.ways_;
  bool to_slots = false;
  ways.clear();
  const std::size_t first_send = step.list_begin + step.receive_count;
  for (std::size_t i = first_send; i < first_send + step.send_count; ++i) {
    ways.push_back(way(bound_.ports[channel.lists[i]], bound_.rules[i], step, tile, value));
    to_slots |=
        (ways.back().carrier == Carrier::kSlot && !ways.back().from_memory) || ways.back().carrier == Carrier::kReplied;
    if (ways.back().destination != nullptr) destinations.push_back(ways.back().destination);
  }
  // A slot is read again at once; users' buffers when the rest of all ranks' messages has gone through the caches.
  if (!to_slots) {
    how.bytes_until_reuse =
        plan_execution_.call_.tag.count * element_bytes() * plan_execution_.plan_.shape.collective.ranks;
  }
  if (!destinations.empty() && bytes > 0) combine(how, bytes);
  if (step.sink.space == Space::kScratch) plan_execution_.scratch_bytes_[step.sink.chunk] = bytes;
  if (!published_operands_hold(channel, step)) return;
  // Released before the results go out, so that a peer which has the result also sees that its memory is free again.
  for (const std::uint16_t port : channel.receives(step)) bound_.ports[port].receive->release();
  for (std::size_t i = first_send; i < first_send + step.send_count; ++i) {
    const BoundPort& port = bound_.ports[channel.lists[i]];
    if (bytes >= port.least_aimed) aim(port, bound_.rules[i], tile);
    post(port, ways[i - first_send], step, tile, bytes);
  }
}

PlanExecution::PlanExecution(const BoundPlan& plan, Transport& transport) : plan_(plan), transport_(transport) {
  agreed_.resize(plan.shape.collective.ranks);
  cursors_.resize(plan.channels.size());
  published_to_.reserve(plan.most_sends * plan.channels.size());
  sources_.reserve(plan.most_operands);
  destinations_.reserve(plan.most_sends + 1);
  ways_.reserve(plan.most_sends);
}

PlanExecution::~PlanExecution() = default;

void PlanExecution::start(const Call& call) {
  call_ = call;
  layout_.emplace(plan_.shape, plan_.rank, call.lengths, call.element_bytes, call.tag.tile_bytes);
  std::fill(cursors_.begin(), cursors_.end(), Cursor{});
  published_to_.clear();
  bad_.reset();
  const std::size_t chunk_bytes = layout_->max_chunk_count() * call.element_bytes;
  if (plan_.shape.scratch_chunks > 0) {
    scratch_.resize(plan_.shape.scratch_chunks * chunk_bytes);
    scratch_bytes_.assign(plan_.shape.scratch_chunks, 0);
  }
  if (call.user.combine != nullptr) sum_.resize(chunk_bytes);
  shown_ = false;
  show_output();
}

// The rules of plan/windows.h are the same whoever writes there: the peer, or its network card.
void PlanExecution::show_output() {
  if (call_.in_place && !plan_.shape.windows_in_place) return;
  if (!call_.lengths.displacements.empty()) return;  // of which peers do not know
  const std::uint64_t longest = layout_->max_chunk_count() * call_.element_bytes;
  const std::uint64_t bytes = layout_->length(output_blocks(plan_.shape.collective, plan_.rank)) * call_.element_bytes;
  for (const BoundChannel& channel : plan_.channels) {
    for (const BoundPort& port : channel.ports) {
      if (port.pushed && longest >= port.least_aimed)
        shown_ |= port.receive->show_output(call_.tag, {call_.output, bytes});
    }
  }
}

bool PlanExecution::recall_output(std::uint32_t peer) {
  bool recalled = true;
  for (const BoundChannel& channel : plan_.channels) {
    for (const BoundPort& port : channel.ports) {
      if (port.pushed && port.peer == peer) recalled &= port.receive->recall_output();
    }
  }
  return recalled;
}

void PlanExecution::hide_output(bool gave_up) {
  if (!std::exchange(shown_, false)) return;
  for (const BoundChannel& channel : plan_.channels) {
    for (const BoundPort& port : channel.ports) {
      if (port.pushed) port.receive->hide_output(gave_up);
    }
  }
}

bool PlanExecution::progress() {
  bool moved = false;
  for (std::size_t c = 0; c < cursors_.size() && !bad_; ++c) {
    Domain domain(*this, c);
    moved |= advance(plan_.program.channels[c], cursors_[c], layout_->tiles(), kStepsPerTurn, domain) > 0;
  }
  transport_.flush();
  return moved;
}

bool PlanExecution::done() {
  if (bad_) return false;
  for (const Cursor& cursor : cursors_) {
    if (!finished(cursor, layout_->tiles())) return false;
  }
  // Only this plan's own connections count: a peer that does not read what another call sends it holds up nobody else.
  for (const BoundChannel& channel : plan_.channels) {
    for (const BoundPort& port : channel.ports) {
      if (port.lingers && !port.send->handed_over()) return false;
    }
  }
  return std::all_of(published_to_.begin(), published_to_.end(), [](SendConnection* to) { return to->drained(); });
}

std::string PlanExecution::waits_for() {
  std::string text;
  for (std::size_t c = 0; c < cursors_.size(); ++c) {
    const Cursor& cursor = cursors_[c];
    const Channel& channel = plan_.program.channels[c];
    if (finished(cursor, layout_->tiles())) continue;
    const Step& step = channel.steps[cursor.step];
    text += fmt::format("{}channel {} step {} of {}, tile {} of {}", text.empty() ? "" : "; ", c, cursor.step,
                        channel.steps.size(), cursor.tile, layout_->tiles());
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
  return text.empty() ? "peers have yet to read what this rank has for them" : text;
}

std::vector<std::uint32_t> PlanExecution::waits_for_ranks() {
  std::set<std::uint32_t> ranks;
  for (std::size_t c = 0; c < cursors_.size(); ++c) {
    const Channel& channel = plan_.program.channels[c];
    if (finished(cursors_[c], layout_->tiles())) continue;
    const Step& step = channel.steps[cursors_[c].step];
    for (const std::uint16_t port : channel.receives(step)) {
      const BoundPort& from = plan_.channels[c].ports[port];
      if (from.receive->arrival(call_.tag) == Arrival::kNothing) ranks.insert(from.peer);
    }
    for (const std::uint16_t port : channel.sends(step)) {
      const BoundPort& to = plan_.channels[c].ports[port];
      if (!to.send->ready()) ranks.insert(to.peer);
    }
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace tutti

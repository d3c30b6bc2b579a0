// PlanExecution: moves the bytes of each step of a plan. plan_runs.cc does this for steps with a run of several chunks.
#include "executor/plan_execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "executor/plan_domain.h"

namespace tutti {
namespace {
constexpr std::uint64_t kStepsPerTurn = 64;  // maximum number of steps in one turn of a channel

kernels::Reduction copying() {
  kernels::Reduction how;
  how.type = DataType::kUint8;
  return how;
}
}  // namespace

// If the current step only stores one received value to the output (and perhaps forwards it), returns the memory of
// that output chunk, so that the connection can deliver the message there. Returns an empty span if the step does more
// than that, or cannot run yet because a send has no credit.
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
  const std::uint64_t offset = slice.space == Space::kScratch ? slice.chunk * plan_execution_.layout_->max_chunk_count()
                                                              : extent(slice, tile).offset;
  return buffer_of(slice.space) + offset * element_bytes();
}

WindowRef PlanExecution::Domain::window(const Slice& slice, std::uint64_t tile) const {
  if (slice.space == Space::kScratch) return {};
  WindowRef place =
      slice.space == Space::kInput ? plan_execution_.call_.input_window : plan_execution_.call_.output_window;
  place.offset += extent(slice, tile).offset * element_bytes();
  return place;
}

// The length of the step's value in bytes. It is that of the local operand if the step has one: the value in a
// scratch chunk, or a slice of the input or output. Otherwise it is the length of the slice of the output that the step
// stores to or, if the step stores to none, of the first message that it receives.
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

// Fills sources_ with the addresses of the operands, in the order of the plan. If a message does not fit the step,
// reports it as kCorrupt and returns false.
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
    const bool elsewhere =
        message.output_offset && (step.sink.space != Space::kOutput ||
                                  *message.output_offset != extent(step.sink, tile).offset * element_bytes());
    if (message.bytes != bytes || !fits || (delivered && !may_be_delivered) || elsewhere) {
      report(receives[i], Arrival::kCorrupt);
      return false;
    }
    sources.push_back(delivered ? address(step.sink, tile) : message.data);
  }
  return true;
}

// Whether receivers may read the step's value in this rank's memory: the value must be one unmodified slice of at
// least kLeastPublished bytes, and the call must not overwrite it. An in-place call may overwrite it, unless
// PlanShape::windows_in_place is true.
bool PlanExecution::Domain::may_publish(const Step& step, const kernels::Reduction& reduction,
                                        std::uint64_t bytes) const {
  const bool modified = reduction.scaled_source >= 0 || reduction.divisor != 1;
  return step.receive_count == 0 && !modified && bytes >= kLeastPublished &&
         (!plan_execution_.call_.in_place || plan_execution_.plan_.shape.windows_in_place);
}

// Chooses the way to send a value through one port, the first of these that is possible: publish it, store it into
// the peer's output (delivered), overwrite a received message as a reply, send it from memory, write it into a
// slot.
PlanExecution::SendMethod PlanExecution::Domain::send_method(const BoundPort& port, const SendRule& rule,
                                                             const Step& step, std::uint64_t tile,
                                                             const Value& value) const {
  if (rule.carrier == Carrier::kPublished && value.may_publish && window(step.source, tile).window != 0) {
    return {.carrier = Carrier::kPublished};
  }
  if (rule.unpublished == Carrier::kDelivered && rule.peer_sink.space == Space::kOutput) {
    const Layout& layout = *plan_execution_.layout_;
    const std::uint64_t whole_bytes =
        layout.length(output_blocks(plan_execution_.plan_.shape.collective, port.peer)) * element_bytes();
    // `output` is null if this rank cannot store there, for example because the peer does not offer its output, or if
    // that is not known yet. One of the ways below is used in that case.
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
    // Only a message in a slot can be overwritten, because a published one is in a buffer of the peer's program. The
    // peer puts no new message into that slot before it has read the reply (plan/replies.h).
    if (over.carrier == Carrier::kSlot) {
      return {.carrier = Carrier::kReplied, .destination = const_cast<std::byte*>(over.data), .over = over};
    }
  }
  if (port.by_memory && value.stands_in_memory) return {.carrier = Carrier::kSlot, .from_memory = true};
  return {.carrier = Carrier::kSlot, .from_memory = false, .destination = port.send->slot()};
}

// Call this before post(). If the peer's step only stores the next message to its output (and perhaps forwards it),
// asks the connection to let the network write the message there directly. This has an effect only if the peer has
// advertised its output.
void PlanExecution::Domain::aim(const BoundPort& port, const SendRule& rule, std::uint64_t tile) const {
  if (rule.unpublished != Carrier::kDelivered || rule.peer_sink.space != Space::kOutput) return;
  if (plan_execution_.transport_.peer_has_left(port.peer, plan_execution_.call_.tag.sequence))
    return;  // the peer has given the call up
  const Layout& layout = *plan_execution_.layout_;
  const Blocks blocks = output_blocks(plan_execution_.plan_.shape.collective, port.peer);
  port.send->aim(plan_execution_.call_.tag, layout.length(blocks) * element_bytes(),
                 layout.output_of(port.peer, tile, rule.peer_sink.chunk).offset * element_bytes());
}

// Sends the value of `bytes` bytes in the way that `send_method` specifies. If that way has a destination, the
// value must have been written there already.
void PlanExecution::Domain::post(const BoundPort& port, const SendMethod& send_method, const Step& step,
                                 std::uint64_t tile, std::uint64_t bytes) {
  switch (send_method.carrier) {
    case Carrier::kSlot:
      if (!send_method.from_memory) return port.send->send_slot(bytes, plan_execution_.call_.tag);
      return port.send->send_from(address(step.sink.space != Space::kNone ? step.sink : step.source, tile), bytes,
                                  plan_execution_.call_.tag);
    case Carrier::kDelivered: return port.send->send_delivered(bytes, plan_execution_.call_.tag);
    case Carrier::kReplied: return port.send->send_reply(send_method.over, plan_execution_.call_.tag);
    case Carrier::kPublished: break;
  }
  port.send->send_published(window(step.source, tile), bytes, plan_execution_.call_.tag);
  auto& drains = plan_execution_.published_to_;
  if (std::find(drains.begin(), drains.end(), port.send) == drains.end()) drains.push_back(port.send);
}

// Call this after the operands were read. Returns false, and reports kWithdrawn, if a peer that has published an
// operand has left the call, because the peer may have changed the operand before it was read.
bool PlanExecution::Domain::published_operands_valid(const Channel& channel, const Step& step) {
  for (const std::uint16_t port : channel.receives(step)) {
    const BoundPort& from = bound_.ports[port];
    if (from.receive->front().carrier != Carrier::kPublished) continue;
    if (!plan_execution_.transport_.peer_has_left(from.peer, plan_execution_.call_.tag.sequence)) continue;
    report(port, Arrival::kWithdrawn);
    return false;
  }
  return true;
}

// Combines the operands in sources_ and writes the result to all addresses in destinations_. Uses the reduction
// kernels or, if the user has passed a reduction function, that function, from left to right.
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

// Runs one step: reads the operands, combines them, stores the result, releases the received messages, and sends the
// result.
void PlanExecution::Domain::apply(const Channel& channel, const Step& step, std::uint64_t tile) {
  if (step.run > 1) return apply_run(channel, step, tile);
  const std::uint64_t bytes = bytes_of(channel, step, tile);
  if (!gather_operands(channel, step, tile, bytes)) return;
  kernels::Reduction how = reduction(step);
  const auto& sources = plan_execution_.sources_;
  auto& destinations = plan_execution_.destinations_;
  destinations.clear();
  // True if the value is already in the sink, because the connection or the peer has delivered it there.
  const bool already_there = step.sink.space != Space::kNone && sources.size() == 1 && step.receive_count == 1 &&
                             sources[0] == address(step.sink, tile);
  if (step.sink.space != Space::kNone && !already_there) destinations.push_back(address(step.sink, tile));
  const bool unmodified = sources.size() == 1 && how.scaled_source < 0 && how.divisor == 1;
  const Value value{.may_publish = may_publish(step, how, bytes),
                    .stands_in_memory = step.sink.space != Space::kNone || (unmodified && step.receive_count == 0)};
  auto& send_methods = plan_execution_.send_methods_;
  bool to_slots = false;
  send_methods.clear();
  const std::size_t first_send = step.list_begin + step.receive_count;
  for (std::size_t i = first_send; i < first_send + step.send_count; ++i) {
    send_methods.push_back(send_method(bound_.ports[channel.lists[i]], bound_.rules[i], step, tile, value));
    to_slots |= (send_methods.back().carrier == Carrier::kSlot && !send_methods.back().from_memory) ||
                send_methods.back().carrier == Carrier::kReplied;
    if (send_methods.back().destination != nullptr) destinations.push_back(send_methods.back().destination);
  }
  // A hint for the kernel whether the result should stay in the cache. A value in a slot is read again at once. A
  // value in the caller's buffer is used again only after about `bytes_until_reuse` bytes have passed through the
  // caches.
  if (!to_slots) {
    how.bytes_until_reuse =
        plan_execution_.call_.tag.count * element_bytes() * plan_execution_.plan_.shape.collective.ranks;
  }
  if (!destinations.empty() && bytes > 0) combine(how, bytes);
  if (step.sink.space == Space::kScratch) plan_execution_.scratch_bytes_[step.sink.chunk] = bytes;
  if (!published_operands_valid(channel, step)) return;
  // The received messages are released before the result is sent. So if a peer has published an operand and
  // receives the result, it also sees that its memory is not read any more.
  for (const std::uint16_t port : channel.receives(step)) bound_.ports[port].receive->release();
  for (std::size_t i = first_send; i < first_send + step.send_count; ++i) {
    const BoundPort& port = bound_.ports[channel.lists[i]];
    if (bytes >= port.min_aimed_bytes) aim(port, bound_.rules[i], tile);
    post(port, send_methods[i - first_send], step, tile, bytes);
  }
}

PlanExecution::PlanExecution(const BoundPlan& plan, Transport& transport) : plan_(plan), transport_(transport) {
  agreed_.resize(plan.shape.collective.ranks);
  cursors_.resize(plan.channels.size());
  // A call may publish on every connection on which this rank sends, so there is space for all of them.
  std::size_t most_published = 0;
  for (const Channel& channel : plan.program.channels) {
    for (const Port& port : channel.ports) most_published += port.direction == Direction::kSend ? 1 : 0;
  }
  published_to_.reserve(most_published);
  sources_.reserve(plan.most_operands);
  destinations_.reserve(plan.most_sends + 1);
  send_methods_.reserve(plan.most_sends);
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
  if (call.user.combine != nullptr) sum_.resize(plan_.shape.longest_run * chunk_bytes);
  run_pieces_.reserve(plan_.shape.longest_run);
  shown_ = false;
  advertise_output();
}

// Advertises the output to peers whose messages the network can write into it. The plan must permit it by the
// conditions for pushed messages in plan/windows.h. These do not depend on whether the peer's CPU or a network card
// writes.
void PlanExecution::advertise_output() {
  if (call_.in_place && !plan_.shape.windows_in_place) return;
  if (!call_.lengths.displacements.empty()) return;  // peers do not know this rank's displacements
  const std::uint64_t longest = layout_->max_chunk_count() * call_.element_bytes;
  const std::uint64_t bytes = layout_->length(output_blocks(plan_.shape.collective, plan_.rank)) * call_.element_bytes;
  for (const BoundChannel& channel : plan_.channels) {
    for (const BoundPort& port : channel.ports) {
      if (port.pushed && longest >= port.min_aimed_bytes)
        shown_ |= port.receive->advertise_output(call_.tag, {call_.output, bytes});
    }
  }
}

bool PlanExecution::revoke_output(std::uint32_t peer) {
  bool recalled = true;
  for (const BoundChannel& channel : plan_.channels) {
    for (const BoundPort& port : channel.ports) {
      if (port.pushed && port.peer == peer) recalled &= port.receive->revoke_output();
    }
  }
  return recalled;
}

void PlanExecution::withdraw_output(bool gave_up) {
  if (!std::exchange(shown_, false)) return;
  for (const BoundChannel& channel : plan_.channels) {
    for (const BoundPort& port : channel.ports) {
      if (port.pushed) port.receive->withdraw_output(gave_up);
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
  // Sent messages must have been handed over. Check only the connections of this plan, because a peer that does not
  // read the messages of another call, on other connections, must not delay this call.
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
  return text.empty() ? "peers have not yet read the messages of this rank" : text;
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

// Whether the peer has entered the same call with the same arguments. This must be true before this rank writes
// into the peer's output, because only then is the output as long as this rank computes. Otherwise the write could
// damage other memory of the peer.
bool PlanExecution::agrees_with(std::uint32_t peer) {
  std::uint64_t& agreed = agreed_[peer];
  if (agreed == call_.tag.sequence) return true;
  if (transport_.peer_call(peer, call_.tag.sequence) != call_.tag) return false;
  agreed = call_.tag.sequence;
  return true;
}

}  // namespace tutti

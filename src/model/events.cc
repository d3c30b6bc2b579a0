// The event engine: steps, messages of the model kEvents, cores, and the main loop. event_flows.cc has the messages
// of the model kFlows.
#include "model/events.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/assert.h"
#include "base/mix_bits.h"
#include "model/event_run.h"

namespace tutti {
namespace {

// A hash of 64 bits: one step of the random generator SplitMix64.
std::uint64_t mix(std::uint64_t x) { return mix_bits(x + 0x9e3779b97f4a7c15ULL); }

}  // namespace

double EventRun::jittered(double us, std::uint64_t what, std::uint64_t count) const {
  if (options_.jitter == 0) return us;
  const std::uint64_t bits = mix(mix(mix(options_.seed) ^ what) ^ count);
  const double uniform = (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
  return us * (1 - options_.jitter * std::log(uniform));
}

EventRun::EventRun(const EventInputs& inputs)
    : programs_(inputs.programs),
      costs_(inputs.costs),
      network_(inputs.network),
      parameters_(inputs.parameters),
      options_(inputs.options),
      inputs_(inputs),
      places_(inputs.costs.places()),
      slots_(std::max(inputs.programs.slots, inputs.parameters.slots)),
      tiles_(inputs.tiles.full + inputs.tiles.last) {
  TUTTI_ASSERT(places_ == programs_.places());
  costs_.set_bytes(inputs.tiles.full_bytes);
  if (inputs.tiles.last > 0) {
    last_costs_ = costs_;
    last_costs_->set_bytes(inputs.tiles.last_bytes);
  }
  tasks_.resize(programs_.threads.size() * places_);
  fifos_.resize(programs_.connections.size() * places_);
  arrivals_.resize(fifos_.size() * slots_);
  credits_.resize(fifos_.size() * slots_);
  marks_.assign(programs_.mark_threads.size() * places_ * 2, Costs::kNever);
  ports_.assign(network_.ports(), Costs::kNever);
  dead_.assign(programs_.ranks, 0);
  for (const std::uint32_t rank : options_.dead_ranks) dead_[rank] = 1;
  if (parameters_.cores > 0) {
    cores_.emplace(network_.ranks() / network_.ranks_per_machine(), parameters_.cores, programs_.ranks);
  }
  if (inputs.links != nullptr) set_up_flows();
}

// Returns true if the times of everything for which the task's next step waits are known: messages, credits and
// marked steps. Then `begin` is set to the latest of these times.
bool EventRun::known(std::uint32_t task, double& begin) {
  const Task& state = tasks_[task];
  const ProgramStep& step = programs_.steps[number_of(task)];
  const std::uint32_t place = place_of(task);
  const std::uint32_t* list = list_of(step);
  begin = 0;
  for (std::uint32_t i = 0; i < step.receives; ++i) {
    const std::uint32_t fifo = incoming_fifo(list[i], place);
    const FifoState& fifo_state = fifos_[fifo];
    if (fifo_state.sent == fifo_state.received) return false;
    const double seen = arrival(fifo, fifo_state.received);
    // The message waits for its port, or is in transit at a rate that may still change, so its arrival is not known.
    if (seen == Costs::kNever) return false;
    begin = std::max(begin, seen);
  }
  for (std::uint32_t i = step.receives; i < std::uint32_t{step.receives} + step.sends; ++i) {
    const std::uint32_t fifo = list[i] * places_ + place;
    if (fifos_[fifo].sent - fifos_[fifo].received >= slots_) return false;
    if (fifos_[fifo].sent >= slots_) begin = std::max(begin, credit(fifo, fifos_[fifo].sent));
  }
  for (std::uint32_t i = step.wait_begin; i < step.wait_begin + step.waits; ++i) {
    const Wait& wait = programs_.waits[i];
    if (state.tile < wait.tiles_before) continue;
    const std::uint64_t tile = state.tile - wait.tiles_before;
    const std::uint32_t other = programs_.mark_threads[wait.mark] * places_ + place;
    // Only the marks of two tiles are stored. If the other channel is more than one tile ahead, the entry belongs to a
    // later tile. Then the mark is ignored, because its time is past: this step cannot begin before the event that is
    // being processed, and the marked step ended earlier. If the other channel is one tile ahead and has run the marked
    // step again, the entry is kNever, which has no effect on `begin`.
    if (tasks_[other].tile < tile || (tasks_[other].tile == tile && mark(wait.mark, place, tile) == Costs::kNever)) {
      return false;
    }
    if (tasks_[other].tile <= tile + 1) begin = std::max(begin, mark(wait.mark, place, tile));
  }
  return true;
}

// Begins the task's next step if the times of everything for which the step waits are known, and if the task has no
// step in progress, has not finished, and is not on a dead rank. If cores are shared, the step must first get a core.
void EventRun::try_step(std::uint32_t task) {
  Task& state = tasks_[task];
  if (state.under_way || state.tile == tiles_ || dead_[rank_of(task)] != 0) return;
  double ready = 0;
  if (!known(task, ready)) return;
  state.under_way = true;
  state.ready = state.end;
  const double begin = std::max(state.end, ready);
  if (cores_) {
    heap_.push(Event::at(begin, EventKind::kReady, task));
  } else {
    start(task, begin);
  }
}

void EventRun::start(std::uint32_t task, double begin) {
  Task& state = tasks_[task];
  state.begin = begin;
  const Costs& costs = last_costs_ && state.tile + 1 == tiles_ ? *last_costs_ : costs_;
  const std::uint64_t number = number_of(task);
  const std::uint64_t count = state.tile * programs_.threads[thread_of(task)].steps + state.cursor;
  if (flows_ == nullptr) {
    const double end = begin + jittered(costs.step(number)[place_of(task)], task, count);
    heap_.push(Event::at(end, EventKind::kEnd, task));
    return;
  }
  const auto [posts, adding] = costs.still(number, place_of(task));
  // Model kFlows. This is the end of the step unless moving the bytes of its messages takes longer.
  state.end = begin + jittered(posts + adding, task, count);
  state.moving = 0;
  heap_.push(Event::at(begin + posts, EventKind::kMove, task));
}

// Called at the end of the step that sends the message. A message that uses a port departs when the port is free (in
// the model kFlows, when PortQueue selects it), any other message immediately. `run`: number of chunks that the message
// carries.
void EventRun::send(std::uint32_t fifo, std::uint32_t run, double now) {
  const std::uint32_t connection = fifo / places_, place = fifo % places_;
  const std::uint64_t message = fifos_[fifo].sent++;
  const Task& state = tasks_[sender(fifo)];
  const Costs& costs = last_costs_ && state.tile + 1 == tiles_ ? *last_costs_ : costs_;
  const MessageTimes& times = costs.message(connection);
  const bool by_port = costs.uses_port(connection, place);
  if (flows_ != nullptr && by_port) {
    arrival(fifo, message) = Costs::kNever;
    const std::uint64_t port = network_.port(rank_of(sender(fifo)));
    port_queues_[port].push(fifo);
    serve_port(port, now);
    return;
  }
  double depart = now;
  if (by_port) {
    double& free = ports_[network_.port(rank_of(sender(fifo)))];
    depart = std::max(now, free);
    free = depart + jittered(times.hold_of(run, place), fifo | kMessageJitter, message);
  }
  arrival(fifo, message) = depart + jittered(times.transfer_of(run, place), fifo | kMessageJitter, message);
  try_step(receiver(fifo));
}

void EventRun::end_step(std::uint32_t task, double now) {
  Task& state = tasks_[task];
  const std::uint32_t place = place_of(task), thread = thread_of(task);
  const ProgramStep& step = programs_.steps[number_of(task)];
  const std::uint32_t* list = list_of(step);
  if (rank_of(task) < options_.traced_ranks && result_.trace.size() < kMostTraced) {
    result_.trace.push_back({.rank = rank_of(task),
                             .channel = programs_.threads[thread].channel,
                             .step = state.cursor,
                             .tile = state.tile,
                             .ready_us = state.ready,
                             .begin_us = state.begin,
                             .end_us = now});
  }
  state.end = now;
  for (std::uint32_t i = 0; i < step.receives; ++i) {
    const std::uint32_t fifo = incoming_fifo(list[i], place);
    credit(fifo, fifos_[fifo].received++) = now + costs_.message(list[i]).latency[fifo % places_];
  }
  for (std::uint32_t i = step.receives; i < std::uint32_t{step.receives} + step.sends; ++i) {
    send(list[i] * places_ + place, step.run, now);
  }
  if (step.mark >= 0) {
    const auto index = static_cast<std::uint32_t>(step.mark);
    mark(index, place, state.tile) = now;
    mark(index, place, state.tile + 1) = Costs::kNever;
  }
  if (++state.cursor == programs_.threads[thread].steps) {
    state.cursor = 0;
    ++state.tile;
  }
  state.under_way = false;
  ++steps_done_;
  if (cores_) cores_->give_back(rank_of(task));
  for (std::uint32_t i = 0; i < step.receives; ++i) try_step(sender(incoming_fifo(list[i], place)));
  try_step(task);
  if (step.mark >= 0) {
    const std::uint32_t own = programs_.threads[thread].rank_class;
    for (std::uint32_t t = programs_.first_thread[own]; t < programs_.first_thread[own + 1]; ++t) {
      try_step(t * places_ + place);
    }
  }
}

void EventRun::take(const Event& event) {
  switch (event.kind()) {
    case EventKind::kReady:
      cores_->enqueue(rank_of(event.owner) / network_.ranks_per_machine(),
                      {.channel = event.owner, .rank = rank_of(event.owner)});
      break;
    case EventKind::kMove: next_move(event.owner, event.time); break;
    case EventKind::kEnd: end_step(event.owner, event.time); break;
    case EventKind::kPort:
      --port_queues_[event.owner].pauses;
      serve_port(event.owner, event.time);
      break;
    case EventKind::kMoved:
    case EventKind::kCarried:
      if (event.has_stamp(flow_of_[event.owner].stamp)) {
        finish_flow(event.owner, event.time, event.kind() == EventKind::kCarried);
      }
      return;
  }
  if (!cores_ || event.kind() == EventKind::kMove || event.kind() == EventKind::kPort) return;
  // A rank should keep its core if its next step can begin immediately. Therefore no cores are handed out yet if the
  // next event has the same time, is the start of a step, and is on the same machine: that event may be the next
  // step of this rank. Cores are handed out after it. Events of other machines concern other cores.
  const auto machine_of = [&](const Event& each) { return rank_of(each.owner) / network_.ranks_per_machine(); };
  if (event.kind() == EventKind::kEnd && !heap_.empty() && heap_.first().time == event.time &&
      heap_.first().kind() == EventKind::kReady && machine_of(heap_.first()) == machine_of(event)) {
    return;
  }
  cores_->hand_out(machine_of(event), [&](std::uint32_t task, bool handed) {
    start(task, event.time + (handed ? parameters_.handover_us : 0));
  });
}

// Returns an error about a rank that waits for a dead rank, preferably one that waits for a message and not for a
// credit. If there is no such rank, the error is that the plan does not end.
Error EventRun::describe_blocked() const {
  std::uint64_t stay = 0;
  std::string found;
  std::int32_t culprit = -1;
  bool for_message = false;
  for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
    if (tasks_[task].tile == tiles_ || dead_[rank_of(task)] != 0) continue;
    ++stay;
    const ProgramStep& step = programs_.steps[number_of(task)];
    for (std::uint32_t i = 0; i < std::uint32_t{step.receives} + step.sends && !for_message; ++i) {
      const bool receives = i < step.receives;
      const std::uint32_t connection = list_of(step)[i];
      const std::uint32_t fifo =
          receives ? incoming_fifo(connection, place_of(task)) : connection * places_ + place_of(task);
      const std::uint32_t peer = rank_of(receives ? sender(fifo) : receiver(fifo));
      const bool waits =
          receives ? fifos_[fifo].sent == fifos_[fifo].received : fifos_[fifo].sent - fifos_[fifo].received >= slots_;
      if (!waits || dead_[peer] == 0 || (culprit >= 0 && !receives)) continue;
      for_message = receives;
      culprit = static_cast<std::int32_t>(peer);
      found = fmt::format("rank {} waits for a {} of rank {}, which is dead, in step {} of channel {}, tile {}",
                          rank_of(task), receives ? "message" : "credit", peer, tasks_[task].cursor,
                          programs_.threads[thread_of(task)].channel, tasks_[task].tile);
    }
  }
  if (culprit < 0) {
    return {.code = ErrorCode::kInvalidPlan,
            .scope = ErrorScope::kCall,
            .rank = -1,
            .message = "the plan does not end; prove it with `tutti verify`"};
  }
  return {.code = ErrorCode::kPeerLost,
          .scope = ErrorScope::kCommunicator,
          .rank = culprit,
          .message = fmt::format("{}; {} channels of living ranks do not end; leave the rank out", found, stay)};
}

void EventRun::report(bool last) {
  constexpr std::uint64_t kEvery = 1 << 16;
  if (!options_.progress || (!last && steps_done_ % kEvery != 0)) return;
  options_.progress(static_cast<double>(steps_done_) /
                    (static_cast<double>(programs_.steps.size()) * places_ * static_cast<double>(tiles_)));
}

Result<EventResult> EventRun::run() {
  for (std::uint32_t task = 0; task < tasks_.size(); ++task) try_step(task);
  while (!heap_.empty()) {
    const Event event = heap_.pop();
    take(event);
    report(false);
    if (flows_ == nullptr || (!heap_.empty() && heap_.first().time == event.time)) continue;
    settle_flows(event.time);
  }
  for (std::uint32_t task = 0; task < tasks_.size(); ++task) {
    if (tasks_[task].tile < tiles_ && dead_[rank_of(task)] == 0) return describe_blocked();
    if (dead_[rank_of(task)] == 0) result_.time_us = std::max(result_.time_us, tasks_[task].end);
  }
  report(true);
  return std::move(result_);
}

Result<EventResult> run_events(const EventInputs& inputs) {
  const std::uint64_t slots = std::max(inputs.programs.slots, inputs.parameters.slots);
  const std::uint64_t fifos = std::uint64_t{inputs.programs.connections.size()} * inputs.costs.places();
  const std::uint64_t tasks = std::uint64_t{inputs.programs.threads.size()} * inputs.costs.places();
  if (2 * fifos * slots + 8 * tasks > kMostTimes || tasks >= (std::uint64_t{1} << 32)) {
    return Error{.code = ErrorCode::kUnsupported,
                 .scope = ErrorScope::kCall,
                 .rank = -1,
                 .message = fmt::format("{} connections of all ranks are too many for the models events and "
                                        "flows; use the model sweep, or fewer ranks",
                                        fifos)};
  }
  return EventRun(inputs).run();
}

}  // namespace tutti

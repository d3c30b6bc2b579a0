// The part of class Run that schedules the threads, and detects the errors that are not errors of one step:
// deadlocks and outputs that were not written. (races.h detects races.)
#include "plan/verify/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/assert.h"
#include "plan/verify/own_order.h"

namespace tutti {

Run::Run(const Wiring& wiring, const VerifyOptions& options, ExpressionLog* log)
    : wiring_(wiring), options_(options), log_(log), contributions_(wiring.plan->shape.collective.ranks) {
  const PlanShape& shape = wiring.plan->shape;
  // The largest number of messages that one connection carries in the whole run. More slots than that would never
  // be used.
  std::uint32_t most_messages = 1;
  for (const ConnectionInfo& connection : wiring.connections) {
    most_messages = std::max(most_messages, connection.messages * options.tiles * options.calls);
  }
  slots_ = std::min<std::uint32_t>(options.slots == 0 ? shape.slots : options.slots, most_messages);
  rules_ = message_rules(wiring, options);
  threads_.resize(wiring.threads.size());
  ranks_.resize(wiring.plan->ranks.size());
  fifos_.resize(wiring.connections.size());
  values_.resize(wiring.connections.size() * slots_);
  if (shape.longest_run > 1) more_values_.resize(values_.size());
  scratch_.resize(std::size_t{shape.scratch_chunks} * ranks_.size());
  first_output_.push_back(0);
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    first_output_.push_back(first_output_.back() + output_chunks(shape, rank));
  }
  written_.resize(first_output_.back() * options.tiles);
  expressions_.resize(data(shape));
  prepare_waiters();
}

void Run::prepare_waiters() {
  for (std::uint32_t t = 0; t < wiring_.threads.size(); ++t) {
    const ThreadInfo& info = wiring_.threads[t];
    for (const After& after : info.program->after) {
      waiters_.resize(wiring_.threads.size());
      std::vector<std::uint32_t>& waiters = waiters_[wiring_.first_thread[info.rank] + after.other_channel];
      // Thread t is listed once, even if several of its steps wait for the same other channel.
      if (waiters.empty() || waiters.back() != t) waiters.push_back(t);
    }
  }
}

bool Run::push_granted(std::uint32_t connection) const {
  const ConnectionInfo& info = wiring_.connections[connection];
  const std::uint32_t message = info.first_message + fifos_[connection].sent % info.messages;
  return (rules_[message] & kMayPush) == 0 || ranks_[wiring_.threads[info.receiver].rank].call >= ranks_[rank_].call;
}

void Run::wake(std::uint32_t thread) {
  if (threads_[thread].queued) return;
  threads_[thread].queued = true;
  ready_.push_back(thread);
}

void Run::begin_call(std::uint32_t rank) {
  Rank& state = ranks_[rank];
  state.channels_left = wiring_.first_thread[rank + 1] - wiring_.first_thread[rank];
  state.outputs_written = 0;
  for (std::uint32_t t = wiring_.first_thread[rank]; t < wiring_.first_thread[rank + 1]; ++t) {
    threads_[t].cursor = {};
    threads_[t].receives_arrived = 0;
    threads_[t].finished = false;
    wake(t);
    if (!options_.windows) continue;
    const ThreadInfo& info = wiring_.threads[t];
    // The threads that send to this rank may be waiting for it to enter this call before they push.
    for (std::uint32_t i = 0; i < info.program->ports.size(); ++i) {
      wake(wiring_.connections[wiring_.port_connection[info.first_port + i]].sender);
    }
  }
}

Status Run::start() {
  const bool shared = options_.windows || channels_share_memory(*wiring_.plan, options_);
  if (shared && options_.own_order_only) {
    counts_.race_free = own_order_suffices(*wiring_.plan, options_);
  } else if (shared) {
    auto races = Races::create(wiring_, rules_, options_, slots_);
    if (!races.ok()) return races.error();
    races_.emplace(std::move(races).value());
  }
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (races_) {
      if (auto error = races_->between_calls(rank)) return *std::move(error);
    }
    begin_call(rank);
  }
  std::reverse(ready_.begin(), ready_.end());
  return {};
}

void Run::end_call_if_done(std::uint32_t rank) {
  Rank& state = ranks_[rank];
  if (state.channels_left != 0 || state.published != 0 || error_) return;
  if (state.outputs_written != std::uint64_t{outputs_of(rank)} * options_.tiles) return fail(missing_output(rank));
  if (races_) {
    if (auto error = races_->between_calls(rank)) return fail(*std::move(error));
  }
  if (++state.call < options_.calls) begin_call(rank);
}

// Returns true if all messages of the thread's next step have arrived. Called before the thread is advanced. One
// step may wait for a thousand messages, and its thread is woken by each of them. So this function continues with
// the first message that was missing in the previous call.
bool Run::receives_arrived(Thread& state) {
  if (program_->steps.empty()) return true;
  const std::span<const std::uint16_t> ports = program_->receives(program_->steps[state.cursor.step]);
  while (state.receives_arrived < ports.size() && receive_ready(ports[state.receives_arrived]))
    ++state.receives_arrived;
  return state.receives_arrived == ports.size();
}

void Run::run_thread(std::uint32_t thread) {
  thread_ = thread;
  Thread& state = threads_[thread];
  state.queued = false;
  if (state.finished) return;
  const ThreadInfo& info = wiring_.threads[thread];
  rank_ = info.rank;
  first_port_ = info.first_port;
  program_ = info.program;
  if (!receives_arrived(state)) return;
  generation_base_ = 1 + ranks_[rank_].call * options_.tiles;
  const std::uint64_t ran = advance(*info.program, state.cursor, options_.tiles, ~std::uint64_t{0}, *this);
  counts_.steps += ran;
  if (ran > 0) state.receives_arrived = 0;
  if (ran > 0 && !waiters_.empty()) {
    for (std::uint32_t waiter : waiters_[thread]) wake(waiter);
  }
  if (error_ || !finished(state.cursor, options_.tiles)) return;
  state.finished = true;
  --ranks_[rank_].channels_left;
  end_call_if_done(info.rank);
}

Result<Report> Run::run_all_calls() {
  TUTTI_TRY(start());
  while (!ready_.empty() && !error_) {
    const std::uint32_t thread = ready_.back();
    ready_.pop_back();
    run_thread(thread);
  }
  if (error_) return *std::move(error_);
  for (const Rank& rank : ranks_) {
    if (rank.call < options_.calls) return deadlock();
  }
  if (races_) counts_.race_checks = races_->checks();
  return Report{.counts = counts_, .expressions = std::move(expressions_)};
}

Error Run::missing_output(std::uint32_t rank) const {
  const std::size_t chunks = outputs_of(rank);
  for (std::uint32_t tile = 0; tile < options_.tiles; ++tile) {
    for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
      const std::uint32_t mark = written_[first_output_[rank] * options_.tiles + tile * chunks + chunk];
      if (mark == 1 + ranks_[rank].call * options_.tiles + tile) continue;
      return plan_error(rank, fmt::format("rank {} ends its call without having written out[{}]", rank, chunk));
    }
  }
  TUTTI_ASSERT(false, "all outputs of rank {} are written", rank);
  return {};
}

std::string Run::describe_wait(std::uint32_t thread) {
  const ThreadInfo& info = wiring_.threads[thread];
  const Cursor& cursor = threads_[thread].cursor;
  rank_ = info.rank;
  first_port_ = info.first_port;
  const Step& step = info.program->steps[cursor.step];
  for (std::size_t i = cursor.after; i < info.program->after.size() && info.program->after[i].step == cursor.step;
       ++i) {
    const After& after = info.program->after[i];
    if (cursor.tile < after.tiles_before) continue;
    if (!reached(after.other_channel, after.other_step, cursor.tile - after.tiles_before)) {
      return fmt::format("step {} of channel {}{}", after.other_step, after.other_channel,
                         after.tiles_before == 0 ? "" : " in the tile before");
    }
  }
  for (std::uint16_t port : info.program->receives(step)) {
    const Port& end = info.program->ports[port];
    if (!receive_ready(port)) return fmt::format("a message from rank {} on lane {}", end.peer, end.lane);
  }
  for (std::uint16_t port : info.program->sends(step)) {
    const Port& end = info.program->ports[port];
    const Fifo& fifo = fifos_[connection_of(port)];
    if (send_ready(port)) continue;
    if (fifo.sent - fifo.received < slots_) return fmt::format("rank {} to enter the call", end.peer);
    return fmt::format("one of the {} slots to rank {} on lane {} to become free", slots_, end.peer, end.lane);
  }
  return "nothing";
}

Error Run::deadlock() const {
  // A copy, because describe_wait() changes members (the thread that is being advanced), and this function is
  // const.
  Run asked = *this;
  std::size_t blocked = 0;
  std::optional<Error> first;
  for (std::uint32_t t = 0; t < threads_.size(); ++t) {
    if (threads_[t].finished) continue;
    if (++blocked > 1) continue;
    first = plan_error(wiring_.threads[t].rank,
                       fmt::format("deadlock: {} waits for {}", step_name(wiring_, t, threads_[t].cursor.step),
                                   asked.describe_wait(t)));
  }
  if (!first) return {.code = ErrorCode::kInvalidPlan, .message = "deadlock: published messages are never received"};
  if (blocked > 1) first->message += fmt::format("; {} more channels wait", blocked - 1);
  return *std::move(first);
}

}  // namespace tutti

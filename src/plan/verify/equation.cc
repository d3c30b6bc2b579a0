// The part of class Run that runs one step: the effect of the step on values, and all checks of it.
#include <fmt/format.h>

#include "plan/verify/run.h"

namespace tutti {

void Run::fail_here(const Step& step, const std::string& what) {
  fail(plan_error(rank_, fmt::format("{}: {}", step_name(wiring_, thread_, step_index(step)), what)));
}

const Value& Run::received(std::uint16_t port, std::uint32_t i) const {
  const std::uint32_t c = connection_of(port);
  const std::size_t slot = std::size_t{c} * slots_ + fifos_[c].next_receive;
  return i == 0 ? values_[slot] : more_values_[slot][i - 1];
}

void Run::release(std::uint16_t port) {
  const std::uint32_t c = connection_of(port);
  Fifo& fifo = fifos_[c];
  const ConnectionInfo& info = wiring_.connections[c];
  if (++fifo.next_receive == slots_) fifo.next_receive = 0;
  if (options_.windows && (rules_[info.first_message + fifo.received % info.messages] & kMayPublish) != 0) {
    const std::uint32_t sender = wiring_.threads[info.sender].rank;
    if (--ranks_[sender].published == 0) drained_.push_back(sender);
  }
  ++fifo.received;
  ++counts_.messages;
  wake(info.sender);
}

void Run::send(std::uint16_t port, std::span<const Value> message) {
  const std::uint32_t c = connection_of(port);
  Fifo& fifo = fifos_[c];
  const ConnectionInfo& info = wiring_.connections[c];
  const std::size_t slot = std::size_t{c} * slots_ + fifo.next_send;
  values_[slot] = message[0];
  if (message.size() > 1) more_values_[slot].assign(message.begin() + 1, message.end());
  if (++fifo.next_send == slots_) fifo.next_send = 0;
  if (options_.windows && (rules_[info.first_message + fifo.sent % info.messages] & kMayPublish) != 0) {
    ++ranks_[rank_].published;
  }
  ++fifo.sent;
  wake(info.receiver);
}

std::optional<Value> Run::load(const Step& step, const Slice& source) {
  const PlanShape& shape = wiring_.plan->shape;
  const std::uint32_t chunk = source.chunk;
  const std::uint64_t tile = generation_ - generation_base_;
  switch (source.space) {
    case Space::kInput: {
      const std::uint32_t alias = options_.in_place ? output_alias(shape, rank_, chunk) : kNoChunk;
      if (alias == kNoChunk || written(tile, alias) != generation_)
        return contributions_.input(rank_, chunk, generation_);
      fail_here(step, fmt::format("reads in[{}] after it was overwritten, in place, by out[{}]", chunk, alias));
      return std::nullopt;
    }
    case Space::kOutput:
      if (written(tile, chunk) == generation_) {
        // The contents of an output chunk that was written in this tile need not be stored, because store_output()
        // accepts only the expected value.
        const ExpectedOutput known = expected_output(shape, rank_, chunk);
        if (known.contributor != kEveryRank) return contributions_.input(known.contributor, known.datum, generation_);
        return Value{.expression = expressions_[known.datum],
                     .chunk = known.datum,
                     .generation = generation_,
                     .first = 0,
                     .count = static_cast<std::uint32_t>(ranks_.size()),
                     .complete = true};
      }
      break;
    case Space::kScratch: {
      const Value& value = scratch_[std::size_t{rank_} * wiring_.plan->shape.scratch_chunks + chunk];
      if (value.generation == generation_) return value;
      break;
    }
    case Space::kNone: break;
  }
  fail_here(step, fmt::format("reads {}, which was not written in this tile", to_string(source)));
  return std::nullopt;
}

bool Run::add_operand(const Step& step, const Value& operand, std::uint32_t index, Value& sum) {
  if (index == 0) {
    sum = operand;
    return true;
  }
  const std::string fault =
      reduces(wiring_.plan->shape.collective.kind)
          ? contributions_.add(sum, operand)
          : fmt::format("adds in a {}, which only moves", to_string(wiring_.plan->shape.collective.kind));
  if (!fault.empty()) fail_here(step, fault);
  return fault.empty();
}

std::optional<Value> Run::evaluate(const Channel& channel, const Step& step, std::uint32_t equation) {
  const std::span<const std::uint16_t> receives = channel.receives(step);
  const bool local = step.source.space != Space::kNone;
  const std::uint32_t operands = step.receive_count + (local ? 1u : 0u);
  Value sum;
  std::uint64_t expression = operands;
  bool operand_complete = false;
  std::vector<std::uint64_t> logged;
  for (std::uint32_t i = 0, r = 0; i < operands; ++i) {
    std::optional<Value> operand;
    if (local && i == step.source_position) {
      operand = load(step, nth(step.source, equation));
      if (!operand) return std::nullopt;
    } else {
      operand = received(receives[r++], equation);
    }
    if (!add_operand(step, *operand, i, sum)) return std::nullopt;
    expression = operands == 1 ? operand->expression : Contributions::mix(expression, operand->expression);
    operand_complete |= operand->complete;
    if (log_ != nullptr) logged.push_back(operand->expression);
  }
  sum.expression = expression;
  if (log_ != nullptr && operands > 1) log_->try_emplace(expression, std::move(logged));
  if (sum.generation != generation_) {
    fail_here(step, fmt::format("receives chunk {} of another tile", sum.chunk));
    return std::nullopt;
  }
  if (!check_completion(step, sum, operand_complete)) return std::nullopt;
  return sum;
}

bool Run::check_completion(const Step& step, Value& value, bool operand_complete) {
  if (!reduces(wiring_.plan->shape.collective.kind)) {
    if (step.completes != 0) fail_here(step, "is marked as completing a sum, but nothing is added");
    return step.completes == 0;
  }
  const bool full = value.count == ranks_.size();
  const bool first_full = full && !operand_complete;
  if (step.completes != 0 && !full) {
    fail_here(step, fmt::format("is marked as completing chunk {}, which has {} of {} contributions", value.chunk,
                                value.count, ranks_.size()));
  } else if (step.completes != 0 && !first_full) {
    fail_here(step, fmt::format("is marked as completing chunk {}, which is complete already", value.chunk));
  } else if (step.completes == 0 && first_full) {
    fail_here(step, fmt::format("completes chunk {} but is not marked so", value.chunk));
  } else {
    value.complete = full;
    return true;
  }
  return false;
}

void Run::store(const Step& step, const Slice& sink, const Value& value, std::uint64_t tile) {
  switch (sink.space) {
    case Space::kOutput: return store_output(step, sink.chunk, value, tile);
    case Space::kScratch:
      scratch_[std::size_t{rank_} * wiring_.plan->shape.scratch_chunks + sink.chunk] = value;
      return;
    case Space::kNone:
    case Space::kInput: return;
  }
}

// Checks whether the collective requires `value` in out[chunk] of this rank, added in the order that the plan
// promises. Returns an error message, or an empty string if the value is correct.
std::string Run::output_fault(const Value& value, std::uint32_t chunk) {
  const PlanShape& shape = wiring_.plan->shape;
  const ExpectedOutput want = expected_output(shape, rank_, chunk);
  if (value.chunk != want.datum && want.datum == chunk)
    return fmt::format("stores chunk {} to out[{}]", value.chunk, chunk);
  if (value.chunk != want.datum) {
    return fmt::format("stores chunk {} to out[{}], which is for chunk {}", value.chunk, chunk, want.datum);
  }
  if (want.contributor != kEveryRank) {
    if (value.first == want.contributor) return "";
    return fmt::format("stores out[{}] from rank {} instead of rank {}", chunk, value.first, want.contributor);
  }
  if (value.count != ranks_.size()) {
    return fmt::format("stores out[{}] with {} of {} contributions", chunk, value.count, ranks_.size());
  }
  const bool in_order = shape.order == Order::kAny ||
                        (shape.order == Order::kByRank && contributions_.in_order_from(value, 0)) ||
                        (shape.order == Order::kCyclic && value.set == 0);
  if (!in_order) return fmt::format("out[{}] was not added in {}", chunk, to_string(shape.order));
  std::uint64_t& expression = expressions_[want.datum];
  if (expression == 0) expression = value.expression;
  if (expression == value.expression) return "";
  return fmt::format("out[{}] was added in another order or grouping than on another rank", chunk);
}

void Run::store_output(const Step& step, std::uint32_t chunk, const Value& value, std::uint64_t tile) {
  if (const std::string fault = output_fault(value, chunk); !fault.empty()) return fail_here(step, fault);
  std::uint32_t& mark = written(tile, chunk);
  if (mark == generation_) return fail_here(step, fmt::format("writes out[{}] a second time in one tile", chunk));
  mark = generation_;
  ++ranks_[rank_].outputs_written;
}

void Run::apply(const Channel& channel, const Step& step, std::uint64_t tile) {
  if (error_) return;
  generation_ = generation_base_ + static_cast<std::uint32_t>(tile);
  if (races_) {
    if (auto error = races_->step(thread_, step_index(step), tile)) return fail(*std::move(error));
  }
  step_values_.clear();
  for (std::uint32_t i = 0; i < step.run; ++i) {
    const std::optional<Value> value = evaluate(channel, step, i);
    if (!value) return;
    store(step, nth(step.sink, i), *value, tile);
    step_values_.push_back(*value);
  }
  for (std::uint16_t port : channel.receives(step)) release(port);
  for (std::uint16_t port : channel.sends(step)) send(port, step_values_);
  // A rank is in drained_ if this step has received the last of its published messages. Its call may have waited
  // only for that.
  for (std::uint32_t sender : drained_) end_call_if_done(sender);
  drained_.clear();
}

}  // namespace tutti

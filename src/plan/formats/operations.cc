// create() runs the plan twice with lengths as values, once for a full tile and once for the last tile. of_rank()
// then lists the operations of one rank.
#include "plan/formats/operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/assert.h"
#include "plan/collective.h"
#include "plan/evaluate.h"
#include "plan/layout.h"

namespace tutti {
namespace {

Error refusal(ErrorCode code, std::string message) {
  return {.code = code, .scope = ErrorScope::kCall, .rank = -1, .message = std::move(message)};
}

// A domain of the evaluator (plan/evaluate.h) with lengths in elements as values. Runs all ranks for one tile
// (`tile` selects the lengths of its chunks). A send never waits for a credit.
class Lengths1Tile {
 public:
  using ByStep = std::vector<std::vector<std::vector<std::uint64_t>>>;  // lengths, indexed by rank, channel, step

  Lengths1Tile(const Plan& plan, const CallSize& size, std::uint64_t tile) : plan_(plan), size_(size), tile_(tile) {
    for (const RankPlan& rank : plan.ranks) {
      cursors_.emplace_back(rank.channels.size());
      scratch_.emplace_back(plan.shape.scratch_chunks, 0);
      std::vector<std::vector<std::uint64_t>>& own = lengths_.emplace_back();
      for (const Channel& channel : rank.channels) own.emplace_back(channel.steps.size(), 0);
    }
  }

  // Returns the length in elements of the values of each step (one for each chunk of its run). Returns nothing if some
  // step can never run, because it waits for a message that is never sent or for a step that never runs.
  std::optional<ByStep> run() && {
    for (bool ran = true; ran;) {
      ran = false;
      for (rank_ = 0; rank_ < plan_.ranks.size(); ++rank_) {
        layout_.emplace(plan_.shape, rank_, Lengths{.count = size_.count, .counts = {}, .displacements = {}},
                        size_.element_bytes, size_.max_message_bytes);
        for (channel_ = 0; channel_ < cursors_[rank_].size(); ++channel_) {
          const Channel& channel = plan_.ranks[rank_].channels[channel_];
          ran |= advance(channel, cursors_[rank_][channel_], 1, ~std::uint64_t{0}, *this) > 0;
        }
      }
    }
    for (const std::vector<Cursor>& cursors : cursors_) {
      for (const Cursor& cursor : cursors) {
        if (!finished(cursor, 1)) return std::nullopt;
      }
    }
    return std::move(lengths_);
  }

  bool receive_ready(std::uint16_t port) { return !queue(port).empty(); }
  bool send_ready(std::uint16_t) const { return true; }
  bool reached(std::uint32_t channel, std::uint32_t step, std::uint64_t) const {
    const Cursor& other = cursors_[rank_][channel];
    return finished(other, 1) || other.step > step;
  }
  void apply(const Channel& channel, const Step& step, std::uint64_t) {
    Message lengths(step.run);
    for (std::uint32_t i = 0; i < step.run; ++i) lengths[i] = length_of(nth(step.source, i));
    for (const std::uint16_t port : channel.receives(step)) {
      const Message& received = queue(port).front();
      for (std::uint32_t i = 0; i < step.run; ++i) lengths[i] = std::max(lengths[i], received.at(i));
      queue(port).pop_front();
    }
    for (std::uint32_t i = 0; step.sink.space == Space::kScratch && i < step.run; ++i) {
      scratch_[rank_][nth(step.sink, i).chunk] = lengths[i];
    }
    for (const std::uint16_t port : channel.sends(step)) queue(port).push_back(lengths);
    lengths_[rank_][channel_][cursors_[rank_][channel_].step] =
        std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
  }

 private:
  using Message = std::vector<std::uint64_t>;  // the length of each value that the message carries

  // Chunk i of the run that begins with `first`. If there is no slice, returns `first`.
  Slice nth(const Slice& first, std::uint32_t i) const {
    if (first.space == Space::kNone) return first;
    return chunk_of_run(first, i, space_chunks(plan_.shape, rank_, first.space));
  }
  std::uint64_t length_of(const Slice& slice) const {
    switch (slice.space) {
      case Space::kNone: return 0;
      case Space::kInput: return layout_->input(tile_, slice.chunk).count;
      case Space::kOutput: return layout_->output(tile_, slice.chunk).count;
      case Space::kScratch: return scratch_[rank_][slice.chunk];
    }
    return 0;
  }
  // Returns the messages under way on the connection of a port of the current channel. The key has 24 bits for
  // each rank and 16 bits for the lane, because there are at most 2^24 ranks (kMaxRanks in
  // algorithms/generators.h) and 2^16 lanes.
  std::deque<Message>& queue(std::uint16_t port) {
    const Port& end = plan_.ranks[rank_].channels[channel_].ports[port];
    const bool sends = end.direction == Direction::kSend;
    const std::uint64_t from = sends ? rank_ : end.peer, to = sends ? end.peer : rank_;
    return queues_[from << 40 | to << 16 | end.lane];
  }

  const Plan& plan_;
  const CallSize& size_;
  const std::uint64_t tile_;
  std::uint32_t rank_ = 0;
  std::uint32_t channel_ = 0;
  std::optional<Layout> layout_;
  std::vector<std::vector<Cursor>> cursors_;
  std::vector<std::vector<std::uint64_t>> scratch_;  // lengths of the scratch values, indexed by rank, chunk
  ByStep lengths_;
  std::unordered_map<std::uint64_t, std::deque<Message>> queues_;
};

// Builds the list of operations of one rank: tile by tile, in each tile channel by channel, and in each channel
// step by step.
class RankWriter {
 public:
  RankWriter(const PlanShape& shape, const RankPlan& plan) : shape_(shape), plan_(plan) {
    for (const Channel& channel : plan.channels) {
      steps_.emplace_back(channel.steps.size(), kNone);
      numbers_.emplace_back(channel.ports.size(), 0);
    }
  }

  // Adds the operations of step `s` of channel `c`: one for the step, and one for each of its messages. end_tile()
  // adds the waits for other channels, because the steps for which this step waits may be added after it.
  void add(std::uint32_t c, std::uint32_t s, std::uint64_t bytes) {
    const Channel& channel = plan_.channels[c];
    const Step& step = channel.steps[s];
    Operation own{.bytes = bytes};
    if (last_of(c) != kNone) own.after.push_back(last_of(c));
    for (const std::uint16_t port : channel.receives(step)) {
      own.after.push_back(push(message(OperationKind::kReceive, c, port, bytes)));
    }
    const std::uint32_t operands = step.receive_count + (step.source.space == Space::kNone ? 0u : 1u);
    own.additions = operands > 0 ? operands - 1 : 0;
    const std::uint32_t number = push(std::move(own));
    for (const std::uint16_t port : channel.sends(step)) {
      Operation send = message(OperationKind::kSend, c, port, bytes);
      send.after.push_back(number);
      push(std::move(send));
    }
    steps_[c][s] = number;
    last_[c] = number;
  }

  void begin_tile() {
    before_ = steps_;
    last_.resize(plan_.channels.size(), kNone);
  }
  // Call end_tile() after all steps of the tile were added. It adds the waits for steps of other channels
  // (Channel::after).
  void end_tile() {
    for (std::size_t c = 0; c < plan_.channels.size(); ++c) {
      for (const After& after : plan_.channels[c].after) {
        const std::uint32_t other = (after.tiles_before == 0 ? steps_ : before_)[after.other_channel][after.other_step];
        if (other != kNone) operations_[steps_[c][after.step]].after.push_back(other);
      }
    }
  }
  std::vector<Operation> operations() && { return std::move(operations_); }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::uint32_t last_of(std::uint32_t c) const { return last_[c]; }
  std::uint32_t push(Operation operation) {
    operations_.push_back(std::move(operation));
    return static_cast<std::uint32_t>(operations_.size() - 1);
  }
  Operation message(OperationKind kind, std::uint32_t c, std::uint16_t port, std::uint64_t bytes) {
    const Port& end = plan_.channels[c].ports[port];
    const std::uint32_t tag = numbers_[c][port]++ * shape_.lanes + end.lane;
    return {.kind = kind, .peer = end.peer, .tag = tag, .bytes = bytes};
  }

  const PlanShape& shape_;
  const RankPlan& plan_;
  std::vector<Operation> operations_;
  // index of the latest operation of each step, indexed by channel, step: that of this tile, or, if the step was not
  // yet added in this tile, that of the previous tile; kNone: there is none
  std::vector<std::vector<std::uint32_t>> steps_;
  // index of the operation of each step in the previous tile, indexed by channel, step; all kNone in the first
  // tile
  std::vector<std::vector<std::uint32_t>> before_;
  // index of the operation of the step that was added last, indexed by channel
  std::vector<std::uint32_t> last_;
  std::vector<std::vector<std::uint32_t>> numbers_;  // number of messages so far, indexed by channel, port
};

}  // namespace

Result<CallOperations> CallOperations::create(const Plan& plan, const CallSize& size) {
  CallOperations call(plan, size);
  const Layout layout(plan.shape, 0, {.count = size.count, .counts = {}, .displacements = {}}, size.element_bytes,
                      size.max_message_bytes);
  call.tiles_ = layout.tiles();
  TUTTI_TRY(call.count_operations());
  const auto full = Lengths1Tile(plan, size, 0).run();
  const auto last = Lengths1Tile(plan, size, call.tiles_ - 1).run();
  if (!full || !last) {
    return refusal(ErrorCode::kInvalidPlan, "the plan does not run to its end; prove it with `tutti verify`");
  }
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    std::vector<std::vector<StepLengths>>& rank = call.lengths_.emplace_back();
    for (std::size_t c = 0; c < (*full)[r].size(); ++c) {
      std::vector<StepLengths>& channel = rank.emplace_back();
      for (std::size_t s = 0; s < (*full)[r][c].size(); ++s) channel.push_back({(*full)[r][c][s], (*last)[r][c][s]});
    }
  }
  return call;
}

Status CallOperations::count_operations() {
  std::uint64_t of_tile = 0;
  // The largest number of messages per tile of one channel. It is an upper bound for the messages of one
  // connection, because all messages of a connection are in one channel of each of its ranks.
  std::uint64_t most_messages = 0;
  for (const RankPlan& rank : plan_->ranks) {
    for (const Channel& channel : rank.channels) {
      std::uint64_t messages = 0;
      for (const Step& step : channel.steps) messages += std::uint64_t{step.receive_count} + step.send_count;
      of_tile += channel.steps.size() + messages;
      most_messages = std::max(most_messages, messages);
    }
  }
  if (of_tile > 0 && tiles_ > kMostOperations / of_tile) {
    return refusal(ErrorCode::kUnsupported,
                   fmt::format("{} tiles of {} operations each are more than the {} that are written; choose fewer "
                               "ranks or bytes, or longer slots",
                               tiles_, of_tile, kMostOperations));
  }
  count_ = tiles_ * of_tile;
  constexpr std::uint64_t kMostTags = std::numeric_limits<std::int32_t>::max();
  if (most_messages * tiles_ >= kMostTags / plan_->shape.lanes) {
    return refusal(ErrorCode::kUnsupported, "more messages on one connection than there are tags; choose fewer bytes");
  }
  return {};
}

std::vector<Operation> CallOperations::of_rank(std::uint32_t rank) const {
  const RankPlan& plan = plan_->ranks[rank];
  RankWriter writer(plan_->shape, plan);
  for (std::uint64_t tile = 0; tile < tiles_; ++tile) {
    const std::size_t which = tile + 1 == tiles_ ? 1 : 0;
    writer.begin_tile();
    for (std::uint32_t c = 0; c < plan.channels.size(); ++c) {
      for (std::uint32_t s = 0; s < plan.channels[c].steps.size(); ++s) {
        writer.add(c, s, lengths_[rank][c][s][which] * size_.element_bytes);
      }
    }
    writer.end_tile();
  }
  return std::move(writer).operations();
}

}  // namespace tutti

// Runs the channels of all ranks in a random order, a few steps at a time, with float32 values in buffers and
// queues.
#include "plan/verify/interpret.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "plan/collective.h"
#include "plan/evaluate.h"

namespace tutti {
namespace {

constexpr std::size_t kElements = 3;  // number of elements of each chunk
struct Elements {
  std::array<float, kElements> values{};
  std::vector<std::uint32_t> ranks{};  // ranks whose inputs were added, in the order of the additions
};
constexpr float kUnset = std::numeric_limits<float>::quiet_NaN();
const Elements kUnwritten{.values = {kUnset, kUnset, kUnset}};

Error failure(std::string message) { return {.code = ErrorCode::kInvalidPlan, .message = std::move(message)}; }

// Returns a pseudo-random number from 2^-8 to 2^9. Its mantissa uses all bits, so that sums of such numbers are
// rounded.
float input_element(std::uint32_t call, std::uint32_t rank, std::uint64_t tile, std::uint32_t chunk,
                    std::size_t element) {
  std::uint64_t x = call;
  for (const std::uint64_t part : {std::uint64_t{rank}, tile, std::uint64_t{chunk}, std::uint64_t{element}}) {
    x = (x * 1'000'003 + part + 1) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
  }
  const auto mantissa = static_cast<std::uint32_t>(x) & 0x7fffffu;
  const auto exponent = static_cast<std::uint32_t>(119 + (x >> 40) % 17);
  return std::bit_cast<float>((exponent << 23) | mantissa);
}

struct Buffers {
  // Input and output are indexed by tile x chunk. In an in-place call, input chunks that share memory with an
  // output chunk are not used; `output` holds their values.
  std::vector<Elements> input;
  std::vector<Elements> output;
  std::vector<Elements> scratch;
};

// True if each step has an operand, and if all indices of the channel, except those in Channel::after, are valid, so
// that its steps can run without accesses out of bounds.
bool runnable(const Plan& plan, std::uint32_t rank, const Channel& channel) {
  const auto inside = [&](const Step& step, const Slice& slice) {
    if (slice.space == Space::kNone) return true;
    const std::uint32_t chunks = space_chunks(plan.shape, rank, slice.space);
    return slice.chunk < chunks && step.run <= chunks;
  };
  for (const Step& step : channel.steps) {
    const std::size_t end = std::size_t{step.list_begin} + step.receive_count + step.send_count;
    if (end > channel.lists.size() || !inside(step, step.source) || !inside(step, step.sink)) return false;
    if (step.run == 0) return false;
    if (step.source.space == Space::kNone && step.receive_count == 0) return false;
    if (step.source_position > step.receive_count) return false;
    for (std::size_t i = step.list_begin; i < end; ++i) {
      if (channel.lists[i] >= channel.ports.size()) return false;
    }
  }
  for (const Port& port : channel.ports) {
    if (port.peer >= plan.ranks.size()) return false;
  }
  return true;
}

class Interpreter {
 public:
  Interpreter(const Plan& plan, const InterpretOptions& options)
      : plan_(plan), options_(options), random_(options.seed) {}

  Result<std::vector<float>> run();

  bool receive_ready(std::uint16_t port) { return !queue(port).empty(); }
  bool send_ready(std::uint16_t port) { return queue(port).size() < plan_.shape.slots; }
  bool reached(std::uint32_t channel, std::uint32_t step, std::uint64_t tile) const {
    const Cursor& other = cursors_[rank_].at(channel);
    return other.tile > tile || (other.tile == tile && other.step > step);
  }
  void apply(const Channel& channel, const Step& step, std::uint64_t tile);

 private:
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint16_t>;  // sending rank, receiving rank, lane

  // The values that a message carries: one for each equation of the step's run (Step::run).
  using Message = std::vector<Elements>;
  std::deque<Message>& queue(std::uint16_t port) {
    const Port& end = program_->ports[port];
    return queues_[end.direction == Direction::kSend ? Key{rank_, end.peer, end.lane} : Key{end.peer, rank_, end.lane}];
  }
  void begin_call(std::uint32_t rank);
  void end_call(std::uint32_t rank);
  bool call_finished(std::uint32_t rank) const;
  std::uint64_t try_channel(std::uint32_t rank, std::uint32_t channel);
  Elements& memory(const Slice& first, std::uint32_t i, std::uint64_t tile);
  Elements equation(const Step& step, std::uint32_t i, std::span<const Message> received, std::uint64_t tile);

  const Plan& plan_;
  const InterpretOptions options_;
  std::mt19937_64 random_;
  std::vector<Buffers> buffers_;
  std::vector<std::vector<Cursor>> cursors_;
  std::vector<std::uint32_t> calls_;
  std::map<Key, std::deque<Message>> queues_;
  std::vector<std::vector<float>> results_;  // indexed by rank: the outputs of its calls, one call after the other
  bool broken_ = false;

  std::uint32_t rank_ = 0;
  const Channel* program_ = nullptr;
};

void Interpreter::begin_call(std::uint32_t rank) {
  Buffers& buffers = buffers_[rank];
  const std::uint32_t inputs = input_chunks(plan_.shape, rank);
  const std::size_t outputs = output_chunks(plan_.shape, rank);
  buffers.input.resize(std::size_t{inputs} * options_.tiles);
  buffers.output.assign(outputs * options_.tiles, kUnwritten);
  for (std::size_t i = 0; i < buffers.input.size(); ++i) {
    const auto chunk = static_cast<std::uint32_t>(i % inputs);
    for (std::size_t e = 0; e < kElements; ++e) {
      buffers.input[i].values[e] = input_element(calls_[rank], rank, i / inputs, chunk, e);
    }
    buffers.input[i].ranks = {rank};
    const std::uint32_t alias = options_.in_place ? output_alias(plan_.shape, rank, chunk) : kNoChunk;
    if (alias != kNoChunk) buffers.output[i / inputs * outputs + alias] = buffers.input[i];
  }
  cursors_[rank].assign(plan_.ranks[rank].channels.size(), {});
}

void Interpreter::end_call(std::uint32_t rank) {
  const Buffers& buffers = buffers_[rank];
  for (const Elements& elements : buffers.output) {
    results_[rank].insert(results_[rank].end(), elements.values.begin(), elements.values.end());
    if (options_.orders != nullptr) options_.orders->push_back(elements.ranks);
  }
  ++calls_[rank];
}

bool Interpreter::call_finished(std::uint32_t rank) const {
  for (std::size_t c = 0; c < cursors_[rank].size(); ++c) {
    if (!plan_.ranks[rank].channels[c].steps.empty() && !finished(cursors_[rank][c], options_.tiles)) return false;
  }
  return true;
}

// The memory of chunk i of the run that begins with `first`.
Elements& Interpreter::memory(const Slice& first, std::uint32_t i, std::uint64_t tile) {
  Buffers& buffers = buffers_[rank_];
  const Slice slice = chunk_of_run(first, i, space_chunks(plan_.shape, rank_, first.space));
  if (slice.space == Space::kScratch) return buffers.scratch[slice.chunk];
  const std::size_t outputs = output_chunks(plan_.shape, rank_);
  if (slice.space == Space::kOutput) return buffers.output[tile * outputs + slice.chunk];
  const std::uint32_t alias = options_.in_place ? output_alias(plan_.shape, rank_, slice.chunk) : kNoChunk;
  if (alias != kNoChunk) return buffers.output[tile * outputs + alias];
  return buffers.input[tile * input_chunks(plan_.shape, rank_) + slice.chunk];
}

// Returns the value of equation i of the step. `received`: the messages that the step has received, in the order of its
// receives.
Elements Interpreter::equation(const Step& step, std::uint32_t i, std::span<const Message> received,
                               std::uint64_t tile) {
  const bool local = step.source.space != Space::kNone;
  const std::size_t operands = received.size() + (local ? 1 : 0);
  Elements value{};
  for (std::size_t o = 0, r = 0; o < operands; ++o) {
    const bool is_local = local && o == step.source_position;
    const Elements operand = is_local ? memory(step.source, i, tile) : received[r++][i];
    for (std::size_t e = 0; e < kElements; ++e) {
      value.values[e] = o == 0 ? operand.values[e] : value.values[e] + operand.values[e];
    }
    value.ranks.insert(value.ranks.end(), operand.ranks.begin(), operand.ranks.end());
  }
  if (step.completes != 0) {
    // A division by a power of two would not change the mantissa, so the divisor is the number of ranks + 0.5.
    for (float& element : value.values) element /= static_cast<float>(plan_.ranks.size()) + 0.5f;
  }
  return value;
}

// Computes the values of all equations of the step before it stores the first one. (The verifier refuses plans in which
// this order matters.) Sets broken_ if a message is missing or does not have one value for each equation.
void Interpreter::apply(const Channel& channel, const Step& step, std::uint64_t tile) {
  std::vector<Message> received;
  for (const std::uint16_t port : channel.receives(step)) {
    std::deque<Message>& messages = queue(port);
    broken_ |= messages.empty() || messages.front().size() != step.run;
    if (broken_) return;
    received.push_back(std::move(messages.front()));
    messages.pop_front();
  }
  Message values;
  for (std::uint32_t i = 0; i < step.run; ++i) values.push_back(equation(step, i, received, tile));
  for (std::uint32_t i = 0; step.sink.space != Space::kNone && i < step.run; ++i) {
    memory(step.sink, i, tile) = values[i];
  }
  for (std::uint16_t port : channel.sends(step)) queue(port).push_back(values);
}

std::uint64_t Interpreter::try_channel(std::uint32_t rank, std::uint32_t channel) {
  rank_ = rank;
  program_ = &plan_.ranks[rank].channels[channel];
  return advance(*program_, cursors_[rank][channel], options_.tiles, 1 + random_() % 3, *this);
}

Result<std::vector<float>> Interpreter::run() {
  const auto ranks = static_cast<std::uint32_t>(plan_.ranks.size());
  buffers_.resize(ranks);
  cursors_.resize(ranks);
  calls_.assign(ranks, 0);
  results_.resize(ranks);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> channels;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    buffers_[rank].scratch.assign(plan_.shape.scratch_chunks, kUnwritten);
    begin_call(rank);
    for (std::uint32_t c = 0; c < plan_.ranks[rank].channels.size(); ++c) {
      if (!runnable(plan_, rank, plan_.ranks[rank].channels[c]))
        return failure(fmt::format("rank {} channel {} can not run", rank, c));
      channels.emplace_back(rank, c);
    }
  }
  std::uint32_t ranks_done = 0;
  while (ranks_done < ranks) {
    std::uint64_t ran = 0;
    std::shuffle(channels.begin(), channels.end(), random_);
    for (const auto& [rank, channel] : channels) {
      if (calls_[rank] == options_.calls) continue;
      ran += try_channel(rank, channel);
      if (broken_) return failure("a step receives a message that is missing or has the wrong number of values");
      if (!call_finished(rank)) continue;
      end_call(rank);
      ++ran;
      if (calls_[rank] == options_.calls) {
        ++ranks_done;
      } else {
        begin_call(rank);
      }
    }
    if (ran == 0) return failure("deadlock");
  }
  std::vector<float> all;
  for (const std::vector<float>& of_rank : results_) all.insert(all.end(), of_rank.begin(), of_rank.end());
  for (const auto& [key, messages] : queues_) {
    if (!messages.empty()) return failure("a message was left behind");
  }
  return all;
}

}  // namespace

Result<std::vector<float>> interpret(const Plan& plan, const InterpretOptions& options) {
  return Interpreter(plan, options).run();
}

}  // namespace tutti

// Groups the messages and the steps of a plan into classes of equal duration, and computes the durations of each class
// once for each length of the chunks.
#include "model/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "model/link_loads.h"

namespace tutti {
namespace {

constexpr double kBytesPerUs = 1000;  // bytes in a microsecond at 1 GB/s

double us_of(double bytes, double gbytes_per_s) { return gbytes_per_s > 0 ? bytes / (gbytes_per_s * kBytesPerUs) : 0; }

Error unsupported(std::string message) {
  return {.code = ErrorCode::kUnsupported, .scope = ErrorScope::kCall, .rank = -1, .message = std::move(message)};
}

}  // namespace

Result<Costs> Costs::create(const Programs& programs, const Network& network, const Parameters& parameters,
                            const CostOptions& options, std::uint32_t places) {
  TUTTI_ASSERT(options.channels >= 1 && places >= 1 && programs.places() % places == 0);
  Costs costs;
  costs.programs_ = &programs;
  costs.parameters_ = &parameters;
  costs.options_ = options;
  costs.places_ = places;
  if (programs.connections.size() * places > kMostTimes / 8) {
    return unsupported(fmt::format("{} connections of {} ranks each are too many; choose fewer ranks",
                                   programs.connections.size(), places));
  }
  costs.find_shares(network);
  TUTTI_TRY(costs.find_messages(network));
  costs.find_steps();
  if (costs.steps_.size() * places > kMostTimes / 2) {
    return unsupported(fmt::format("{} kinds of steps of {} ranks each are too many; choose fewer ranks",
                                   costs.steps_.size(), places));
  }
  costs.set_bytes(0);
  return costs;
}

const MessageCost& Costs::cost_of(Level level) const {
  const MessageCost& wanted = parameters_->cost(level, options_.protocol);
  return wanted.gbytes_per_s > 0 ? wanted : parameters_->cost(level, Protocol::kSimple);
}

// Computes shares_. The channels of a call run copies of the plan. In copy k, the ranks of each machine are rotated by
// k (Copies in link_loads.h; not if the plan has a root), so the copies may send through different NICs. Only copy 0 is
// simulated, and it gets only a part of a NIC's bandwidth: the number of chunks that copy 0 sends through the NIC,
// divided by the number of chunks that all copies together send through it. (All chunks have the same length, so these
// are parts of the bytes.)
void Costs::find_shares(const Network& network) {
  if (options_.channels == 1 || network.ports() == 0) return;
  std::vector<double> sent(programs_->ranks, 0);
  for (const ProgramConnection& each : programs_->connections) {
    for (std::uint32_t place = 0; place < programs_->places(); ++place) {
      const std::uint32_t from = programs_->threads[each.from].rank_class + place * programs_->classes;
      const auto to = static_cast<std::uint32_t>((std::uint64_t{from} + each.offset) % programs_->ranks);
      if (!moved_by_channel(network.level(from, to))) sent[from] += each.chunks_per_tile;
    }
  }
  const Copies laid(*programs_, network, options_.channels);
  std::vector<double> own(network.ports(), 0), all(network.ports(), 0);
  for (std::uint32_t rank = 0; rank < programs_->ranks; ++rank) {
    if (sent[rank] == 0) continue;
    own[network.port(rank)] += sent[rank];
    for (std::uint32_t turn = 0; turn < laid.turns(); ++turn) {
      all[network.port(laid.turned(rank, turn))] += laid.with_turn(turn) * sent[rank];
    }
  }
  shares_.assign(programs_->ranks, 1);
  for (std::uint32_t rank = 0; rank < programs_->ranks; ++rank) {
    const std::uint64_t port = network.port(rank);
    if (all[port] > 0) shares_[rank] = own[port] / all[port];
  }
}

Status Costs::find_messages(const Network& network) {
  std::map<MessageClass, std::uint32_t> kinds;
  std::map<std::vector<std::uint32_t>, std::uint32_t> messages;
  std::vector<std::uint32_t> by_place(places_);
  for (const ProgramConnection& each : programs_->connections) {
    for (std::uint32_t place = 0; place < places_; ++place) {
      const std::uint32_t from = rank(each.from, place);
      const auto to = static_cast<std::uint32_t>((std::uint64_t{from} + each.offset) % programs_->ranks);
      MessageClass kind{.level = network.level(from, to),
                        .factor = factor(from),
                        .bound_gbytes_per_s = network.narrowest_gbytes_per_s(from, to)};
      if (!moved_by_channel(kind.level) && !shares_.empty()) kind.share = shares_[from];
      // The bandwidth in the parameters is that of whole messages, so it already includes the links of a usual route.
      // The narrowest link of this route only matters if it is slower than that.
      if (kind.bound_gbytes_per_s >= cost_of(kind.level).gbytes_per_s) kind.bound_gbytes_per_s = 0;
      const auto [found, added] = kinds.try_emplace(kind, static_cast<std::uint32_t>(kinds_.size()));
      if (added) kinds_.push_back(kind);
      by_place[place] = found->second;
    }
    const auto [found, added] = messages.try_emplace(by_place, static_cast<std::uint32_t>(messages_.size()));
    if (added) messages_.push_back({.kinds = by_place, .times = {}});
    message_of_.push_back(found->second);
  }
  for (const MessageClass& kind : kinds_) {
    if (cost_of(kind.level).gbytes_per_s > 0) continue;
    return Error{
        .code = ErrorCode::kInvalidArgument,
        .scope = ErrorScope::kCall,
        .rank = -1,
        .message = fmt::format("messages of this plan use the level {}, for which the parameters {} have no costs",
                               to_string(kind.level), parameters_->name)};
  }
  return {};
}

// Groups the steps. Two steps take equally long at each place if they have the same number of operands, the same number
// of chunks in their runs, the same ProgramStep::copies, and send messages of the same durations. If there are
// stragglers, the steps must also be steps of the same class of ranks.
void Costs::find_steps() {
  std::map<std::vector<std::uint32_t>, std::uint32_t> kinds;
  // For steps with a run of one chunk and at most one send: the index into steps_, by a key that describes the step.
  // The key fits into 64 bits if messages_ has fewer than 2^20 elements and there are fewer than 2^20 classes of ranks.
  // It is looked up faster than a vector, which is the key of all other steps.
  std::unordered_map<std::uint64_t, std::uint32_t> simple_kinds;
  step_of_.resize(programs_->steps.size());
  for (std::uint32_t t = 0; t < programs_->threads.size(); ++t) {
    const ProgramThread& thread = programs_->threads[t];
    const std::uint32_t who = options_.factors.empty() ? 0 : thread.rank_class;
    for (std::uint64_t s = thread.first_step; s < thread.first_step + thread.steps; ++s) {
      const ProgramStep& step = programs_->steps[s];
      const auto next = static_cast<std::uint32_t>(steps_.size());
      const std::uint32_t* sends = programs_->lists.data() + step.list_begin + step.receives;
      std::uint32_t index = next;
      if (step.run == 1 && step.sends <= 1 && messages_.size() < (1u << 20) && programs_->classes < (1u << 20)) {
        const std::uint64_t message = step.sends == 0 ? 0 : message_of_[sends[0]] + 1;
        const std::uint64_t key =
            message << 37 | std::uint64_t{who} << 17 | std::uint64_t{step.operands} << 1 | std::uint64_t{step.copies};
        index = simple_kinds.try_emplace(key, next).first->second;
      } else {
        std::vector<std::uint32_t> key{who, step.operands, step.copies, step.run};
        for (std::uint32_t i = 0; i < step.sends; ++i) key.push_back(message_of_[sends[i]]);
        std::sort(key.begin() + 4, key.end());
        index = kinds.try_emplace(std::move(key), next).first->second;
      }
      if (index == next) steps_.push_back({.step = s, .thread = t, .times = {}});
      step_of_[s] = index;
    }
  }
}

// Returns the bandwidth of one channel, for messages of this class. It is a part of the bandwidth of the level, or of
// that of the narrowest link if that is slower: MessageClass::share at a port if shares_ is not empty, otherwise 1 /
// channels. It is not more than channel_gbytes_per_s, unless that is 0.
double Costs::gbytes_per_s(const MessageClass& kind) const {
  const MessageCost& cost = cost_of(kind.level);
  const bool by_channel = moved_by_channel(kind.level);
  double together = cost.gbytes_per_s;
  if (kind.bound_gbytes_per_s > 0) together = std::min(together, kind.bound_gbytes_per_s);
  const double part = by_channel || shares_.empty() ? 1.0 / options_.channels : kind.share;
  double share = together * part;
  if (cost.channel_gbytes_per_s > 0) share = std::min(share, cost.channel_gbytes_per_s);
  return share;
}

double Costs::compute_us(const ProgramStep& step, double factor) const {
  const double part = 1.0 / options_.channels;
  const double adding =
      step.operands > 1 ? us_of(bytes_ * step.run * (step.operands - 1), parameters_->reduce_gbytes_per_s * part) : 0;
  const double copying = step.copies != 0 ? us_of(bytes_ * step.run, parameters_->copy_gbytes_per_s * part) : 0;
  return factor * std::max(adding, copying);
}

void Costs::set_bytes(double bytes) {
  bytes_ = bytes;
  struct Times {
    double post, move, transfer, hold, gap, latency, gbytes_per_s;
  };
  std::vector<Times> by_kind;
  for (const MessageClass& kind : kinds_) {
    const MessageCost& cost = cost_of(kind.level);
    const double rate = gbytes_per_s(kind);
    const double wire = kind.factor * us_of(bytes, rate);
    const bool by_channel = moved_by_channel(kind.level);
    by_kind.push_back({.post = kind.factor * cost.post_us,
                       .move = by_channel ? wire : 0,
                       .transfer = by_channel ? cost.latency_us : wire + cost.latency_us,
                       .hold = by_channel ? kNever : kind.factor * cost.gap_us + wire,
                       .gap = kind.factor * cost.gap_us,
                       .latency = cost.latency_us,
                       .gbytes_per_s = rate / kind.factor});
  }
  for (Message& message : messages_) {
    MessageTimes& times = message.times;
    times = {};
    for (const std::uint32_t k : message.kinds) {
      times.post.push_back(by_kind[k].post);
      times.move.push_back(by_kind[k].move);
      times.transfer.push_back(by_kind[k].transfer);
      times.hold.push_back(by_kind[k].hold);
      times.gap.push_back(by_kind[k].gap);
      times.latency.push_back(by_kind[k].latency);
      times.gbytes_per_s.push_back(by_kind[k].gbytes_per_s);
    }
  }
  for (StepClass& kind : steps_) {
    const ProgramStep& step = programs_->steps[kind.step];
    const std::uint32_t* sends = programs_->lists.data() + step.list_begin + step.receives;
    kind.times.resize(places_);
    for (std::uint32_t place = 0; place < places_; ++place) {
      const double slower = factor(rank(kind.thread, place));
      double posts = slower * parameters_->step_us, moves = 0;
      for (std::uint32_t i = 0; i < step.sends; ++i) {
        posts += message(sends[i]).post[place];
        moves += step.run * message(sends[i]).move[place];
      }
      kind.times[place] = posts + std::max(compute_us(step, slower), moves);
    }
  }
}

std::pair<double, double> Costs::still(std::uint64_t number, std::uint32_t place) const {
  const StepClass& kind = steps_[step_of_[number]];
  const ProgramStep& step = programs_->steps[kind.step];
  const std::uint32_t* sends = programs_->lists.data() + step.list_begin + step.receives;
  const double slower = factor(rank(kind.thread, place));
  double posts = slower * parameters_->step_us;
  for (std::uint32_t i = 0; i < step.sends; ++i) posts += message(sends[i]).post[place];
  return {posts, compute_us(step, slower)};
}

}  // namespace tutti

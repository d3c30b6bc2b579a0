// Race detection similar to FastTrack. For each location, the last write is stored as one epoch (a thread and the value
// of its own clock entry) instead of a whole clock. The last read is also stored as one epoch, until two reads without
// a write in between are not ordered; from then on, the location has a list of reads. Source: C. Flanagan, S. N.
// Freund, "FastTrack: efficient and precise dynamic race detection", PLDI 2009.
#include "plan/verify/races.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"
#include "plan/collective.h"
#include "plan/windows.h"

namespace tutti {
namespace {

constexpr std::size_t kMaxClockBytes = std::size_t{2} << 30;

std::uint64_t step_key(std::uint32_t thread, std::uint32_t step) { return (std::uint64_t{thread} << 32) | step; }

void join_clock(std::span<std::uint32_t> into, std::span<const std::uint32_t> other) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], other[i]);
}

}  // namespace

std::size_t location_count(const PlanShape& shape, std::uint32_t rank, std::uint32_t tiles) {
  return (std::size_t{input_chunks(shape, rank)} + output_chunks(shape, rank)) * tiles + shape.scratch_chunks;
}

std::size_t location_of(const PlanShape& shape, bool in_place, std::uint32_t rank, const Slice& slice, TileIndex at) {
  const std::size_t outputs = output_chunks(shape, rank);
  const std::size_t inputs = input_chunks(shape, rank);
  if (slice.space == Space::kScratch) return (outputs + inputs) * at.tiles + slice.chunk;
  if (slice.space == Space::kOutput) return at.tile * outputs + slice.chunk;
  TUTTI_ASSERT(slice.space == Space::kInput, "there is no memory without a space");
  const std::uint32_t alias = in_place ? output_alias(shape, rank, slice.chunk) : kNoChunk;
  return alias != kNoChunk ? at.tile * outputs + alias : outputs * at.tiles + at.tile * inputs + slice.chunk;
}

std::vector<std::uint8_t> message_rules(const Wiring& wiring, const VerifyOptions& options) {
  std::vector<std::uint8_t> rules(wiring.sender_step.size(), 0);
  if (!options.windows) return rules;
  if (options.in_place && !wiring.plan->shape.windows_in_place) return rules;
  for (const ConnectionInfo& connection : wiring.connections) {
    for (std::uint32_t m = connection.first_message; m < connection.first_message + connection.messages; ++m) {
      const Step& sender = wiring.threads[connection.sender].program->steps[wiring.sender_step[m]];
      const Step& receiver = wiring.threads[connection.receiver].program->steps[wiring.receiver_step[m]];
      if (can_publish(sender)) rules[m] |= kMayPublish;
      if (can_push(receiver)) rules[m] |= kMayPush;
    }
  }
  return rules;
}

Result<Races> Races::create(const Wiring& wiring, std::span<const std::uint8_t> rules, const VerifyOptions& options,
                            std::uint32_t slots) {
  const std::size_t threads = wiring.threads.size();
  if ((threads + 2 * wiring.plan->ranks.size()) * threads * sizeof(std::uint32_t) > kMaxClockBytes) {
    return Error{.code = ErrorCode::kUnsupported,
                 .message = fmt::format("the vector clocks of {} channels take more than {} MiB; verify fewer ranks",
                                        threads, kMaxClockBytes >> 20)};
  }
  return Races(wiring, rules, options, slots);
}

Races::Races(const Wiring& wiring, std::span<const std::uint8_t> rules, const VerifyOptions& options,
             std::uint32_t slots)
    : wiring_(&wiring),
      rules_(rules),
      options_(options),
      slots_(slots),
      width_(static_cast<std::uint32_t>(wiring.threads.size())) {
  const Plan& plan = *wiring.plan;
  clocks_.assign(std::size_t{width_} * width_, 0);
  for (std::uint32_t t = 0; t < width_; ++t) clock(t)[t] = 1;
  begin_clocks_.assign(plan.ranks.size() * width_, 0);
  drain_clocks_.assign(plan.ranks.size() * width_, 0);
  pool_.emplace_back();  // snapshot 0 stands for "no snapshot"
  uses_.push_back(0);
  queues_.resize(wiring.connections.size());
  messages_.assign(wiring.connections.size() * slots, 0);
  credits_.assign(wiring.connections.size() * slots, 0);
  published_.assign(wiring.connections.size() * slots, 0);
  for (std::uint32_t t = 0; t < width_; ++t) {
    const ThreadInfo& info = wiring.threads[t];
    for (const After& after : info.program->after) {
      awaited_[step_key(wiring.first_thread[info.rank] + after.other_channel, after.other_step)].assign(options.tiles,
                                                                                                        0);
    }
  }
  first_location_.push_back(0);
  for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    first_location_.push_back(first_location_.back() + location_count(plan.shape, rank, options.tiles));
  }
  locations_.resize(first_location_.back());
}

void Races::join(std::span<std::uint32_t> into, Snapshot snapshot) {
  if (snapshot != 0) join_clock(into, pool_[snapshot]);
}

Races::Snapshot Races::take_snapshot(std::uint32_t thread, std::uint32_t uses) {
  if (uses == 0) return 0;
  if (free_.empty()) {
    free_.push_back(static_cast<Snapshot>(pool_.size()));
    pool_.emplace_back(width_);
    uses_.push_back(0);
  }
  const Snapshot snapshot = free_.back();
  free_.pop_back();
  std::copy(clock(thread).begin(), clock(thread).end(), pool_[snapshot].begin());
  uses_[snapshot] = uses;
  return snapshot;
}

void Races::release(Snapshot snapshot) {
  if (snapshot != 0 && --uses_[snapshot] == 0) free_.push_back(snapshot);
}

std::optional<Error> Races::between_calls(std::uint32_t rank) {
  const std::uint32_t first = wiring_->first_thread[rank];
  const std::uint32_t last = wiring_->first_thread[rank + 1];
  const std::span<std::uint32_t> user = clock(first);
  const auto drained = std::span(drain_clocks_).subspan(std::size_t{rank} * width_, width_);
  for (std::uint32_t t = first + 1; t < last; ++t) join_clock(user, clock(t));
  join_clock(user, drained);
  ++user[first];
  const Access access{.thread = first, .epoch = user[first], .step = 0, .kind = AccessType::kUser};
  const PlanShape& shape = wiring_->plan->shape;
  for (std::uint64_t tile = 0; tile < options_.tiles; ++tile) {
    for (const Space space : {Space::kInput, Space::kOutput}) {
      const std::uint32_t chunks = space == Space::kInput ? input_chunks(shape, rank) : output_chunks(shape, rank);
      for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
        const bool shared = space == Space::kInput && options_.in_place && output_alias(shape, rank, chunk) != kNoChunk;
        if (shared) continue;  // this memory is also an output chunk; the loop over the outputs checks the write
        if (auto error = write(rank, {.space = space, .chunk = chunk}, tile, access)) return error;
      }
    }
  }
  for (std::uint32_t t = first + 1; t < last; ++t) {
    const std::uint32_t own = clock(t)[t];
    std::copy(user.begin(), user.end(), clock(t).begin());
    clock(t)[t] = own + 1;
  }
  std::copy(user.begin(), user.end(), begin_clocks_.begin() + static_cast<std::ptrdiff_t>(std::size_t{rank} * width_));
  return std::nullopt;
}

// Joins into the thread's clock the clocks of the steps in other channels of the same rank for which this step
// waits (After).
void Races::join_after(std::uint32_t thread, std::uint32_t step_index, std::uint64_t tile) {
  const ThreadInfo& info = wiring_->threads[thread];
  const std::vector<After>& after = info.program->after;
  auto entry = std::lower_bound(after.begin(), after.end(), step_index,
                                [](const After& a, std::uint32_t step) { return a.step < step; });
  for (; entry != after.end() && entry->step == step_index; ++entry) {
    if (tile < entry->tiles_before) continue;
    const std::uint64_t key = step_key(wiring_->first_thread[info.rank] + entry->other_channel, entry->other_step);
    join(clock(thread), awaited_[key][tile - entry->tiles_before]);
  }
}

// A message is pushed only if the receiving rank has already entered the call; otherwise it goes through a slot. So for
// each send of the step that may be a push, joins into the thread's clock the clock with which the receiving rank has
// entered its call.
void Races::join_push_grants(std::uint32_t thread, const Step& step) {
  const ThreadInfo& info = wiring_->threads[thread];
  for (std::uint16_t port : info.program->sends(step)) {
    const std::uint32_t c = wiring_->port_connection[info.first_port + port];
    const ConnectionInfo& connection = wiring_->connections[c];
    const auto message = connection.first_message + static_cast<std::uint32_t>(queues_[c].sent % connection.messages);
    if ((rules_[message] & kMayPush) == 0) continue;
    const std::size_t receiver = wiring_->threads[connection.receiver].rank;
    join_clock(clock(thread), std::span(begin_clocks_).subspan(receiver * width_, width_));
  }
}

// Joins into the thread's clock the clocks of all events that must happen before this step: the sends of its
// messages, the receives that have freed the slots for its sends, grants of pushes, and waits. The earlier steps
// of the thread are already in its clock.
void Races::join_order(std::uint32_t thread, const Step& step, std::uint32_t step_index, std::uint64_t tile) {
  const ThreadInfo& info = wiring_->threads[thread];
  for (std::uint16_t port : info.program->receives(step)) {
    const std::uint32_t c = wiring_->port_connection[info.first_port + port];
    join(clock(thread), messages_[c * std::size_t{slots_} + queues_[c].received % slots_]);
  }
  for (std::uint16_t port : info.program->sends(step)) {
    const std::uint32_t c = wiring_->port_connection[info.first_port + port];
    Snapshot& credit = credits_[c * std::size_t{slots_} + queues_[c].sent % slots_];
    join(clock(thread), credit);
    release(credit);
    credit = 0;
  }
  if (options_.windows) join_push_grants(thread, step);
  if (!info.program->after.empty()) join_after(thread, step_index, tile);
}

// Stores the clock of this step for the steps that happen after it: for the receivers of its messages, for the
// senders whose slots it has freed, and for steps that wait for it (After).
void Races::hand_out(std::uint32_t thread, const Step& step, std::uint32_t step_index, std::uint64_t tile) {
  const ThreadInfo& info = wiring_->threads[thread];
  const auto awaited = awaited_.empty() ? awaited_.end() : awaited_.find(step_key(thread, step_index));
  const bool kept = awaited != awaited_.end();
  const Snapshot done = take_snapshot(thread, std::uint32_t{step.receive_count} + step.send_count + (kept ? 1 : 0));
  for (std::uint16_t port : info.program->receives(step)) {
    const std::uint32_t c = wiring_->port_connection[info.first_port + port];
    const ConnectionInfo& connection = wiring_->connections[c];
    const std::size_t slot = c * std::size_t{slots_} + queues_[c].received % slots_;
    const auto message =
        connection.first_message + static_cast<std::uint32_t>(queues_[c].received % connection.messages);
    release(messages_[slot]);
    messages_[slot] = 0;
    credits_[slot] = done;
    ++queues_[c].received;
    if ((rules_[message] & kMayPublish) != 0) {
      const std::size_t sender = wiring_->threads[connection.sender].rank;
      join_clock(std::span(drain_clocks_).subspan(sender * width_, width_), pool_[done]);
    }
  }
  for (std::uint16_t port : info.program->sends(step)) {
    const std::uint32_t c = wiring_->port_connection[info.first_port + port];
    const std::size_t slot = c * std::size_t{slots_} + queues_[c].sent % slots_;
    const ConnectionInfo& connection = wiring_->connections[c];
    const auto message = connection.first_message + static_cast<std::uint32_t>(queues_[c].sent % connection.messages);
    if ((rules_[message] & kMayPublish) != 0) {
      published_[slot] = locations_[location(info.rank, step.source, tile)].writes;
    }
    messages_[slot] = done;
    ++queues_[c].sent;
  }
  if (kept) {
    release(awaited->second[tile]);
    awaited->second[tile] = done;
  }
}

std::optional<Error> Races::step(std::uint32_t thread, std::uint32_t step_index, std::uint64_t tile) {
  const Step& step = wiring_->threads[thread].program->steps[step_index];
  join_order(thread, step, step_index, tile);
  const std::uint32_t epoch = ++clock(thread)[thread];
  const Access access{.thread = thread, .epoch = epoch, .step = step_index, .kind = AccessType::kRead};
  if (options_.windows) {
    if (auto error = check_remote(thread, step, access, tile)) return error;
  }
  if (auto error = check_local(thread, step, access, tile)) return error;
  hand_out(thread, step, step_index, tile);
  if (pool_.size() * width_ * sizeof(std::uint32_t) > kMaxClockBytes) {
    return Error{
        .code = ErrorCode::kUnsupported,
        .message = fmt::format("the vector clocks of the messages under way take more than {} MiB; verify fewer ranks",
                               kMaxClockBytes >> 20)};
  }
  return std::nullopt;
}

std::optional<Error> Races::check_local(std::uint32_t thread, const Step& step, const Access& access,
                                        std::uint64_t tile) {
  const std::uint32_t rank = wiring_->threads[thread].rank;
  const PlanShape& shape = wiring_->plan->shape;
  Access local = access;
  std::optional<Error> error;
  local.kind = AccessType::kRead;
  for_each_chunk(shape, rank, step, step.source, [&](const Slice& slice) {
    if (!error) error = read(rank, slice, tile, local);
  });
  local.kind = AccessType::kWrite;
  for_each_chunk(shape, rank, step, step.sink, [&](const Slice& slice) {
    if (!error) error = write(rank, slice, tile, local);
  });
  return error;
}

// Checks this step's accesses to the memory of peers: reads of slices that peers have published, and writes of
// pushes into the sinks of peers.
std::optional<Error> Races::check_remote(std::uint32_t thread, const Step& step, const Access& access,
                                         std::uint64_t tile) {
  const ThreadInfo& info = wiring_->threads[thread];
  Access remote = access;
  for (std::uint16_t port : info.program->receives(step)) {
    const std::uint32_t c = wiring_->port_connection[info.first_port + port];
    const ConnectionInfo& connection = wiring_->connections[c];
    const auto message =
        connection.first_message + static_cast<std::uint32_t>(queues_[c].received % connection.messages);
    if ((rules_[message] & kMayPublish) == 0) continue;
    const ThreadInfo& sender = wiring_->threads[connection.sender];
    remote.kind = AccessType::kPublishedRead;
    const Slice& slice = sender.program->steps[wiring_->sender_step[message]].source;
    const std::size_t slot = c * std::size_t{slots_} + queues_[c].received % slots_;
    if (auto error = read(sender.rank, slice, tile, remote)) return error;
    if (auto error = check_unchanged(sender.rank, slice, tile, slot, remote)) return error;
  }
  for (std::uint16_t port : info.program->sends(step)) {
    const std::uint32_t c = wiring_->port_connection[info.first_port + port];
    const ConnectionInfo& connection = wiring_->connections[c];
    const auto message = connection.first_message + static_cast<std::uint32_t>(queues_[c].sent % connection.messages);
    if ((rules_[message] & kMayPush) == 0) continue;
    const ThreadInfo& receiver = wiring_->threads[connection.receiver];
    remote.kind = AccessType::kPush;
    const Slice& slice = receiver.program->steps[wiring_->receiver_step[message]].sink;
    if (auto error = write(receiver.rank, slice, tile, remote)) return error;
  }
  return std::nullopt;
}

std::size_t Races::location(std::uint32_t rank, const Slice& slice, std::uint64_t tile) const {
  return first_location_[rank] +
         location_of(wiring_->plan->shape, options_.in_place, rank, slice, {.tile = tile, .tiles = options_.tiles});
}

bool Races::ordered(const Access& earlier, std::uint32_t thread) {
  ++checks_;
  return clock(thread)[earlier.thread] >= earlier.epoch;
}

// Checks that no step has written the published slice between the step that published it and this read. The check
// for races does not find such a write if other messages order it before this read.
std::optional<Error> Races::check_unchanged(std::uint32_t rank, const Slice& slice, std::uint64_t tile,
                                            std::size_t slot, const Access& access) const {
  const Location& place = locations_[location(rank, slice, tile)];
  if (place.writes == published_[slot]) return std::nullopt;
  return plan_error(rank,
                    fmt::format("{} of rank {} in tile {} is overwritten by {} after it was published and before {}",
                                to_string(slice), rank, tile, describe(place.write), describe(access)));
}

std::optional<Error> Races::read(std::uint32_t rank, const Slice& slice, std::uint64_t tile, const Access& access) {
  Location& place = locations_[location(rank, slice, tile)];
  if (!ordered(place.write, access.thread)) return race(rank, slice, tile, place.write, access);
  // The value may have been pushed, but at run time the push may not be possible. Then the receiving step itself
  // writes the value, so nothing may read it before that step.
  if (place.write.kind == AccessType::kPush) {
    return plan_error(rank,
                      fmt::format("{} of rank {} in tile {}: {} comes after {} and before the step that receives it",
                                  to_string(slice), rank, tile, describe(access), describe(place.write)));
  }
  if (place.many == 0 && ordered(place.read, access.thread)) {
    place.read = access;
    return std::nullopt;
  }
  if (place.many == 0) {
    read_sets_.push_back({place.read});
    place.many = static_cast<std::uint32_t>(read_sets_.size());
  }
  std::vector<Access>& reads = read_sets_[place.many - 1];
  std::erase_if(reads, [&](const Access& earlier) { return ordered(earlier, access.thread); });
  reads.push_back(access);
  return std::nullopt;
}

std::optional<Error> Races::write(std::uint32_t rank, const Slice& slice, std::uint64_t tile, const Access& access) {
  Location& place = locations_[location(rank, slice, tile)];
  if (!ordered(place.write, access.thread)) return race(rank, slice, tile, place.write, access);
  if (place.many == 0) {
    if (!ordered(place.read, access.thread)) return race(rank, slice, tile, place.read, access);
  } else {
    for (const Access& earlier : read_sets_[place.many - 1]) {
      if (!ordered(earlier, access.thread)) return race(rank, slice, tile, earlier, access);
    }
    read_sets_[place.many - 1].clear();
  }
  place.write = access;
  place.read = {};
  ++place.writes;
  return std::nullopt;
}

std::string Races::describe(const Access& access) const {
  if (access.kind == AccessType::kUser)
    return fmt::format("the caller of rank {} between two calls", wiring_->threads[access.thread].rank);
  std::string place = step_name(*wiring_, access.thread, access.step);
  switch (access.kind) {
    case AccessType::kRead: return place + " (a read)";
    case AccessType::kWrite: return place + " (a write)";
    case AccessType::kPublishedRead: return place + " (a read of what was published to it)";
    case AccessType::kPush: return place + " (a write into its receiver's sink)";
    case AccessType::kUser: break;
  }
  return place;
}

Error Races::race(std::uint32_t rank, const Slice& slice, std::uint64_t tile, const Access& earlier,
                  const Access& later) const {
  return plan_error(rank, fmt::format("race on {} of rank {} in tile {}: nothing orders {} and {}", to_string(slice),
                                      rank, tile, describe(earlier), describe(later)));
}

}  // namespace tutti

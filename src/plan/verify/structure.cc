// Checks a plan without running it: all fields are in bounds, each connection has two ends, and its ends agree on
// the number of messages.
#include "plan/verify/structure.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "base/assert.h"
#include "plan/collective.h"

namespace tutti {
namespace {

constexpr std::uint32_t kNoConnection = ~std::uint32_t{0};
// Limit on the number of chunks of one buffer, so that chunk numbers fit into 32 bits.
constexpr std::uint64_t kMostChunks = std::uint64_t{1} << 31;

// Checks the source or the sink of a step. `run`: Step::run; a run may go around the end of the buffer, but must not
// have more chunks than the buffer. Returns an error message, or an empty string if the slice is valid.
std::string slice_fault(const PlanShape& shape, std::uint32_t rank, const Slice& slice, std::uint32_t run) {
  if (slice.reserved[0] != 0 || slice.reserved[1] != 0 || slice.reserved[2] != 0)
    return "has a reserved byte that is not 0";
  if (slice.space == Space::kNone)
    return slice.chunk == 0 ? "" : fmt::format("is no slice, but has chunk {}", slice.chunk);
  if (slice.space > Space::kScratch) return fmt::format("has unknown space {}", static_cast<int>(slice.space));
  const std::uint32_t chunks = space_chunks(shape, rank, slice.space);
  if (slice.chunk < chunks && run <= chunks) return "";
  if (slice.chunk < chunks) return fmt::format("is a run of {} chunks, but there are {}", run, chunks);
  if (chunks == 0) return fmt::format("{} is out of bounds: rank {} has no such buffer", to_string(slice), rank);
  return fmt::format("{} is out of bounds: there are {} chunks", to_string(slice), chunks);
}

// Checks the step's entries in Channel::lists. Returns an error message, or an empty string if they are valid.
// `used` is working memory with at least one element for each port. All elements are 0 before and after the call.
std::string list_fault(const Channel& channel, const Step& step, std::vector<std::uint8_t>& used) {
  const std::uint64_t end = std::uint64_t{step.list_begin} + step.receive_count + step.send_count;
  if (end > channel.lists.size()) {
    return fmt::format("its ports end at {} of a list of {}", end, channel.lists.size());
  }
  std::string fault;
  const std::span<const std::uint16_t> ports =
      std::span(channel.lists).subspan(step.list_begin, std::size_t{step.receive_count} + step.send_count);
  std::size_t checked = 0;
  for (; checked < ports.size() && fault.empty(); ++checked) {
    const std::uint16_t port = ports[checked];
    const Direction wanted = checked < step.receive_count ? Direction::kReceive : Direction::kSend;
    if (port >= channel.ports.size()) {
      fault = fmt::format("port {} is out of bounds: the channel has {}", port, channel.ports.size());
    } else if (channel.ports[port].direction != wanted) {
      fault = fmt::format("port {} {}", port, wanted == Direction::kSend ? "can not send" : "can not receive");
    } else if (used[port]++ != 0) {
      const Port& named = channel.ports[port];
      fault = fmt::format("{} rank {}, lane {}, twice: a step uses each connection once",
                          wanted == Direction::kSend ? "sends to" : "receives from", named.peer, named.lane);
    }
  }
  for (std::size_t i = 0; i < checked; ++i) {
    if (ports[i] < used.size()) used[ports[i]] = 0;
  }
  return fault;
}

// Checks that the equations of a run do not depend on each other: none of them may store to a chunk that another one
// reads, not even in an in-place call, in which an input chunk can be an output chunk, too. (One equation may store to
// the chunk that it reads itself.) Returns an error message, or an empty string.
std::string overlap_fault(const PlanShape& shape, std::uint32_t rank, const Step& step) {
  if (step.run == 1 || step.source.space == Space::kNone || step.sink.space == Space::kNone) return "";
  const std::uint32_t sources = space_chunks(shape, rank, step.source.space);
  const std::uint32_t sinks = space_chunks(shape, rank, step.sink.space);
  for (std::uint32_t i = 0; i < step.run; ++i) {
    const Slice read = chunk_of_run(step.source, i, sources);
    std::uint32_t same = read.space == step.sink.space ? read.chunk : kNoChunk;
    if (read.space == Space::kInput && step.sink.space == Space::kOutput) same = output_alias(shape, rank, read.chunk);
    if (same == kNoChunk) continue;
    // `same` is the chunk of the sink's buffer that the step reads. from_sink: how many chunks it is after the sink,
    // and so which equation stores to it, if any.
    const std::uint32_t from_sink = same >= step.sink.chunk ? same - step.sink.chunk : same + sinks - step.sink.chunk;
    if (from_sink == i || from_sink >= step.run) continue;
    return fmt::format("stores to {}, which the run of the same step also reads as {}",
                       to_string(chunk_of_run(step.sink, from_sink, sinks)), to_string(read));
  }
  return "";
}

std::string step_fault(const PlanShape& shape, std::uint32_t rank, const Channel& channel, const Step& step,
                       std::vector<std::uint8_t>& used) {
  if (step.reserved != 0) return "has a reserved byte that is not 0";
  if (step.run == 0 || step.run > shape.longest_run) {
    return fmt::format("has a run of {} chunks; the plan's runs have 1 to {}", step.run, shape.longest_run);
  }
  if (std::string fault = slice_fault(shape, rank, step.source, step.run); !fault.empty()) return "source " + fault;
  if (std::string fault = slice_fault(shape, rank, step.sink, step.run); !fault.empty()) return "sink " + fault;
  if (step.sink.space == Space::kInput) return fmt::format("stores to {}: input is only read", to_string(step.sink));
  const bool local = step.source.space != Space::kNone;
  if (!local && step.receive_count == 0) return "has no operand";
  if (step.sink.space == Space::kNone && step.send_count == 0) return "has no effect: neither a sink nor a send";
  if (step.source_position > (local ? step.receive_count : 0)) {
    return fmt::format("source position {} is out of bounds", step.source_position);
  }
  if (step.completes > 1) return fmt::format("completes is {}, not 0 or 1", step.completes);
  // The executor takes the length of each value from the local operand or from the output chunk to which it is stored.
  // In a run that has neither, the lengths are known only if all chunks are equally long, so every block must consist
  // of one chunk.
  if (step.run > 1 && !local && step.sink.space != Space::kOutput && shape.chunks != 1) {
    return "receives a run without a local operand, and does not store it to the output: a block must have one chunk "
           "then";
  }
  if (std::string fault = overlap_fault(shape, rank, step); !fault.empty()) return fault;
  return list_fault(channel, step, used);
}

Status check_ports(const Plan& plan, std::uint32_t rank, std::uint32_t channel_index) {
  const Channel& channel = plan.ranks[rank].channels[channel_index];
  for (std::size_t i = 0; i < channel.ports.size(); ++i) {
    const Port& port = channel.ports[i];
    std::string fault;
    if (port.peer >= plan.ranks.size())
      fault = fmt::format("peer {} is not one of {} ranks", port.peer, plan.ranks.size());
    if (port.peer == rank) fault = "the peer is the rank itself";
    if (port.lane >= plan.shape.lanes) fault = fmt::format("lane {} is not one of {}", port.lane, plan.shape.lanes);
    if (port.direction != Direction::kReceive && port.direction != Direction::kSend) fault = "unknown direction";
    if (port.reserved != 0) fault = "reserved byte is not 0";
    if (!fault.empty())
      return plan_error(rank, fmt::format("rank {} channel {} port {}: {}", rank, channel_index, i, fault));
  }
  return {};
}

Status check_after(const Plan& plan, std::uint32_t rank, std::uint32_t channel_index) {
  const std::vector<Channel>& channels = plan.ranks[rank].channels;
  const Channel& channel = channels[channel_index];
  for (std::size_t i = 0; i < channel.after.size(); ++i) {
    const After& after = channel.after[i];
    std::string fault;
    if (after.tiles_before > 1) fault = fmt::format("it waits for a step {} tiles before", after.tiles_before);
    if (after.step >= channel.steps.size()) fault = fmt::format("there is no step {} to wait", after.step);
    if (i > 0 && channel.after[i - 1].step > after.step) fault = "the list is not sorted by step";
    if (after.other_channel >= channels.size()) {
      fault = fmt::format("there is no channel {} to wait for", after.other_channel);
    } else if (after.other_channel == channel_index) {
      fault = "a channel can not wait for itself";
    } else if (after.other_step >= channels[after.other_channel].steps.size()) {
      fault = fmt::format("channel {} has no step {} to wait for", after.other_channel, after.other_step);
    }
    if (!fault.empty())
      return plan_error(
          rank, fmt::format("rank {} channel {} step {}, after {}: {}", rank, channel_index, after.step, i, fault));
  }
  return {};
}

Status check_shape(const Plan& plan) {
  const PlanShape& shape = plan.shape;
  std::string fault;
  const Collective& collective = shape.collective;
  const bool known = has_plan(collective.kind);
  if (!known) fault = "the collective is unknown";
  if (collective.ranks == 0) fault = "there are no ranks";
  if (known && collective.root >= std::max(has_root(collective.kind) ? collective.ranks : 1, 1u)) {
    fault = fmt::format("root {} is outside", collective.root);
  }
  if (!collective.nodes.empty() && collective.nodes.size() != collective.ranks) {
    fault = fmt::format("nodes has {} entries instead of one per rank", collective.nodes.size());
  }
  if (shape.collective.ranks != plan.ranks.size()) {
    fault = fmt::format("it is for {} ranks but holds {}", shape.collective.ranks, plan.ranks.size());
  }
  if (shape.chunks == 0) fault = "there are no chunks";
  if (std::uint64_t{shape.chunks} * std::max(collective.ranks, 1u) > kMostChunks) {
    fault = fmt::format("{} chunks in {} blocks are too many", shape.chunks, collective.ranks);
  }
  if (shape.longest_run == 0) fault = "the longest run has 0 chunks";
  if (shape.slots == 0) fault = "connections hold 0 messages";
  if (shape.order > Order::kCyclic) fault = "the order of addition is unknown";
  if (!fault.empty()) return Error{.code = ErrorCode::kInvalidPlan, .message = "the plan's shape: " + fault};
  return {};
}

Status check_channels(const Plan& plan) {
  std::vector<std::uint8_t> used;
  for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const std::vector<Channel>& channels = plan.ranks[rank].channels;
    if (channels.empty()) return plan_error(rank, fmt::format("rank {} has no channel", rank));
    for (std::uint32_t c = 0; c < channels.size(); ++c) {
      TUTTI_TRY(check_ports(plan, rank, c));
      used.assign(std::max(used.size(), channels[c].ports.size()), 0);
      for (std::size_t s = 0; s < channels[c].steps.size(); ++s) {
        const std::string fault = step_fault(plan.shape, rank, channels[c], channels[c].steps[s], used);
        if (!fault.empty()) return plan_error(rank, fmt::format("rank {} channel {} step {}: {}", rank, c, s, fault));
      }
      TUTTI_TRY(check_after(plan, rank, c));
    }
  }
  return {};
}

void list_threads(const Plan& plan, Wiring& wiring) {
  std::uint32_t ports = 0;
  for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    wiring.first_thread.push_back(static_cast<std::uint32_t>(wiring.threads.size()));
    const std::vector<Channel>& channels = plan.ranks[rank].channels;
    for (std::uint32_t c = 0; c < channels.size(); ++c) {
      wiring.threads.push_back({.rank = rank, .channel = c, .first_port = ports, .program = &channels[c]});
      ports += static_cast<std::uint32_t>(channels[c].ports.size());
    }
  }
  wiring.first_thread.push_back(static_cast<std::uint32_t>(wiring.threads.size()));
  wiring.port_connection.assign(ports, kNoConnection);
}

// One end of a connection: a port of a channel. operator< sorts the two ends of a connection next to each other,
// the receiving end first.
struct ConnectionEnd {
  std::uint32_t sender;  // sender and receiver are ranks, unlike in ConnectionInfo, which has threads
  std::uint32_t receiver;
  std::uint16_t lane;
  Direction direction;
  std::uint32_t thread;
  std::uint32_t port;  // index of this end in Wiring::port_connection

  auto key() const { return std::tuple(sender, receiver, lane); }
  bool operator<(const ConnectionEnd& other) const {
    return std::tuple(sender, receiver, lane, direction) <
           std::tuple(other.sender, other.receiver, other.lane, other.direction);
  }
};

std::vector<ConnectionEnd> list_ends(const Wiring& wiring) {
  std::vector<ConnectionEnd> ends;
  ends.reserve(wiring.port_connection.size());
  for (std::uint32_t thread = 0; thread < wiring.threads.size(); ++thread) {
    const ThreadInfo& info = wiring.threads[thread];
    for (std::uint32_t i = 0; i < info.program->ports.size(); ++i) {
      const Port& port = info.program->ports[i];
      const bool sends = port.direction == Direction::kSend;
      ends.push_back({.sender = sends ? info.rank : port.peer,
                      .receiver = sends ? port.peer : info.rank,
                      .lane = port.lane,
                      .direction = port.direction,
                      .thread = thread,
                      .port = info.first_port + i});
    }
  }
  std::sort(ends.begin(), ends.end());
  return ends;
}

// Returns the first step of the thread that uses port number `port` of its channel, as text for an error message,
// for example " step 3". Empty if no step uses the port.
std::string first_use(const ThreadInfo& info, std::uint32_t port) {
  for (std::size_t s = 0; s < info.program->steps.size(); ++s) {
    const Step& step = info.program->steps[s];
    const auto ports =
        std::span(info.program->lists).subspan(step.list_begin, std::size_t{step.receive_count} + step.send_count);
    if (std::find(ports.begin(), ports.end(), port) != ports.end()) return fmt::format(" step {}", s);
  }
  return "";
}

Status connect(Wiring& wiring) {
  const std::vector<ConnectionEnd> ends = list_ends(wiring);
  wiring.connections.reserve(ends.size() / 2);
  for (std::size_t i = 0; i < ends.size();) {
    std::size_t last = i;
    while (last < ends.size() && ends[last].key() == ends[i].key()) ++last;
    const bool paired = last - i == 2 && ends[i].direction != ends[i + 1].direction;
    if (!paired) {
      const auto sending = std::count_if(&ends[i], &ends[i] + (last - i),
                                         [](const ConnectionEnd& each) { return each.direction == Direction::kSend; });
      const ConnectionEnd& end = ends[last - 1];
      const ThreadInfo& info = wiring.threads[end.thread];
      return plan_error(
          info.rank,
          fmt::format("the connection from rank {} to rank {}, lane {}, has {} sending and {} receiving ports "
                      "instead of one each; the last of them is of rank {} channel {}{}",
                      ends[i].sender, ends[i].receiver, ends[i].lane, sending,
                      static_cast<std::ptrdiff_t>(last - i) - sending, info.rank, info.channel,
                      first_use(info, end.port - info.first_port)));
    }
    const auto connection = static_cast<std::uint32_t>(wiring.connections.size());
    wiring.port_connection[ends[i].port] = connection;
    wiring.port_connection[ends[i + 1].port] = connection;
    wiring.connections.push_back({.sender = ends[i + 1].thread, .receiver = ends[i].thread, .lane = ends[i].lane});
    i = last;
  }
  return {};
}

// Calls visit(connection, step) for every receive (or every send, depending on `direction`) of every thread. The
// calls for one thread are in program order.
template <class Visit>
void for_each_message(const Wiring& wiring, Direction direction, Visit visit) {
  for (const ThreadInfo& info : wiring.threads) {
    for (std::uint32_t s = 0; s < info.program->steps.size(); ++s) {
      const Step& step = info.program->steps[s];
      for (std::uint16_t port :
           direction == Direction::kSend ? info.program->sends(step) : info.program->receives(step)) {
        visit(wiring.port_connection[info.first_port + port], s);
      }
    }
  }
}

// Returns the step that sends (or receives, depending on `direction`) message number `wanted` of a connection.
// Messages of a tile are numbered from 0.
std::uint32_t step_of_message(const Wiring& wiring, std::uint32_t connection, Direction direction,
                              std::uint32_t wanted) {
  std::uint32_t found = 0;
  std::uint32_t message = 0;
  for_each_message(wiring, direction, [&](std::uint32_t c, std::uint32_t step) {
    if (c == connection && message++ == wanted) found = step;
  });
  return found;
}

// Returns the error for connection number `index`: its receiver receives `received` messages per tile, but its
// sender sends another number. The message names the step of the first message that has no partner.
Error unmatched_message(const Wiring& wiring, std::uint32_t index, std::uint32_t received) {
  const ConnectionInfo& connection = wiring.connections[index];
  const bool more_sent = connection.messages > received;
  const ThreadInfo& sender = wiring.threads[connection.sender];
  const ThreadInfo& receiver = wiring.threads[connection.receiver];
  const std::uint32_t step = step_of_message(wiring, index, more_sent ? Direction::kSend : Direction::kReceive,
                                             std::min(connection.messages, received));
  return plan_error(
      more_sent ? sender.rank : receiver.rank,
      fmt::format("rank {} channel {} sends {} messages per tile to rank {}, lane {}, but channel {} "
                  "there receives {}: {} {} the first that has no partner",
                  sender.rank, sender.channel, connection.messages, receiver.rank, connection.lane, receiver.channel,
                  received, step_name(wiring, more_sent ? connection.sender : connection.receiver, step),
                  more_sent ? "sends" : "receives"));
}

// For each connection, finds the steps that send and receive its k-th message of a tile, and stores them in
// sender_step and receiver_step.
Status pair_messages(Wiring& wiring) {
  std::vector<std::uint32_t> received(wiring.connections.size(), 0);
  for_each_message(wiring, Direction::kSend,
                   [&](std::uint32_t connection, std::uint32_t) { ++wiring.connections[connection].messages; });
  for_each_message(wiring, Direction::kReceive,
                   [&](std::uint32_t connection, std::uint32_t) { ++received[connection]; });
  std::uint32_t total = 0;
  for (std::size_t i = 0; i < wiring.connections.size(); ++i) {
    ConnectionInfo& connection = wiring.connections[i];
    if (connection.messages != received[i]) {
      return unmatched_message(wiring, static_cast<std::uint32_t>(i), received[i]);
    }
    connection.first_message = total;
    total += connection.messages;
  }
  wiring.sender_step.resize(total);
  wiring.receiver_step.resize(total);
  std::vector<std::uint32_t> next(wiring.connections.size());
  const auto restart = [&] {
    for (std::size_t i = 0; i < next.size(); ++i) next[i] = wiring.connections[i].first_message;
  };
  restart();
  for_each_message(wiring, Direction::kSend,
                   [&](std::uint32_t c, std::uint32_t s) { wiring.sender_step[next[c]++] = s; });
  restart();
  for_each_message(wiring, Direction::kReceive,
                   [&](std::uint32_t c, std::uint32_t s) { wiring.receiver_step[next[c]++] = s; });
  return {};
}

// Checks that the step that sends a message and the step that receives it have runs of the same length (Step::run).
Status compare_runs(const Wiring& wiring) {
  for (const ConnectionInfo& connection : wiring.connections) {
    for (std::uint32_t m = connection.first_message; m < connection.first_message + connection.messages; ++m) {
      const std::uint32_t sends = wiring.sender_step[m], receives = wiring.receiver_step[m];
      const std::uint32_t sent = wiring.threads[connection.sender].program->steps[sends].run;
      const std::uint32_t expected = wiring.threads[connection.receiver].program->steps[receives].run;
      if (sent == expected) continue;
      return plan_error(wiring.threads[connection.receiver].rank,
                        fmt::format("{} expects a message of {} chunks, but {} sends it with {}",
                                    step_name(wiring, connection.receiver, receives), expected,
                                    step_name(wiring, connection.sender, sends), sent));
    }
  }
  return {};
}

}  // namespace

std::string to_string(const Slice& slice) {
  return slice.space == Space::kNone ? "none" : fmt::format("{}[{}]", to_string(slice.space), slice.chunk);
}

std::string step_name(const Wiring& wiring, std::uint32_t thread, std::uint32_t step) {
  return fmt::format("rank {} channel {} step {}", wiring.threads[thread].rank, wiring.threads[thread].channel, step);
}

Error plan_error(std::uint32_t rank, std::string message) {
  return {.code = ErrorCode::kInvalidPlan,
          .scope = ErrorScope::kCall,
          .rank = static_cast<std::int32_t>(rank),
          .message = std::move(message)};
}

Result<Wiring> check_structure(const Plan& plan) {
  TUTTI_TRY(check_shape(plan));
  TUTTI_TRY(check_channels(plan));
  Wiring wiring;
  wiring.plan = &plan;
  list_threads(plan, wiring);
  TUTTI_TRY(connect(wiring));
  TUTTI_TRY(pair_messages(wiring));
  if (plan.shape.longest_run > 1) TUTTI_TRY(compare_runs(wiring));
  return wiring;
}

}  // namespace tutti

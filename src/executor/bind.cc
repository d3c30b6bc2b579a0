// Binds plans to connections; see bind.h.
#include "executor/bind.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"

namespace tutti {
namespace {

Status check_transport(const PlanShape& shape, const Transport& transport) {
  const auto unsupported = [&](const std::string& what, std::uint32_t had, const std::string& advice) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1,
                 fmt::format("the {} plan of {} needs {}, transport {} has {}{}", to_string(shape.algorithm),
                             to_string(shape.collective.kind), what, transport.name(), had, advice)};
  };
  if (shape.slots > transport.slots()) {
    return unsupported(fmt::format("{} slots per connection", shape.slots), transport.slots(),
                       fmt::format("; set TUTTI_SLOTS={} on all ranks", shape.slots));
  }
  TUTTI_ASSERT(transport.lanes() > kPointToPointLane);
  if (shape.lanes > kPointToPointLane) return unsupported(fmt::format("{} lanes", shape.lanes), kPointToPointLane, "");
  return {};
}

Status open_channel(const Channel& channel, BoundChannel& bound, Connections& connections) {
  for (std::size_t i = 0; i < channel.ports.size(); ++i) {
    const Port& port = channel.ports[i];
    BoundPort& end = bound.ports[i];
    if (port.direction == Direction::kSend) {
      auto connection = connections.send(port.peer, port.lane);
      if (!connection) return connection.error();
      end.send = *connection;
      end.by_memory = end.send->sends_from_memory();
      end.lingers = end.send->lingers();
      end.min_aimed_bytes = end.send->min_aimed_bytes();
    } else {
      auto connection = connections.receive(port.peer, port.lane);
      if (!connection) return connection.error();
      end.receive = *connection;
      end.by_memory = end.receive->wants_place();
      end.min_aimed_bytes = end.receive->min_aimed_bytes();
    }
  }
  return {};
}

}  // namespace

Result<SendConnection*> Connections::send(std::uint32_t peer, std::uint16_t lane) {
  auto& connection = sends_[{peer, lane}];
  if (connection == nullptr) {
    auto opened = transport_.open_send(peer, lane);
    if (!opened) return opened.error();
    connection = std::move(*opened);
  }
  return connection.get();
}

Result<ReceiveConnection*> Connections::receive(std::uint32_t peer, std::uint16_t lane) {
  auto& connection = receives_[{peer, lane}];
  if (connection == nullptr) {
    auto opened = transport_.open_receive(peer, lane);
    if (!opened) return opened.error();
    connection = std::move(*opened);
  }
  return connection.get();
}

void Connections::drop_stale(const CallTag& call) {
  for (auto& [key, connection] : receives_) {
    if (connection != nullptr && key.second != kPointToPointLane)
      // The result is not needed: arrival() drops messages of calls before `call`.
      static_cast<void>(connection->arrival(call));
  }
}

Result<std::unique_ptr<BoundPlan>> bind(const Generator& generator, std::uint32_t rank, const Transport& transport) {
  TUTTI_TRY(check_transport(generator.shape, transport));
  auto plan = std::make_unique<BoundPlan>();
  plan->shape = generator.shape;
  plan->rank = rank;
  plan->program = generator.build(generator.shape, rank);
  for (const Channel& channel : plan->program.channels) {
    BoundChannel& bound = plan->channels.emplace_back();
    for (const Port& port : channel.ports) bound.ports.push_back({.peer = port.peer});
    bound.rules.resize(channel.lists.size());
    for (const Step& step : channel.steps) {
      plan->most_operands = std::max<std::size_t>(plan->most_operands, step.receive_count + std::size_t{1});
      plan->most_sends = std::max<std::size_t>(plan->most_sends, step.send_count);
      if (!can_push(step) || step.sink.space != Space::kOutput) continue;
      for (const std::uint16_t port : channel.receives(step)) bound.ports[port].pushed = true;
    }
  }
  for (const WindowSend& send : window_sends(generator, rank, plan->program)) {
    const Step& step = plan->program.channels[send.channel].steps[send.step];
    plan->channels[send.channel].rules[step.list_begin + step.receive_count + send.send_index] = {
        .carrier = send.carrier, .unpublished = send.unpublished, .peer_sink = send.peer_sink};
  }
  for (const SlotReply& reply : slot_replies(generator, rank, plan->program, transport.slots())) {
    const Channel& channel = plan->program.channels[reply.channel];
    const Step& step = channel.steps[reply.step];
    plan->channels[reply.channel].rules[step.list_begin + step.receive_count + reply.send_index].answers =
        channel.receives(step)[reply.receive_index];
  }
  return plan;
}

Status open(BoundPlan& plan, Connections& connections) {
  if (plan.opened) return {};
  for (std::size_t c = 0; c < plan.channels.size(); ++c) {
    TUTTI_TRY(open_channel(plan.program.channels[c], plan.channels[c], connections));
  }
  plan.opened = true;
  return {};
}

}  // namespace tutti

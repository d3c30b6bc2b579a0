// Messages that share links: ports begin with them, model/flows.h says how fast they are.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "model/event_run.h"

namespace tutti {

void EventRun::set_up_flows() {
  flow_of_.resize(lines_.size());
  port_queues_.resize(ports_.size());
  std::vector<Flows::Kind> kinds(lines_.size());
  for (std::uint32_t line = 0; line < lines_.size(); ++line) {
    const std::uint32_t from = rank_of(sender(line)), connection = line / places_;
    network_.route(from, rank_of(receiver(line)), kinds[line].links);
    kinds[line].most = costs_.message(connection).gbytes_per_s[line % places_];
    const bool by_port = costs_.uses_port(connection, line % places_);
    kinds[line].source = by_port ? tasks_.size() + network_.port(from) : sender(line);
  }
  flows_ = std::make_unique<Flows>(kinds, [&](std::uint64_t link) {  // of this copy of the plan
    return network_.gbytes_per_s(link) * world_.links->first[link] / world_.links->all[link];
  });
  for (std::uint32_t line = 0; line < lines_.size(); ++line) {
    if (!costs_.uses_port(line / places_, line % places_) || !flows_->can_be_narrow(line)) continue;
    double& most = port_queues_[network_.port(rank_of(sender(line)))].most;
    most = std::max(most, kinds[line].most * 1000);
  }
}

// Flows: the channel moves the bytes of one send after the other.
void EventRun::next_move(std::uint32_t task, double now) {
  Task& state = tasks_[task];
  const ProgramStep& step = programs_.steps[number_of(task)];
  const std::uint32_t* sends = list_of(step) + step.receives;
  while (state.moving < step.sends) {
    const std::uint32_t connection = sends[state.moving++];
    const std::uint32_t line = connection * places_ + place_of(task);
    if (costs_.uses_port(connection, place_of(task))) continue;
    return begin_flow(line, task, now);
  }
  heap_.push(Event::at(std::max(now, state.end), EventKind::kEnd, task));
}

void EventRun::begin_flow(std::uint32_t line, std::uint32_t task, double now) {
  Flow& flow = flow_of_[line];
  const bool last = last_costs_ && flow.message / programs_.connections[line / places_].per_tile + 1 == tiles_;
  flow.bytes_left = jittered(last ? world_.tiles.last_bytes : world_.tiles.full_bytes, line | kOfLine, flow.message);
  flow.rate = 0;
  flow.since = now;
  flow.task = task;
  flow.under_way = true;
  ++flow.stamp;
  flows_->begin(line);
}

void EventRun::finish_flow(std::uint32_t line, double now, bool by_port) {
  flows_->end(line);
  Flow& flow = flow_of_[line];
  ++flow.stamp;
  flow.under_way = false;
  const std::uint64_t message = flow.message++;
  if (!by_port) return next_move(flow.task, now);
  const MessageTimes& times = costs_.message(line / places_);
  sight(line, message) = now + times.latency[line % places_];
  const std::uint64_t port = network_.port(rank_of(sender(line)));
  PortQueue& queue = port_queues_[port];
  --queue.flows;
  ++queue.pauses;
  queue.rate = queue.flows == 0 ? 0 : queue.rate - flow.rate;
  heap_.push(Event::at(now + times.gap[line % places_], EventKind::kPort, static_cast<std::uint32_t>(port)));
  try_step(receiver(line));
}

void EventRun::look_at(std::uint64_t port) {
  PortQueue& queue = port_queues_[port];
  if (queue.looked_at || queue.most == 0) return;
  queue.looked_at = true;
  ports_to_fill_.push_back(port);
}

// Begins with the next message where none is under way; else a look when all rates are known.
void EventRun::serve_port(std::uint64_t port, double now) {
  PortQueue& queue = port_queues_[port];
  look_at(port);
  if (!queue.is_idle()) return;
  const auto line = queue.take([&](std::uint32_t each) { return flow_of_[each].under_way; });
  if (!line) return;
  ++queue.flows;
  begin_flow(*line, sender(*line), now);
}

// Ports that have bandwidth left begin with one message more each; whether any did.
bool EventRun::fill_ports(double now) {
  std::vector<std::uint64_t> ports;
  ports.swap(ports_to_fill_);
  for (const std::uint64_t port : ports) port_queues_[port].looked_at = false;
  bool any = false;
  for (const std::uint64_t port : ports) {
    PortQueue& queue = port_queues_[port];
    if (options_.ports_in_order || !queue.has_room()) continue;
    const auto line = queue.take([&](std::uint32_t each) { return flow_of_[each].under_way; });
    if (!line) continue;
    ++queue.flows;
    begin_flow(*line, sender(*line), now);
    any = true;
  }
  return any;
}

void EventRun::settle_flows(double now) {
  do {
    flows_->settle([&](std::uint32_t line, double gbytes_per_s) {
      Flow& flow = flow_of_[line];
      flow.bytes_left = std::max(0.0, flow.bytes_left - flow.rate * (now - flow.since));
      flow.since = now;
      const bool by_port = costs_.uses_port(line / places_, line % places_);
      if (by_port) {
        const std::uint64_t port = network_.port(rank_of(sender(line)));
        port_queues_[port].rate += gbytes_per_s * 1000 - flow.rate;
        look_at(port);
      }
      flow.rate = gbytes_per_s * 1000;
      heap_.push(Event::at(now + flow.bytes_left / flow.rate, by_port ? EventKind::kCarried : EventKind::kMoved, line,
                           ++flow.stamp));
    });
  } while (fill_ports(now));
}

}  // namespace tutti

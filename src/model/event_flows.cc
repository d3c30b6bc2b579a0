// The messages of the model kFlows, which share links. Ports and channels start them, and model/flows.h determines
// their rates.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "model/event_run.h"

namespace tutti {

void EventRun::set_up_flows() {
  flow_of_.resize(fifos_.size());
  port_queues_.resize(ports_.size());
  std::vector<Flows::FlowRoute> kinds(fifos_.size());
  for (std::uint32_t fifo = 0; fifo < fifos_.size(); ++fifo) {
    const std::uint32_t from = rank_of(sender(fifo)), connection = fifo / places_;
    network_.route(from, rank_of(receiver(fifo)), kinds[fifo].links);
    kinds[fifo].most = costs_.message(connection).gbytes_per_s[fifo % places_];
    const bool by_port = costs_.uses_port(connection, fifo % places_);
    kinds[fifo].source = by_port ? tasks_.size() + network_.port(from) : sender(fifo);
  }
  // Only copy 0 of the plan is simulated. So it gets only a part of the bandwidth of each link of the network: the
  // number of chunks that copy 0 sends over the link, divided by the number that all copies send over it. If no copy
  // sends anything over the link, because its connections have no messages, copy 0 gets the whole bandwidth.
  flows_ = std::make_unique<Flows>(kinds, [&](std::uint64_t link) {
    const double all = inputs_.links->all[link];
    return network_.gbytes_per_s(link) * (all > 0 ? inputs_.links->first[link] / all : 1);
  });
  for (std::uint32_t fifo = 0; fifo < fifos_.size(); ++fifo) {
    if (!costs_.uses_port(fifo / places_, fifo % places_) || !flows_->can_be_narrow(fifo)) continue;
    double& most = port_queues_[network_.port(rank_of(sender(fifo)))].most;
    most = std::max(most, kinds[fifo].most * 1000);
  }
}

// Starts to move the bytes of the next message that the channel itself moves. A channel moves the messages of a
// step one after the other. When all are moved, the step ends, but not before state.end. Messages that use a port
// are skipped here: send() hands them to the port at the end of the step.
void EventRun::next_move(std::uint32_t task, double now) {
  Task& state = tasks_[task];
  const ProgramStep& step = programs_.steps[number_of(task)];
  const std::uint32_t* sends = list_of(step) + step.receives;
  while (state.moving < step.sends) {
    const std::uint32_t connection = sends[state.moving++];
    const std::uint32_t fifo = connection * places_ + place_of(task);
    if (costs_.uses_port(connection, place_of(task))) continue;
    return begin_flow(fifo, task, now);
  }
  heap_.push(Event::at(std::max(now, state.end), EventKind::kEnd, task));
}

void EventRun::begin_flow(std::uint32_t fifo, std::uint32_t task, double now) {
  Flow& flow = flow_of_[fifo];
  const bool last = last_costs_ && flow.message / programs_.connections[fifo / places_].per_tile + 1 == tiles_;
  const double chunk_bytes = last ? inputs_.tiles.last_bytes : inputs_.tiles.full_bytes;
  flow.bytes_left =
      jittered(programs_.run_of(fifo / places_, flow.message) * chunk_bytes, fifo | kMessageJitter, flow.message);
  flow.rate = 0;
  flow.since = now;
  flow.task = task;
  flow.under_way = true;
  ++flow.stamp;
  flows_->begin(fifo);
}

void EventRun::finish_flow(std::uint32_t fifo, double now, bool by_port) {
  flows_->end(fifo);
  Flow& flow = flow_of_[fifo];
  ++flow.stamp;
  flow.under_way = false;
  const std::uint64_t message = flow.message++;
  if (!by_port) return next_move(flow.task, now);
  const MessageTimes& times = costs_.message(fifo / places_);
  arrival(fifo, message) = now + times.latency[fifo % places_];
  const std::uint64_t port = network_.port(rank_of(sender(fifo)));
  PortQueue& queue = port_queues_[port];
  --queue.flows;
  ++queue.pauses;
  queue.rate = queue.flows == 0 ? 0 : queue.rate - flow.rate;
  heap_.push(Event::at(now + times.gap[fifo % places_], EventKind::kPort, static_cast<std::uint32_t>(port)));
  try_step(receiver(fifo));
}

void EventRun::list_port(std::uint64_t port) {
  PortQueue& queue = port_queues_[port];
  if (queue.listed || queue.most == 0) return;
  queue.listed = true;
  ports_to_fill_.push_back(port);
}

// Starts the next waiting message if the port is idle. If a bottleneck can slow down messages of this port
// (PortQueue::most), also puts the port on the list of ports that fill_ports() checks when all rates are known, because
// a busy port may then have bandwidth left for a further message.
void EventRun::serve_port(std::uint64_t port, double now) {
  PortQueue& queue = port_queues_[port];
  list_port(port);
  if (!queue.is_idle()) return;
  const auto fifo = queue.take([&](std::uint32_t each) { return flow_of_[each].under_way; });
  if (!fifo) return;
  ++queue.flows;
  begin_flow(*fifo, sender(*fifo), now);
}

// Starts one more message on each listed port that has bandwidth left and a message that may start (none if
// SimulateOptions::ports_in_order is true), and empties the list. Returns true if any message was started; the rates
// must be computed again then.
bool EventRun::fill_ports(double now) {
  std::vector<std::uint64_t> ports;
  ports.swap(ports_to_fill_);
  for (const std::uint64_t port : ports) port_queues_[port].listed = false;
  bool any = false;
  for (const std::uint64_t port : ports) {
    PortQueue& queue = port_queues_[port];
    if (options_.ports_in_order || !queue.has_room()) continue;
    const auto fifo = queue.take([&](std::uint32_t each) { return flow_of_[each].under_way; });
    if (!fifo) continue;
    ++queue.flows;
    begin_flow(*fifo, sender(*fifo), now);
    any = true;
  }
  return any;
}

// Computes the new rate of each flow whose rate changes, and the time at which this flow will end. Repeats this as long
// as fill_ports() starts further messages.
void EventRun::settle_flows(double now) {
  do {
    flows_->settle([&](std::uint32_t fifo, double gbytes_per_s) {
      Flow& flow = flow_of_[fifo];
      flow.bytes_left = std::max(0.0, flow.bytes_left - flow.rate * (now - flow.since));
      flow.since = now;
      const bool by_port = costs_.uses_port(fifo / places_, fifo % places_);
      if (by_port) {
        const std::uint64_t port = network_.port(rank_of(sender(fifo)));
        port_queues_[port].rate += gbytes_per_s * 1000 - flow.rate;
        list_port(port);
      }
      flow.rate = gbytes_per_s * 1000;
      heap_.push(Event::at(now + flow.bytes_left / flow.rate, by_port ? EventKind::kCarried : EventKind::kMoved, fifo,
                           ++flow.stamp));
    });
  } while (fill_ports(now));
}

}  // namespace tutti

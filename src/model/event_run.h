// EventRun: one run of the event engine (model/events.h), with its state and its events. Internal to this folder.
// events.cc implements the steps, and event_flows.cc the messages in transit if links are shared. Used by one
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/cores.h"
#include "model/event_heap.h"
#include "model/events.h"
#include "model/flows.h"
#include "model/port_queue.h"

namespace tutti {

// The state of one run. A task is one channel of one rank, and has the number `thread * places + place`. A FIFO is
// one connection of one sending rank, and has the number `connection * places + place`, with the place of the
// sender.
//
// It has more than 40 methods and members. Most methods are one kind of event or one index computation, and an event
// may change tasks, FIFOs, ports and flows, so parts of the class would have to refer to each other.
class EventRun {
 public:
  explicit EventRun(const EventInputs& inputs);
  Result<EventResult> run();

 private:
  struct Task {
    double end = 0;  // end of its last step
    double begin = 0;
    double ready = 0;
    std::uint64_t tile = 0;
    std::uint32_t cursor = 0;
    std::uint32_t moving = 0;    // flows: index of the next send to move
    std::uint32_t moved_to = 0;  // flows: the connection that carries these bytes
    bool under_way = false;      // it has an event in the heap, waits for a core, or moves bytes
  };
  struct FifoState {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
  };
  struct Flow {
    double bytes_left = 0;
    double rate = 0;  // bytes per us
    double since = 0;
    double latency = 0;
    std::uint32_t stamp = 0;    // modulo 2^29
    std::uint64_t message = 0;  // its number in the FIFO
    std::uint32_t task = 0;
    bool under_way = false;
  };

  std::uint32_t thread_of(std::uint32_t task) const { return task / places_; }
  std::uint32_t place_of(std::uint32_t task) const { return task % places_; }
  std::uint32_t rank_of(std::uint32_t task) const { return costs_.rank(thread_of(task), place_of(task)); }
  std::uint64_t number_of(std::uint32_t task) const {
    return programs_.threads[thread_of(task)].first_step + tasks_[task].cursor;
  }
  const std::uint32_t* list_of(const ProgramStep& step) const { return programs_.lists.data() + step.list_begin; }
  // incoming_fifo() is the FIFO from which `task` receives through a connection. receiver() and sender() are the
  // tasks at the two ends of a FIFO.
  std::uint32_t incoming_fifo(std::uint32_t connection, std::uint32_t place) const {
    const std::uint32_t places = programs_.connections[connection].places;
    return connection * places_ + (place + places_ - places) % places_;
  }
  std::uint32_t receiver(std::uint32_t fifo) const {
    const ProgramConnection& each = programs_.connections[fifo / places_];
    return each.to * places_ + (fifo % places_ + each.places) % places_;
  }
  std::uint32_t sender(std::uint32_t fifo) const {
    return programs_.connections[fifo / places_].from * places_ + fifo % places_;
  }
  double& arrival(std::uint32_t fifo, std::uint64_t message) { return arrivals_[fifo * slots_ + message % slots_]; }
  double& credit(std::uint32_t fifo, std::uint64_t message) { return credits_[fifo * slots_ + message % slots_]; }
  double& mark(std::uint32_t index, std::uint32_t place, std::uint64_t tile) {
    return marks_[(std::size_t{index} * places_ + place) * 2 + tile % 2];
  }
  double jittered(double us, std::uint64_t what, std::uint64_t count) const;
  // A bit that separates the jitter of messages from that of steps.
  static constexpr std::uint64_t kMessageJitter = std::uint64_t{1} << 40;

  bool known(std::uint32_t task, double& begin);
  void try_step(std::uint32_t task);
  void start(std::uint32_t task, double begin);
  void next_move(std::uint32_t task, double now);
  void end_step(std::uint32_t task, double now);
  void send(std::uint32_t fifo, double now);
  void serve_port(std::uint64_t port, double now);
  bool fill_ports(double now);
  void list_port(std::uint64_t port);
  void settle_flows(double now);
  void begin_flow(std::uint32_t fifo, std::uint32_t task, double now);
  void finish_flow(std::uint32_t fifo, double now, bool by_port);
  void take(const Event& event);
  void set_up_flows();
  void set_bytes(std::uint64_t tile);
  void report(bool last);
  Error describe_blocked() const;

  const Programs& programs_;
  Costs& costs_;
  const Network& network_;
  const Parameters& parameters_;
  const SimulateOptions& options_;
  const EventInputs& inputs_;
  const std::uint32_t places_;
  const std::uint32_t slots_;
  const std::uint64_t tiles_;
  std::optional<Costs> last_costs_;  // costs of the last tile, if it is shorter
  std::vector<Task> tasks_;
  std::vector<FifoState> fifos_;
  std::vector<double> arrivals_, credits_;
  std::vector<double> marks_;
  std::vector<double> ports_;  // indexed by port: the time at which it is free
  std::vector<std::uint8_t> dead_;
  std::optional<Cores> cores_;
  std::unique_ptr<Flows> flows_;
  std::vector<Flow> flow_of_;  // indexed by FIFO
  std::vector<PortQueue> port_queues_;
  std::vector<std::uint64_t> ports_to_fill_;  // ports that may have bandwidth left, and messages waiting
  EventHeap heap_;
  EventResult result_;
  std::uint64_t steps_done_ = 0;
  std::uint64_t finished_ = 0;
};

}  // namespace tutti

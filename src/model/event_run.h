// EventRun: one run of the event engine (model/events.h), with its state and its events. Internal to this folder.
// events.cc implements the steps of the ranks, and event_flows.cc the messages in transit in the model kFlows. Used
// by one thread.
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

// The state of one run. A task is one channel of one rank, and has the number `thread * places + place`, in which
// `thread` is an index into Programs::threads. A FIFO is one connection of one sending rank, and has the number
// `connection * places + place`, in which `connection` is an index into Programs::connections, and `place` is that of
// the sender.
//
// The class has more than 40 methods and members. Most methods are one kind of event or one index computation. The
// class is not divided, because an event may change tasks, FIFOs, ports and flows, so the parts would have to refer to
// each other.
class EventRun {
 public:
  explicit EventRun(const EventInputs& inputs);
  Result<EventResult> run();

 private:
  struct Task {
    // All times are in microseconds. `end` is the end of the step that the task has ended most recently. In the model
    // kFlows, while a step runs: the end of that step if moving the bytes of its messages does not take longer.
    double end = 0;
    // start of the step that it has started most recently
    double begin = 0;
    // end of the step before the present one, or 0 in the first step; from then until `begin` the task waited for
    // messages, credits, marked steps of other channels, or a core
    double ready = 0;
    // the tile that it works on; the number of tiles if it has finished
    std::uint64_t tile = 0;
    // index of its present or next step in the program of its thread
    std::uint32_t cursor = 0;
    // model kFlows: index of the first send of the present step that next_move() has not handled yet
    std::uint32_t moving = 0;
    // its step has an event in the heap, waits for a core, or moves bytes
    bool under_way = false;
  };
  struct FifoState {
    // number of messages that were sent to this FIFO
    std::uint64_t sent = 0;
    // number of messages that were received from this FIFO
    std::uint64_t received = 0;
  };
  struct Flow {
    // bytes that were not moved yet at the time `since`
    double bytes_left = 0;
    double rate = 0;  // its present rate, in bytes per us
    // the time, in microseconds, at which the rate changed last
    double since = 0;
    // Incremented when the flow begins or ends, and when its rate changes, so that older events of the flow are
    // obsolete. Compared modulo 2^29.
    std::uint32_t stamp = 0;
    // number of the present or next message of this FIFO, from 0
    std::uint64_t message = 0;
    // the task that sends the message
    std::uint32_t task = 0;
    bool under_way = false;
  };

  std::uint32_t thread_of(std::uint32_t task) const { return task / places_; }
  std::uint32_t place_of(std::uint32_t task) const { return task % places_; }
  std::uint32_t rank_of(std::uint32_t task) const { return costs_.rank(thread_of(task), place_of(task)); }
  // The index of the task's present or next step in Programs::steps.
  std::uint64_t number_of(std::uint32_t task) const {
    return programs_.threads[thread_of(task)].first_step + tasks_[task].cursor;
  }
  // The connections of a step: first those from which it receives, then those to which it sends.
  const std::uint32_t* list_of(const ProgramStep& step) const { return programs_.lists.data() + step.list_begin; }
  // The FIFO from which the rank at `place` receives through a connection.
  std::uint32_t incoming_fifo(std::uint32_t connection, std::uint32_t place) const {
    const std::uint32_t places = programs_.connections[connection].places;
    return connection * places_ + (place + places_ - places) % places_;
  }
  // receiver() and sender() are the tasks at the two ends of a FIFO.
  std::uint32_t receiver(std::uint32_t fifo) const {
    const ProgramConnection& each = programs_.connections[fifo / places_];
    return each.to * places_ + (fifo % places_ + each.places) % places_;
  }
  std::uint32_t sender(std::uint32_t fifo) const {
    return programs_.connections[fifo / places_].from * places_ + fifo % places_;
  }
  // The time in microseconds at which a message of a FIFO arrives. kNever: it waits for its port, or is in transit at a
  // rate that may still change.
  double& arrival(std::uint32_t fifo, std::uint64_t message) { return arrivals_[fifo * slots_ + message % slots_]; }
  // The time, in microseconds, at which the sender gets the credit for the slot of a message.
  double& credit(std::uint32_t fifo, std::uint64_t message) { return credits_[fifo * slots_ + message % slots_]; }
  // The time, in microseconds, at which a step with a mark ended in a tile. Only two tiles are stored, the even and the
  // odd one.
  double& mark(std::uint32_t index, std::uint32_t place, std::uint64_t tile) {
    return marks_[(std::size_t{index} * places_ + place) * 2 + tile % 2];
  }
  // Returns `us` multiplied by a random factor of at least 1 (SimulateOptions::jitter), which depends only on the seed,
  // `what` and `count`. `us` is a duration, or for a flow the number of its bytes.
  double jittered(double us, std::uint64_t what, std::uint64_t count) const;
  // This bit is set in `what` for a FIFO, so that a FIFO and a task of the same number have different random
  // factors.
  static constexpr std::uint64_t kMessageJitter = std::uint64_t{1} << 40;

  // The .cc files describe some of these functions. `now` is always the time of the present event, in microseconds.
  bool known(std::uint32_t task, double& begin);
  void try_step(std::uint32_t task);
  void start(std::uint32_t task, double begin);
  void next_move(std::uint32_t task, double now);
  void end_step(std::uint32_t task, double now);
  void send(std::uint32_t fifo, std::uint32_t run, double now);
  void serve_port(std::uint64_t port, double now);
  bool fill_ports(double now);
  void list_port(std::uint64_t port);
  void settle_flows(double now);
  void begin_flow(std::uint32_t fifo, std::uint32_t task, double now);
  void finish_flow(std::uint32_t fifo, double now, bool by_port);
  void take(const Event& event);
  void set_up_flows();
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
  // the costs for the shorter last tile; empty if all tiles are equally long
  std::optional<Costs> last_costs_;
  std::vector<Task> tasks_;
  std::vector<FifoState> fifos_;
  // Indexed by FIFO, then by message modulo slots_.
  std::vector<double> arrivals_, credits_;
  // Indexed by mark, then by place, then by tile modulo 2. kNever: the step has not ended in this tile.
  std::vector<double> marks_;
  // indexed by port: the time from which on it is free; the times are only used in the model kEvents
  std::vector<double> ports_;
  // Indexed by rank: 1 for the ranks in SimulateOptions::dead_ranks.
  std::vector<std::uint8_t> dead_;
  // empty if Parameters::cores is 0, which means that the number of cores is not limited
  std::optional<Cores> cores_;
  // Null in the model kEvents. Then flow_of_, port_queues_ and ports_to_fill_ are not used either.
  std::unique_ptr<Flows> flows_;
  // indexed by FIFO: its message in transit, if there is one
  std::vector<Flow> flow_of_;
  // indexed by port (NIC): the messages that wait for it
  std::vector<PortQueue> port_queues_;
  // ports that may have bandwidth left for a further message
  std::vector<std::uint64_t> ports_to_fill_;
  EventHeap heap_;
  EventResult result_;
  // number of steps that all tasks together have ended
  std::uint64_t steps_done_ = 0;
};

}  // namespace tutti

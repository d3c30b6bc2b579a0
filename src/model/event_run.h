// One run of the event engine (model/events.h): its state, and what happens to it. Internal: events.cc has the steps,
// event_flows.cc what is on its way where links are shared. One thread.
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

// All state of one run. A channel of a rank is `thread * places + place`, a connection of a sending rank
// `connection * places + place`.
class EventRun {
 public:
  explicit EventRun(const EventWorld& world);
  Result<EventResult> run();

 private:
  struct Task {
    double end = 0;  // of its last step
    double begin = 0;
    double ready = 0;
    std::uint64_t tile = 0;
    std::uint32_t cursor = 0;
    std::uint32_t moving = 0;    // flows: the send whose bytes move
    std::uint32_t moved_to = 0;  // flows: the connection that moves
    bool under_way = false;      // it has an entry in the heap, wants a core, or moves
  };
  struct Line {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
  };
  struct Flow {
    double bytes_left = 0;
    double rate = 0;  // bytes per us
    double since = 0;
    double latency = 0;
    std::uint32_t stamp = 0;    // modulo 2^29
    std::uint64_t message = 0;  // its number on the line
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
  // The line on which `task` receives by that connection, and who receives what a line carries.
  std::uint32_t line_into(std::uint32_t connection, std::uint32_t place) const {
    const std::uint32_t places = programs_.connections[connection].places;
    return connection * places_ + (place + places_ - places) % places_;
  }
  std::uint32_t receiver(std::uint32_t line) const {
    const ProgramConnection& each = programs_.connections[line / places_];
    return each.to * places_ + (line % places_ + each.places) % places_;
  }
  std::uint32_t sender(std::uint32_t line) const {
    return programs_.connections[line / places_].from * places_ + line % places_;
  }
  double& sight(std::uint32_t line, std::uint64_t message) { return sights_[line * slots_ + message % slots_]; }
  double& credit(std::uint32_t line, std::uint64_t message) { return credits_[line * slots_ + message % slots_]; }
  double& mark(std::uint32_t index, std::uint32_t place, std::uint64_t tile) {
    return marks_[(std::size_t{index} * places_ + place) * 2 + tile % 2];
  }
  double jittered(double us, std::uint64_t what, std::uint64_t count) const;
  static constexpr std::uint64_t kOfLine = std::uint64_t{1} << 40;  // the jitter of messages, not of steps

  bool known(std::uint32_t task, double& begin);
  void try_step(std::uint32_t task);
  void start(std::uint32_t task, double begin);
  void next_move(std::uint32_t task, double now);
  void end_step(std::uint32_t task, double now);
  void send(std::uint32_t line, double now);
  void serve_port(std::uint64_t port, double now);
  bool fill_ports(double now);
  void look_at(std::uint64_t port);
  void settle_flows(double now);
  void begin_flow(std::uint32_t line, std::uint32_t task, double now);
  void finish_flow(std::uint32_t line, double now, bool by_port);
  void take(const Event& event);
  void set_up_flows();
  void set_bytes(std::uint64_t tile);
  void report(bool last);
  Error what_stays() const;

  const Programs& programs_;
  Costs& costs_;
  const Network& network_;
  const Parameters& parameters_;
  const SimulateOptions& options_;
  const EventWorld& world_;
  const std::uint32_t places_;
  const std::uint32_t slots_;
  const std::uint64_t tiles_;
  std::optional<Costs> last_costs_;  // of the last tile, where that is shorter
  std::vector<Task> tasks_;
  std::vector<Line> lines_;
  std::vector<double> sights_, credits_;
  std::vector<double> marks_;
  std::vector<double> ports_;  // by port: when it is free
  std::vector<std::uint8_t> dead_;
  std::optional<Cores> cores_;
  std::unique_ptr<Flows> flows_;
  std::vector<Flow> flow_of_;  // by line
  std::vector<PortQueue> port_queues_;
  std::vector<std::uint64_t> ports_to_fill_;  // those that may have room, and messages
  EventHeap heap_;
  EventResult result_;
  std::uint64_t steps_done_ = 0;
  std::uint64_t finished_ = 0;
};

}  // namespace tutti

// Implements simgrid_us(): builds the network in SimGrid, and runs one actor for each channel and for each port.
#include "simgrid_model.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <simgrid/s4u.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "base/assert.h"

namespace tutti::judge {
namespace {

namespace s4u = simgrid::s4u;

constexpr double kMicro = 1e-6;
// SimGrid needs a latency above 0 for each message to give it a share of the bandwidth. This one is far below the
// accuracy of the comparison.
constexpr double kNextToNothingS = 1e-12;
constexpr int kTurns = 4;

// A FIFO of times. An entry is added when the simulation has reached it, and may be used from its time on.
class ReadyTimes {
 public:
  explicit ReadyTimes(std::uint32_t at_once) : available_(s4u::Semaphore::create(at_once)), times_(at_once, 0.0) {}

  void add(double time) {
    times_.push_back(time);
    available_->release();
  }
  double take() {
    available_->acquire();
    const double time = times_.front();
    times_.pop_front();
    return time;
  }

 private:
  s4u::SemaphorePtr available_;
  std::deque<double> times_;
};

struct Connection {
  explicit Connection(std::uint32_t slots) : messages(0), credits(slots) {}
  ReadyTimes messages;
  ReadyTimes credits;
};

// A message that waits for the port.
struct PostedMessage {
  double time = 0;
  std::uint32_t channel = 0;
  std::uint32_t to = 0;
  Connection* connection = nullptr;
};

struct PortQueue {
  s4u::SemaphorePtr waiting = s4u::Semaphore::create(0);
  std::deque<PostedMessage> postings;
  std::uint64_t expected = 0;  // total number of messages; the port's actor ends after them
};

class SimGridModel {
 public:
  SimGridModel(const Plan& plan, const Call& call, const Network& network)
      : plan_(plan), call_(call), network_(network) {
    TUTTI_ASSERT(network.ranks_per_machine() == 1 && call.slots >= plan.shape.slots);
    zone_ = s4u::create_full_zone("fabric");
    for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
      hosts_.push_back(zone_->create_host("rank" + std::to_string(rank), 1e9));
      ports_.push_back(std::make_unique<PortQueue>());
    }
    for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) lay_connections(rank);
    zone_->seal();
  }

  double run() {
    for (std::uint32_t rank = 0; rank < plan_.ranks.size(); ++rank) {
      const RankPlan& own = plan_.ranks[rank];
      waits_.emplace_back(own.channels.size());
      for (std::size_t c = 0; c < own.channels.size(); ++c) {
        for (const After& after : own.channels[c].after) {
          waits_[rank][c].push_back(std::make_unique<ReadyTimes>(after.tiles_before));
        }
      }
    }
    for (std::uint32_t rank = 0; rank < plan_.ranks.size(); ++rank) {
      for (std::uint32_t c = 0; c < plan_.ranks[rank].channels.size(); ++c) {
        s4u::Actor::create("channel", hosts_[rank], [this, rank, c] { run_channel(rank, c); });
      }
      s4u::Actor::create("port", hosts_[rank], [this, rank] { serve_port(rank); });
    }
    s4u::Engine::get_instance()->run();
    return last_end_ / kMicro;
  }

 private:
  using Name = std::tuple<std::uint32_t, std::uint32_t, std::uint16_t>;  // (from, to, lane)

  void lay_connections(std::uint32_t rank) {
    for (const Channel& channel : plan_.ranks[rank].channels) {
      for (const Port& port : channel.ports) {
        if (port.direction != Direction::kSend) continue;
        connections_.emplace(Name{rank, port.peer, port.lane}, std::make_unique<Connection>(call_.slots));
        if (routed_.insert({rank, port.peer}).second) lay_route(rank, port.peer);
      }
      for (const Step& step : channel.steps) ports_[rank]->expected += call_.tiles * step.send_count;
    }
  }

  void lay_route(std::uint32_t from, std::uint32_t to) {
    std::vector<std::uint64_t> numbers;
    network_.route(from, to, numbers);
    const std::string name = std::to_string(from) + "-" + std::to_string(to);
    // A port sends one message at a time, so this link limits the bandwidth of each message.
    const double alone = call_.gbytes_per_s > 0 ? call_.gbytes_per_s * 1e9 : 1e18;
    s4u::Link* const start = zone_->create_link("start" + name, alone)->set_latency(kNextToNothingS)->seal();
    std::vector<s4u::LinkInRoute> route{s4u::LinkInRoute(start)};
    for (const std::uint64_t number : numbers) {
      s4u::Link*& link = links_[number];
      if (link == nullptr) {
        link = zone_->create_link("link" + std::to_string(number), network_.gbytes_per_s(number) * 1e9);
        link->set_latency(0)->seal();
      }
      route.emplace_back(link);
    }
    zone_->add_route(hosts_[from]->get_netpoint(), hosts_[to]->get_netpoint(), nullptr, nullptr, route, false);
  }

  Connection& connection(std::uint32_t rank, const Port& port) {
    const bool sends = port.direction == Direction::kSend;
    return *connections_.at({sends ? rank : port.peer, sends ? port.peer : rank, port.lane});
  }

  // Sends the messages one after the other, each as soon as the previous one has left.
  void serve_port(std::uint32_t rank) {
    PortQueue& queue = *ports_[rank];
    for (std::uint64_t sent = 0; sent < queue.expected; ++sent) {
      queue.waiting->acquire();
      // If several messages are posted at the same time, the one of the first channel is sent first. The model does
      // not define this order, but both simulators must use the same. The yields let all other actors of this time
      // run before.
      for (int turn = 0; turn < kTurns; ++turn) s4u::this_actor::yield();
      const auto first = std::min_element(
          queue.postings.begin(), queue.postings.end(),
          [](const auto& a, const auto& b) { return std::tie(a.time, a.channel) < std::tie(b.time, b.channel); });
      const PostedMessage posted = *first;
      queue.postings.erase(first);
      s4u::Comm::sendto(hosts_[rank], hosts_[posted.to], static_cast<std::uint64_t>(call_.message_bytes));
      posted.connection->messages.add(s4u::Engine::get_clock() + call_.latency_us * kMicro);
    }
  }

  void run_channel(std::uint32_t rank, std::uint32_t number) {
    const Channel& channel = plan_.ranks[rank].channels[number];
    for (std::uint64_t tile = 0; tile < call_.tiles; ++tile) {
      for (std::uint32_t s = 0; s < channel.steps.size(); ++s) run_step(rank, number, s);
    }
    last_end_ = std::max(last_end_, s4u::Engine::get_clock());
  }

  void run_step(std::uint32_t rank, std::uint32_t number, std::uint32_t s) {
    const Channel& channel = plan_.ranks[rank].channels[number];
    const Step& step = channel.steps[s];
    double begin = s4u::Engine::get_clock();
    for (std::size_t i = 0; i < channel.after.size(); ++i) {
      if (channel.after[i].step == s) begin = std::max(begin, waits_[rank][number][i]->take());
    }
    for (const std::uint16_t port : channel.receives(step)) {
      begin = std::max(begin, connection(rank, channel.ports[port]).messages.take());
    }
    for (const std::uint16_t port : channel.sends(step)) {
      begin = std::max(begin, connection(rank, channel.ports[port]).credits.take());
    }
    s4u::this_actor::sleep_until(begin);
    const double now = s4u::Engine::get_clock();
    for (const std::uint16_t port : channel.receives(step)) {
      connection(rank, channel.ports[port]).credits.add(now + call_.latency_us * kMicro);
    }
    for (const std::uint16_t port : channel.sends(step)) {
      ports_[rank]->postings.push_back({now, number, channel.ports[port].peer, &connection(rank, channel.ports[port])});
      ports_[rank]->waiting->release();
    }
    notify_waiting_steps(rank, number, s, now);
  }

  void notify_waiting_steps(std::uint32_t rank, std::uint32_t number, std::uint32_t s, double now) {
    const RankPlan& own = plan_.ranks[rank];
    for (std::size_t c = 0; c < own.channels.size(); ++c) {
      for (std::size_t i = 0; i < own.channels[c].after.size(); ++i) {
        const After& after = own.channels[c].after[i];
        if (after.other_channel == number && after.other_step == s) waits_[rank][c][i]->add(now);
      }
    }
  }

  const Plan& plan_;
  const Call& call_;
  const Network& network_;
  s4u::NetZone* zone_ = nullptr;
  std::vector<s4u::Host*> hosts_;
  std::map<std::uint64_t, s4u::Link*> links_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> routed_;
  std::map<Name, std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<PortQueue>> ports_;
  std::vector<std::vector<std::vector<std::unique_ptr<ReadyTimes>>>> waits_;  // indexed by rank, channel, after
  double last_end_ = 0;
};

[[noreturn]] void run_and_report(const Plan& plan, const Call& call, const Network& network, int pipe) {
  // Without the first four options, SimGrid models TCP in a wide-area network, with 13 times the latency and a
  // limited window.
  std::vector<std::string> options{"judge",
                                   "--cfg=network/latency-factor:1",
                                   "--cfg=network/bandwidth-factor:1",
                                   "--cfg=network/TCP-gamma:0",
                                   "--cfg=network/crosstraffic:0",
                                   "--cfg=network/weight-S:0",  // flows over more links get no lower share
                                   "--cfg=contexts/stack-size:64",
                                   "--log=root.threshold:critical"};
  std::vector<char*> argv;
  for (std::string& word : options) argv.push_back(word.data());
  argv.push_back(nullptr);
  int argc = static_cast<int>(options.size());
  s4u::Engine engine(&argc, argv.data());
  const double us = SimGridModel(plan, call, network).run();
  const bool written = write(pipe, &us, sizeof us) == sizeof us;
  _exit(written ? 0 : 1);
}

}  // namespace

Result<double> simgrid_us(const Plan& plan, const Call& call, const Network& network) {
  const auto failed = [](const char* what) {
    return Error{.code = ErrorCode::kSystem, .scope = ErrorScope::kCall, .rank = -1, .message = what};
  };
  int ends[2];
  if (pipe(ends) != 0) return failed("no pipe for SimGrid's process");
  const pid_t child = fork();
  if (child < 0) return failed("no process for SimGrid");
  if (child == 0) run_and_report(plan, call, network, ends[1]);
  close(ends[1]);
  double us = 0;
  const ssize_t got = read(ends[0], &us, sizeof us);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (got != sizeof us || status != 0) return failed("SimGrid's process ended without a time");
  return us;
}

}  // namespace tutti::judge

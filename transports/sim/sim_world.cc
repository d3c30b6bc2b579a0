#include "transports/sim/sim_world.h"

#include <algorithm>
#include <iterator>
#include <thread>

#include "base/assert.h"

namespace tutti {

class SimClock final : public Clock {
 public:
  explicit SimClock(SimWorld& world) : world_(world) {}
  std::int64_t now_ns() override { return world_.now_ns_; }

 private:
  SimWorld& world_;
};

class SimWaiter final : public Waiter {
 public:
  SimWaiter(SimWorld& world, std::uint32_t rank) : world_(world), rank_(rank) {}
  void pause(Idle& idle, Doorbell&, std::int64_t max_sleep_ns) override {
    ++idle.rounds;
    ++idle.sleeps;
    world_.pause(rank_, max_sleep_ns);
  }

 private:
  SimWorld& world_;
  std::uint32_t rank_;
};

// The turn is the doorbell: whoever acts makes all paused ranks look again.
class SimDoorbell final : public Doorbell {
 public:
  void arm() override {}
  void disarm() override {}
  void sleep(std::int64_t) override {}
  void ring() override {}
};

class SimSend final : public SendConnection {
 public:
  SimSend(SimWorld& world, SimWorld::Wire& wire) : world_(world), wire_(wire), slot_(world.options_.slot_bytes) {}
  bool ready() override { return wire_.sent - wire_.released < world_.options_.slots; }
  std::byte* slot() override { return slot_.data(); }
  void send_slot(std::uint64_t bytes, const CallTag& tag) override {
    TUTTI_ASSERT(bytes <= slot_.size());
    send({.tag = tag,
          .carrier = Carrier::kSlot,
          .bytes = bytes,
          .slot = {slot_.begin(), slot_.begin() + static_cast<std::ptrdiff_t>(bytes)},
          .published = nullptr});
  }
  void send_published(const WindowRef& place, std::uint64_t bytes, const CallTag& tag) override {
    send({.tag = tag,
          .carrier = Carrier::kPublished,
          .bytes = bytes,
          .slot = {},
          .published = SimWorld::memory_of(place)});
  }
  void send_delivered(std::uint64_t bytes, const CallTag& tag) override {
    send({.tag = tag, .carrier = Carrier::kDelivered, .bytes = bytes, .slot = {}, .published = nullptr});
  }
  bool drained() override { return wire_.sent == wire_.released; }
  bool handed_over() override { return true; }

 private:
  void send(SimWorld::Packet packet) {
    TUTTI_ASSERT(ready());
    ++wire_.sent;
    world_.after_latency(wire_, [&wire = wire_, packet = std::move(packet)] { wire.arrived.push_back(packet); });
  }

  SimWorld& world_;
  SimWorld::Wire& wire_;
  std::vector<std::byte> slot_;
};

class SimReceive final : public ReceiveConnection {
 public:
  SimReceive(SimWorld& world, SimWorld::Wire& wire) : world_(world), wire_(wire) {}
  Arrival arrival(const CallTag& call, std::span<std::byte>) override {
    while (!wire_.arrived.empty() && wire_.arrived.front().tag.sequence < call.sequence) release();
    if (wire_.arrived.empty() || wire_.arrived.front().tag.sequence > call.sequence) return Arrival::kNothing;
    return wire_.arrived.front().tag == call ? Arrival::kMessage : Arrival::kMismatch;
  }
  CallTag mismatched_tag() const override { return wire_.arrived.empty() ? CallTag{} : wire_.arrived.front().tag; }
  Message front() override {
    const SimWorld::Packet& packet = wire_.arrived.front();
    const std::byte* data = packet.carrier == Carrier::kSlot ? packet.slot.data() : packet.published;
    return {.carrier = packet.carrier, .data = data, .bytes = packet.bytes};
  }
  void release() override {
    wire_.arrived.pop_front();
    world_.after_latency(wire_, [&wire = wire_] { ++wire.released; });
  }

 private:
  SimWorld& world_;
  SimWorld::Wire& wire_;
};

class SimWindow final : public Window {
 public:
  SimWindow(SimWorld& world, std::size_t bytes) : world_(world), bytes_(bytes), memory_(bytes) {
    world_.memory_left_ -= bytes;
    world_.windows_[data()] = bytes;
  }
  // Also memory of the caller's own: everything is in one process here.
  SimWindow(SimWorld& world, std::byte* data, std::size_t bytes) : world_(world), bytes_(bytes), adopted_(data) {
    world_.windows_[data] = bytes;
  }
  ~SimWindow() override {
    world_.windows_.erase(data());
    world_.memory_left_ += memory_.size();
  }
  std::byte* data() const override { return adopted_ != nullptr ? adopted_ : const_cast<std::byte*>(memory_.data()); }
  std::size_t size() const override { return bytes_; }

 private:
  SimWorld& world_;
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::byte* adopted_ = nullptr;
};

class SimTransport final : public Transport {
 public:
  SimTransport(SimWorld& world, std::uint32_t rank) : world_(world), rank_(rank) {}
  ~SimTransport() override {
    if (board().life == PeerLife::kLive) board().life = PeerLife::kLeft;
  }

  std::string_view name() const override { return "sim"; }
  std::uint32_t slots() const override { return world_.options_.slots; }
  std::uint64_t slot_bytes() const override { return world_.options_.slot_bytes; }
  std::uint32_t lanes() const override { return 8; }
  Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) override {
    return std::unique_ptr<SendConnection>(std::make_unique<SimSend>(world_, world_.wires_[{rank_, peer, lane}]));
  }
  Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) override {
    return std::unique_ptr<ReceiveConnection>(std::make_unique<SimReceive>(world_, world_.wires_[{peer, rank_, lane}]));
  }
  Doorbell& doorbell() override { return doorbell_; }
  void enter_call(const CallTag& tag, const WindowRef& output) override {
    board().calls[tag.sequence] = tag;
    board().entered = tag.sequence;
    board().output = output.window == 0 ? nullptr : SimWorld::memory_of(output);
  }
  void leave_call(const CallTag& tag, const std::optional<CallFailure>& failure) override {
    if (failure) board().failures[tag.sequence] = *failure;
    board().left = tag.sequence;
    board().output = nullptr;
  }
  PeerStatus peer_status(std::uint32_t peer) override {
    const SimWorld::Board& theirs = world_.boards_.at(peer);
    return {.life = theirs.life, .entered = theirs.entered, .left = theirs.left};
  }
  std::optional<CallTag> peer_call(std::uint32_t peer, std::uint64_t sequence) override {
    const auto& calls = world_.boards_.at(peer).calls;
    const auto found = calls.find(sequence);
    return found == calls.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<CallFailure> peer_failure(std::uint32_t peer, std::uint64_t sequence) override {
    const auto& failures = world_.boards_.at(peer).failures;
    const auto found = failures.find(sequence);
    return found == failures.end() ? std::nullopt : std::optional(found->second);
  }
  bool peer_has_left(std::uint32_t peer, std::uint64_t sequence) override {
    return world_.boards_.at(peer).left >= sequence;
  }
  std::optional<std::byte*> peer_output(std::uint32_t peer, std::uint64_t sequence, std::uint64_t) override {
    const SimWorld::Board& theirs = world_.boards_.at(peer);
    if (theirs.entered < sequence) return std::nullopt;
    return theirs.entered == sequence ? theirs.output : nullptr;
  }
  // A place is named by its address: all ranks live in one process.
  WindowRef find_window(const void* data, std::size_t bytes) override {
    const auto* start = static_cast<const std::byte*>(data);
    auto after = world_.windows_.upper_bound(start);
    if (after == world_.windows_.begin()) return {};
    const auto& [window, window_bytes] = *std::prev(after);
    const auto offset = static_cast<std::size_t>(start - window);
    if (offset > window_bytes || bytes > window_bytes - offset) return {};
    return {.window = 1, .offset = reinterpret_cast<std::uintptr_t>(data)};
  }
  Result<std::unique_ptr<Window>> allocate_window(std::size_t bytes) override {
    if (bytes > world_.memory_left_) {
      return Error{ErrorCode::kSystem, ErrorScope::kCall, -1, "the simulated machine is out of memory"};
    }
    return std::unique_ptr<Window>(std::make_unique<SimWindow>(world_, bytes));
  }
  Result<std::unique_ptr<Window>> adopt_window(void* data, std::size_t bytes) override {
    return std::unique_ptr<Window>(std::make_unique<SimWindow>(world_, static_cast<std::byte*>(data), bytes));
  }
  void pump() override {}
  void announce_leave() override { board().life = PeerLife::kLeft; }
  void announce_abort() override { board().life = PeerLife::kAborted; }

 private:
  SimWorld::Board& board() { return world_.boards_.at(rank_); }

  SimWorld& world_;
  std::uint32_t rank_;
  SimDoorbell doorbell_;
};

SimWorld::SimWorld(const SimOptions& options)
    : options_(options),
      random_(options.seed),
      boards_(options.ranks),
      memory_left_(options.memory_bytes),
      states_(options.ranks, State::kReady),
      wake_at_ns_(options.ranks, 0) {
  TUTTI_ASSERT(options.ranks > 0 && options.min_latency_ns >= 0 && options.min_latency_ns <= options.max_latency_ns);
}

// NOLINTBEGIN(performance-no-int-to-ptr): here a place is named by its address
std::byte* SimWorld::memory_of(const WindowRef& place) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(place.offset));
}
// NOLINTEND(performance-no-int-to-ptr)

std::shared_ptr<Clock> SimWorld::clock() { return std::make_shared<SimClock>(*this); }
std::unique_ptr<Waiter> SimWorld::waiter(std::uint32_t rank) { return std::make_unique<SimWaiter>(*this, rank); }
std::unique_ptr<Transport> SimWorld::transport(std::uint32_t rank) {
  return std::make_unique<SimTransport>(*this, rank);
}

std::uint64_t SimWorld::draw(std::uint64_t bound) {
  const std::uint64_t drawn = random_() % bound;
  fingerprint_ = (fingerprint_ ^ drawn ^ static_cast<std::uint64_t>(now_ns_)) * 0x9e3779b97f4a7c15u;
  return drawn;
}

void SimWorld::after_latency(Wire& wire, std::function<void()> happen) {
  const auto spread = static_cast<std::uint64_t>(options_.max_latency_ns - options_.min_latency_ns) + 1;
  const std::int64_t arrival_ns = now_ns_ + options_.min_latency_ns + static_cast<std::int64_t>(draw(spread));
  wire.last_arrival_ns = std::max(wire.last_arrival_ns, arrival_ns);
  events_[{wire.last_arrival_ns, next_order_++}] = std::move(happen);
}

void SimWorld::wake_all() {
  for (State& state : states_) {
    if (state == State::kPaused) state = State::kReady;
  }
}

// Picks who runs next. When all are paused, time passes: the next arrival, or the end of the shortest sleep.
void SimWorld::hand_on(std::unique_lock<std::mutex>&) {
  std::vector<std::uint32_t> ready;
  while (true) {
    std::int64_t next_wake_ns = INT64_MAX;
    for (std::uint32_t rank = 0; rank < states_.size(); ++rank) {
      if (states_[rank] == State::kReady) ready.push_back(rank);
      if (states_[rank] == State::kPaused) next_wake_ns = std::min(next_wake_ns, wake_at_ns_[rank]);
    }
    if (!ready.empty()) break;
    if (next_wake_ns == INT64_MAX) return;  // all have ended
    if (!events_.empty() && events_.begin()->first.first <= next_wake_ns) {
      now_ns_ = std::max(now_ns_, events_.begin()->first.first);
      const auto happen = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      happen();
    } else {
      now_ns_ = std::max(now_ns_, next_wake_ns);
    }
    wake_all();
  }
  turn_ = ready[draw(ready.size())];
  turn_changed_.notify_all();
}

void SimWorld::pause(std::uint32_t rank, std::int64_t max_sleep_ns) {
  std::unique_lock lock(mutex_);
  states_[rank] = State::kPaused;
  wake_at_ns_[rank] = now_ns_ + std::max<std::int64_t>(max_sleep_ns, 1);
  hand_on(lock);
  turn_changed_.wait(lock, [&] { return turn_ == rank && states_[rank] == State::kReady; });
}

void SimWorld::run(const std::function<void(std::uint32_t rank)>& body) {
  std::vector<std::thread> threads;
  std::fill(states_.begin(), states_.end(), State::kReady);
  turn_ = static_cast<std::uint32_t>(draw(states_.size()));
  for (std::uint32_t rank = 0; rank < states_.size(); ++rank) {
    threads.emplace_back([this, rank, &body] {
      {
        std::unique_lock lock(mutex_);
        turn_changed_.wait(lock, [&] { return turn_ == rank; });
      }
      body(rank);
      std::unique_lock lock(mutex_);
      states_[rank] = State::kEnded;
      wake_all();  // what it did last may be what the others wait for
      hand_on(lock);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tutti

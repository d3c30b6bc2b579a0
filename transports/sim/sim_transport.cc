// SimTransport: the transport of a simulated machine with shared memory.
//
// Ranks access registered memory of their peers in place. A published message is read when the receiver handles it (or,
// if the network writes it into the output of the receiver, before that), and a direct store into the output of a peer
// is visible immediately, as are changes of the status boards. Messages and credits arrive after a random time, or
// later if a fault of the environment delays them. A peer detects a dead process after a random time.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "transports/sim/sim_environment.h"
#include "transports/sim/sim_network.h"

namespace tutti {

// A doorbell without function, because a paused rank is woken by the events themselves.
class SimDoorbell final : public Doorbell {
 public:
  void arm() override {}
  void disarm() override {}
  void sleep(std::int64_t) override {}
  void ring() override {}
};

// One end of a connection: the rank that uses it, its peer, and the simulated connection between them.
struct SimConnectionEnd {
  SimEnvironment& environment;
  SimEnvironment::Network::Wire& wire;
  std::uint32_t rank;
  std::uint32_t peer;

  // Schedules `happen` for the time when data that this rank sends now arrives at the peer, and wakes the peer then.
  // `last_ns`: the arrival time of the previous data in this direction; it is updated.
  void after_latency(std::int64_t& last_ns, std::function<void()> happen) const {
    last_ns = std::max(last_ns, environment.arrival_ns(rank, peer));
    environment.at(last_ns, [environment = &environment, peer = peer, happen = std::move(happen)] {
      happen();
      environment->wake(peer);
    });
  }
};

namespace {

// NOLINTBEGIN(performance-no-int-to-ptr): the simulated transport identifies memory by its address
std::byte* memory_of(const WindowRef& place) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(place.offset));
}
// NOLINTEND(performance-no-int-to-ptr)

}  // namespace

class SimSend final : public SendConnection {
 public:
  explicit SimSend(const SimConnectionEnd& end) : end_(end), slot_(end.environment.options().slot_bytes) {
    ++end_.environment.network_->connections;
  }
  ~SimSend() override { --end_.environment.network_->connections; }
  bool ready() override {
    return !end_.environment.dead(end_.rank) && end_.wire.sent - end_.wire.released < end_.environment.options().slots;
  }
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
    send({.tag = tag, .carrier = Carrier::kPublished, .bytes = bytes, .slot = {}, .published = memory_of(place)});
  }
  void send_delivered(std::uint64_t bytes, const CallTag& tag) override {
    send({.tag = tag, .carrier = Carrier::kDelivered, .bytes = bytes, .slot = {}, .published = nullptr});
  }
  std::uint64_t min_aimed_bytes() const override {
    return end_.environment.options().writes_outputs ? 1 : SendConnection::min_aimed_bytes();
  }
  bool aim(const CallTag& call, std::uint64_t output_bytes, std::uint64_t offset) override {
    const SimEnvironment::Network::AdvertisedOutput& received_advert = end_.wire.received_advert;
    if (received_advert.number == 0 || received_advert.call != call || received_advert.bytes != output_bytes)
      return false;
    landing_ = {received_advert, offset};
    return true;
  }
  // The length of the message is random (but at least the smaller of `bytes` and slot_bytes), because receivers must
  // accept different lengths.
  std::uint64_t send_aimed(std::span<const std::byte>, const std::byte* data, std::uint64_t bytes,
                           const CallTag& tag) override {
    const std::uint64_t least = std::min(bytes, end_.environment.options().slot_bytes);
    const std::uint64_t length = least + end_.environment.draw(bytes - least + 1);
    send({.tag = tag, .carrier = Carrier::kSlot, .bytes = length, .slot = {data, data + length}, .published = nullptr});
    return length;
  }
  bool drained() override { return end_.wire.sent == end_.wire.released; }
  bool handed_over() override { return true; }

 private:
  void send(SimEnvironment::Network::Packet packet) {
    end_.environment.step(end_.rank);
    if (end_.environment.dead(end_.rank)) return;
    TUTTI_ASSERT(ready());
    ++end_.wire.sent;
    // During step() the receiver may revoke the output to which this message was going to be written. This side has
    // then already confirmed the revocation, so the message must use a slot. Network transports process revocations
    // only between messages, so this cannot happen there.
    const auto landing = std::exchange(landing_, std::nullopt);
    const bool still_advertised = landing && landing->first.number == end_.wire.received_advert.number;
    if (still_advertised && packet.carrier != Carrier::kDelivered)
      return write(std::move(packet), landing->first, landing->second);
    end_.after_latency(end_.wire.last_arrival_ns,
                       [wire = &end_.wire, packet = std::move(packet)] { wire->arrived.push_back(packet); });
  }

  // Writes the bytes of the message into the output at a random time before the message arrives. If the message is
  // published, its memory is read at that time.
  void write(SimEnvironment::Network::Packet packet, const SimEnvironment::Network::AdvertisedOutput& received_advert,
             std::uint64_t output_offset) {
    SimEnvironment::Network::Packet notification{.tag = packet.tag,
                                                 .carrier = Carrier::kDelivered,
                                                 .bytes = packet.bytes,
                                                 .slot = {},
                                                 .published = nullptr,
                                                 .output_offset = output_offset};
    TUTTI_ASSERT(output_offset + packet.bytes <= received_advert.bytes);
    const std::int64_t now_ns = end_.environment.now_ns();
    end_.after_latency(end_.wire.last_arrival_ns,
                       [wire = &end_.wire, notification] { wire->arrived.push_back(notification); });
    const std::int64_t arrives_ns = end_.wire.last_arrival_ns;
    if (arrives_ns == kForeverNs) return;
    const std::int64_t writes_ns =
        now_ns + static_cast<std::int64_t>(
                     end_.environment.draw(static_cast<std::uint64_t>(std::max<std::int64_t>(arrives_ns - now_ns, 1))));
    end_.environment.at(writes_ns, [end = end_, packet = std::move(packet), received_advert, output_offset] {
      if (end.wire.advertised.number != received_advert.number) {  // reject the write, as a network card would
        if (!end.environment.dead(end.rank) && !end.environment.dead(end.peer))
          ++end.environment.network_->refused_writes;
        return;
      }
      if (packet.bytes == 0) return;
      const std::byte* const data = packet.carrier == Carrier::kSlot ? packet.slot.data() : packet.published;
      std::memcpy(received_advert.output + output_offset, data, packet.bytes);
    });
  }

  SimConnectionEnd end_;
  std::vector<std::byte> slot_;
  // The output to which aim() has directed the next message, and the offset in it.
  std::optional<std::pair<SimEnvironment::Network::AdvertisedOutput, std::uint64_t>> landing_;
};

class SimReceive final : public ReceiveConnection {
 public:
  explicit SimReceive(const SimConnectionEnd& end) : end_(end) { ++end_.environment.network_->connections; }
  ~SimReceive() override {
    end_.wire.advertised = {};
    --end_.environment.network_->connections;
  }
  std::uint64_t min_aimed_bytes() const override {
    return end_.environment.options().writes_outputs ? 1 : ReceiveConnection::min_aimed_bytes();
  }
  bool advertise_output(const CallTag& call, std::span<std::byte> output) override {
    if (end_.environment.dead(end_.rank)) return false;
    end_.wire.advertised = {
        .call = call, .output = output.data(), .bytes = output.size(), .number = ++end_.wire.last_advertised};
    end_.after_latency(end_.wire.last_credit_ns,
                       [wire = &end_.wire, advertised = end_.wire.advertised] { wire->received_advert = advertised; });
    return true;
  }
  bool revoke_output() override {
    SimEnvironment::Network::Wire& wire = end_.wire;
    const std::uint64_t number = wire.advertised.number;
    if (number == 0 || end_.environment.dead(end_.rank)) return true;
    if (std::exchange(wire.revoke_requested, number) == number) return wire.revoke_confirmed == number;
    end_.after_latency(wire.last_credit_ns, [end = end_, number] {
      if (end.wire.received_advert.number == number) end.wire.received_advert = {};
      if (end.environment.dead(end.peer)) return;
      const SimConnectionEnd back{.environment = end.environment, .wire = end.wire, .rank = end.peer, .peer = end.rank};
      back.after_latency(end.wire.last_arrival_ns, [wire = &end.wire, number] { wire->revoke_confirmed = number; });
    });
    return false;
  }
  void withdraw_output(bool) override { end_.wire.advertised = {}; }
  Arrival arrival(const CallTag& call, std::span<std::byte>) override {
    if (end_.environment.dead(end_.rank)) return Arrival::kNothing;
    std::deque<SimEnvironment::Network::Packet>& arrived = end_.wire.arrived;
    while (!arrived.empty() && arrived.front().tag.sequence < call.sequence) release();
    if (arrived.empty() || arrived.front().tag.sequence > call.sequence) return Arrival::kNothing;
    return arrived.front().tag == call ? Arrival::kMessage : Arrival::kMismatch;
  }
  CallTag mismatched_tag() const override {
    return end_.wire.arrived.empty() ? CallTag{} : end_.wire.arrived.front().tag;
  }
  Message front() override {
    const SimEnvironment::Network::Packet& packet = end_.wire.arrived.front();
    const std::byte* data = packet.carrier == Carrier::kSlot ? packet.slot.data() : packet.published;
    return {.carrier = packet.carrier, .data = data, .bytes = packet.bytes, .output_offset = packet.output_offset};
  }
  void release() override {
    end_.environment.step(end_.rank);
    end_.wire.arrived.pop_front();
    if (end_.environment.dead(end_.rank)) return;
    end_.after_latency(end_.wire.last_credit_ns, [wire = &end_.wire] { ++wire->released; });
  }

 private:
  SimConnectionEnd end_;
};

class SimWindow final : public Window {
 public:
  SimWindow(SimEnvironment& environment, std::uint32_t rank, std::size_t bytes)
      : environment_(environment), network_(*environment.network_), rank_(rank), bytes_(bytes), memory_(bytes) {
    network_.memory_left -= bytes;
    network_.windows[data()] = bytes;
  }
  // Registers memory that belongs to the caller. That needs no conversion, because all ranks are in one process.
  SimWindow(SimEnvironment& environment, std::uint32_t rank, std::byte* data, std::size_t bytes)
      : environment_(environment), network_(*environment.network_), rank_(rank), bytes_(bytes), adopted_(data) {
    network_.windows[data] = bytes;
  }
  // Memory of an allocated window is kept, so that late writes of peers are detected (late_stores()). If the process is
  // dead, peers may still write to the memory as long as they map it.
  ~SimWindow() override {
    network_.windows.erase(data());
    network_.memory_left += memory_.size();
    if (memory_.empty()) return;
    const bool dead = environment_.dead(rank_);
    if (!dead) std::fill(memory_.begin(), memory_.end(), kEndedMemory);
    network_.ended_windows.push_back({.memory = std::move(memory_), .watched = !dead});
  }
  std::byte* data() const override { return adopted_ != nullptr ? adopted_ : const_cast<std::byte*>(memory_.data()); }
  std::size_t size() const override { return bytes_; }

 private:
  SimEnvironment& environment_;
  SimEnvironment::Network& network_;
  std::uint32_t rank_;
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::byte* adopted_ = nullptr;
};

class SimTransport final : public Transport {
 public:
  SimTransport(SimEnvironment& environment, std::uint32_t rank) : environment_(environment), rank_(rank) {}
  ~SimTransport() override {
    if (!environment_.dead(rank_) && board().life == PeerLife::kLive) board().life = PeerLife::kLeft;
  }

  std::string_view name() const override { return "sim"; }
  std::uint32_t slots() const override { return environment_.options().slots; }
  std::uint64_t slot_bytes() const override { return environment_.options().slot_bytes; }
  std::uint32_t lanes() const override { return 8; }
  Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) override {
    return std::unique_ptr<SendConnection>(
        std::make_unique<SimSend>(SimConnectionEnd{.environment = environment_,
                                                   .wire = environment_.network_->wires[{rank_, peer, lane}],
                                                   .rank = rank_,
                                                   .peer = peer}));
  }
  Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) override {
    return std::unique_ptr<ReceiveConnection>(
        std::make_unique<SimReceive>(SimConnectionEnd{.environment = environment_,
                                                      .wire = environment_.network_->wires[{peer, rank_, lane}],
                                                      .rank = rank_,
                                                      .peer = peer}));
  }
  Doorbell& doorbell() override { return doorbell_; }
  void enter_call(const CallTag& tag, const WindowRef& output) override {
    if (!acts()) return;
    board().calls[tag.sequence] = tag;
    board().entered = tag.sequence;
    board().output = output.window == 0 ? nullptr : memory_of(output);
    environment_.wake_all();
  }
  void leave_call(const CallTag& tag, const std::optional<CallFailure>& failure) override {
    if (!acts()) return;
    if (failure) board().failures[tag.sequence] = *failure;
    board().left = tag.sequence;
    board().output = nullptr;
    environment_.wake_all();
  }
  PeerStatus peer_status(std::uint32_t peer) override {
    const SimEnvironment::Network::Board& theirs = environment_.network_->boards.at(peer);
    const bool lost =
        environment_.dead(rank_) || (theirs.life == PeerLife::kLive && environment_.seen_dead(rank_, peer));
    return {.life = lost ? PeerLife::kLost : theirs.life, .entered = theirs.entered, .left = theirs.left};
  }
  std::optional<CallTag> peer_call(std::uint32_t peer, std::uint64_t sequence) override {
    const auto& calls = environment_.network_->boards.at(peer).calls;
    const auto found = calls.find(sequence);
    return found == calls.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<CallFailure> peer_failure(std::uint32_t peer, std::uint64_t sequence) override {
    const auto& failures = environment_.network_->boards.at(peer).failures;
    const auto found = failures.find(sequence);
    return found == failures.end() ? std::nullopt : std::optional(found->second);
  }
  bool peer_has_left(std::uint32_t peer, std::uint64_t sequence) override {
    return environment_.network_->boards.at(peer).left >= sequence;
  }
  std::optional<std::byte*> peer_output(std::uint32_t peer, std::uint64_t sequence, std::uint64_t bytes) override {
    environment_.step(rank_);
    const SimEnvironment::Network::Board& theirs = environment_.network_->boards.at(peer);
    if (environment_.dead(rank_) || theirs.entered < sequence) return std::nullopt;
    const bool offered = theirs.entered == sequence && theirs.output != nullptr;
    return offered && find_window(theirs.output, bytes).window != 0 ? theirs.output : nullptr;
  }
  // A location is identified by its address, because all ranks are in one process.
  WindowRef find_window(const void* data, std::size_t bytes) override {
    const auto& windows = environment_.network_->windows;
    const auto* start = static_cast<const std::byte*>(data);
    auto after = windows.upper_bound(start);
    if (after == windows.begin()) return {};
    const auto& [window, window_bytes] = *std::prev(after);
    const auto offset = static_cast<std::size_t>(start - window);
    if (offset > window_bytes || bytes > window_bytes - offset) return {};
    return {.window = 1, .offset = reinterpret_cast<std::uintptr_t>(data)};
  }
  Result<std::unique_ptr<Window>> allocate_window(std::size_t bytes) override {
    if (bytes > environment_.network_->memory_left) {
      return Error{ErrorCode::kSystem, ErrorScope::kCall, -1, "the simulated machine is out of memory"};
    }
    return std::unique_ptr<Window>(std::make_unique<SimWindow>(environment_, rank_, bytes));
  }
  Result<std::unique_ptr<Window>> adopt_window(void* data, std::size_t bytes) override {
    return std::unique_ptr<Window>(
        std::make_unique<SimWindow>(environment_, rank_, static_cast<std::byte*>(data), bytes));
  }
  void pump() override {}
  void announce_leave() override {
    if (acts()) board().life = PeerLife::kLeft;
  }
  void announce_abort() override {
    if (!acts()) return;
    board().life = PeerLife::kAborted;
    environment_.wake_all();
  }

 private:
  // Counts a step. Returns whether the actions of this rank still have an effect on others.
  bool acts() {
    environment_.step(rank_);
    return !environment_.dead(rank_);
  }
  SimEnvironment::Network::Board& board() { return environment_.network_->boards.at(rank_); }

  SimEnvironment& environment_;
  std::uint32_t rank_;
  SimDoorbell doorbell_;
};

std::unique_ptr<Transport> SimEnvironment::transport(std::uint32_t rank) {
  return std::make_unique<SimTransport>(*this, rank);
}

}  // namespace tutti

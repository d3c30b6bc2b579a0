// SimEnvironment::Network: the connections, status boards and windows of all ranks, shared by all SimTransports.
// Internal to transports/sim. Only the rank that has the turn uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "transports/sim/sim_environment.h"

namespace tutti {

// When an allocated window of a live rank ends, its memory is filled with this value.
inline constexpr std::byte kEndedMemory{0xdd};

struct SimEnvironment::Network {
  struct Packet {
    CallTag tag;
    Carrier carrier = Carrier::kSlot;
    std::uint64_t bytes = 0;
    std::vector<std::byte> slot;
    // Memory of the sender, which is read when the receiver handles the message, or when the network writes the message
    // into an output; null: the message is not published.
    const std::byte* published = nullptr;
    std::optional<std::uint64_t> output_offset{};  // see Message::output_offset
  };
  // A receiver's output of a call into which the network may write messages.
  struct AdvertisedOutput {
    CallTag call;
    std::byte* output = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t number = 0;  // counted from 1; 0: nothing is advertised
  };
  // One directed connection. A packet is first in flight, then in `arrived`, and is then released.
  struct Wire {
    AdvertisedOutput advertised;       // the receiver's current advertisement
    AdvertisedOutput received_advert;  // the advertisement that the sender has received; it arrives after a latency
    std::uint64_t last_advertised = 0;
    std::uint64_t revoke_requested = 0;  // the last advertisement that the receiver has asked the sender to give up
    std::uint64_t revoke_confirmed = 0;  // the last advertisement that the sender has confirmed to have given up
    std::deque<Packet> arrived;
    // Arrival time of the last packet; later packets do not arrive earlier, because a connection keeps the order.
    std::int64_t last_arrival_ns = 0;
    std::int64_t last_credit_ns = 0;
    std::uint64_t sent = 0;
    std::uint64_t released = 0;
  };
  struct Board {
    std::map<std::uint64_t, CallTag> calls;
    std::uint64_t entered = 0;
    std::uint64_t left = 0;
    PeerLife life = PeerLife::kLive;
    std::byte* output = nullptr;  // output that is offered for call `entered`; null: none
    std::map<std::uint64_t, CallFailure> failures;
  };
  struct EndedWindow {
    std::vector<std::byte> memory;
    bool watched = true;  // true: any later write to it is an error; false: its rank was killed
  };
  using WireKey = std::tuple<std::uint32_t, std::uint32_t, std::uint16_t>;  // (sender, receiver, lane)

  std::map<WireKey, Wire> wires;
  std::vector<Board> boards;
  std::map<const std::byte*, std::size_t> windows;  // registered memory of all ranks: start address and length in bytes
  std::vector<EndedWindow> ended_windows;           // allocated windows that have ended
  std::size_t memory_left = 0;                      // bytes left for windows
  std::size_t connections = 0;                      // number of open ends of connections
  std::size_t refused_writes = 0;                   // writes between live ranks into outputs that had been withdrawn
};

}  // namespace tutti

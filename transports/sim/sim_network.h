// What SimTransports share: connections, boards and windows of all ranks. Internal to transports/sim.
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

inline constexpr std::byte kEndedMemory{0xdd};  // what stands in a window that has ended

struct SimEnvironment::Network {
  struct Packet {
    CallTag tag;
    Carrier carrier = Carrier::kSlot;
    std::uint64_t bytes = 0;
    std::vector<std::byte> slot;
    const std::byte* published = nullptr;    // in the sender's memory: read there when the receiver gets to it
    std::optional<std::uint64_t> landing{};  // as Message's
  };
  // A receiver's output of a call, for the network to write messages into.
  struct Shown {
    CallTag call;
    std::byte* output = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t number = 0;  // from 1; 0: nothing is shown
  };
  // One directed connection: in flight, then arrived, then released.
  struct Wire {
    Shown shown;  // by the receiver
    Shown seen;   // by the sender, a while later
    std::uint64_t last_shown = 0;
    std::uint64_t asked_back = 0;  // the last that the receiver has recalled
    std::uint64_t given_back = 0;  // likewise, and the sender has agreed
    std::deque<Packet> arrived;
    std::int64_t last_arrival_ns = 0;  // a connection keeps the order
    std::int64_t last_credit_ns = 0;
    std::uint64_t sent = 0;
    std::uint64_t released = 0;
  };
  struct Board {
    std::map<std::uint64_t, CallTag> calls;
    std::uint64_t entered = 0;
    std::uint64_t left = 0;
    PeerLife life = PeerLife::kLive;
    std::byte* output = nullptr;  // on offer for call `entered`
    std::map<std::uint64_t, CallFailure> failures;
  };
  struct Ended {
    std::vector<std::byte> memory;
    bool watched = true;  // nobody may write to it any more
  };
  using WireKey = std::tuple<std::uint32_t, std::uint32_t, std::uint16_t>;  // from, to, lane

  std::map<WireKey, Wire> wires;
  std::vector<Board> boards;
  std::map<const std::byte*, std::size_t> windows;  // all ranks' registered memory: start, bytes
  std::vector<Ended> ended;                         // windows
  std::size_t memory_left = 0;                      // for windows
  std::size_t connections = 0;                      // open ends
  std::size_t refused_writes = 0;                   // into outputs that were hidden
};

}  // namespace tutti

// Where the connections between the devices of a communicator lie: every rank has one arena in its device's memory, in
// which its peers write. Arithmetic on addresses; nothing here touches memory. All ranks make the same one.
//
//   head        words of each rank (closed_word(), met_word()), and where the peers' windows begin (window_word())
//   connections for each protocol, number and peer: mailboxes of both ends that this rank has, envelopes, slots
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device/call.h"
#include "kernels/device/program.h"

namespace tutti {

inline constexpr std::uint32_t kDeviceProtocols = 3;   // device::Protocol
inline constexpr std::uint32_t kMostDeviceRanks = 48;  // a channel to and from all others has kMaxPorts connections

// Windows of a rank are numbered 1 .. kMostDeviceWindows; window 0 is all of its memory, from address 0 on.
inline constexpr std::uint32_t kMostDeviceWindows = 64;

// The connections of one protocol.
struct DeviceConnections {
  std::uint32_t count = 1;       // from each rank to each other
  std::uint32_t slots = 4;       // of each; a power of two
  std::uint64_t slot_bytes = 0;  // a multiple of device::kLineBytes
};

// What the settings give; slots are shorter where an arena would be longer than `most_bytes`.
std::array<DeviceConnections, kDeviceProtocols> device_connections(std::uint32_t ranks, std::uint32_t blocks,
                                                                   std::uint64_t slot_bytes, std::uint64_t most_bytes);

class DeviceArena {
 public:
  // ranks 1 .. kMostDeviceRanks.
  DeviceArena(std::uint32_t ranks, const std::array<DeviceConnections, kDeviceProtocols>& connections);

  std::uint64_t bytes() const { return bytes_; }
  const DeviceConnections& connections(device::Protocol protocol) const {
    return connections_[static_cast<std::size_t>(protocol)];
  }
  // Set by a peer that uses this arena no more, 32 bits.
  static std::uint64_t closed_word(std::uint32_t peer) { return std::uint64_t{peer} * sizeof(std::uint32_t); }
  // Set by a peer that has come to a meeting of that parity, taken back by the owner; 32 bits.
  static std::uint64_t met_word(std::uint32_t peer, std::uint32_t parity) {
    return (parity + 1) * kMostDeviceRanks * sizeof(std::uint32_t) + closed_word(peer);
  }
  // device::Link::windows of the connections with that peer: written and read by the owner alone, 64 bits.
  static std::uint64_t window_word(std::uint32_t peer, std::uint32_t window);

  // What `rank` knows of one peer.
  struct Peer {
    std::uint64_t arena = 0;     // its address on this rank's device
    bool all_of_memory = false;  // whatever its device reads this one can read, by the same addresses
  };
  // By device::link_index(); `peers` by rank, this one's own too.
  std::vector<device::Link> links(device::Protocol protocol, std::uint32_t rank, std::span<const Peer> peers) const;

 private:
  struct Place {
    std::uint64_t send_mailbox, receive_mailbox, envelopes, slots;
  };
  Place place(device::Protocol protocol, std::uint32_t number, std::uint32_t rank, std::uint32_t peer) const;

  std::uint32_t ranks_;
  std::array<DeviceConnections, kDeviceProtocols> connections_;
  std::array<std::uint64_t, kDeviceProtocols> begin_{};
  std::array<std::uint64_t, kDeviceProtocols> stride_{};  // of one connection
  std::uint64_t bytes_ = 0;
};

}  // namespace tutti

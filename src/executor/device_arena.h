// DeviceArena: the memory layout of the connections between the GPUs of a communicator. Every rank has one arena in
// the memory of its GPU, and its peers write to it. This class only computes addresses and never accesses the
// memory. The layout is the same on all ranks:
//
//   head         flags of each rank (closed_flag(), barrier_flag()) and addresses of the peers' windows (window_word())
//   connections  for each protocol, number and peer: the mailboxes of this rank's sending and receiving end,
//                envelopes, slots
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device/call.h"
#include "kernels/device/program.h"

namespace tutti {

inline constexpr std::uint32_t kDeviceProtocols = 3;  // number of values of device::Protocol
// Limited because a channel that sends to and receives from all other ranks needs two ports per peer, and has at
// most device::kMaxPorts.
inline constexpr std::uint32_t kMostDeviceRanks = 48;

// Windows of a rank are numbered 1 .. kMostDeviceWindows. Window 0 is all memory of the rank, starting at address 0.
inline constexpr std::uint32_t kMostDeviceWindows = 64;

class DeviceArena {
 public:
  // The connections of one protocol.
  struct Connections {
    std::uint32_t count = 1;       // connections from each rank to each other rank
    std::uint32_t slots = 4;       // slots per connection; a power of two
    std::uint64_t slot_bytes = 0;  // a multiple of device::kLineBytes
  };
  // Indexed by device::Protocol.
  using AllConnections = std::array<Connections, kDeviceProtocols>;
  // The connections of each protocol for the given settings. The slots of the simple protocol are shortened if the
  // arena would otherwise be longer than `most_bytes`.
  static AllConnections choose_connections(std::uint32_t ranks, std::uint32_t blocks, std::uint64_t slot_bytes,
                                           std::uint64_t most_bytes);

  // `ranks` is in 1 .. kMostDeviceRanks.
  DeviceArena(std::uint32_t ranks, const AllConnections& connections);

  std::uint64_t bytes() const { return bytes_; }
  const Connections& connections(device::Protocol protocol) const {
    return connections_[static_cast<std::size_t>(protocol)];
  }
  // Offset of the flag (32 bits) that `peer` sets when it has stopped using this arena.
  static std::uint64_t closed_flag(std::uint32_t peer) { return std::uint64_t{peer} * sizeof(std::uint32_t); }
  // Offset of the flag (32 bits) that `peer` sets when it reaches a stream barrier of that parity. The owner of the
  // arena resets it.
  static std::uint64_t barrier_flag(std::uint32_t peer, std::uint32_t parity) {
    return (parity + 1) * kMostDeviceRanks * sizeof(std::uint32_t) + closed_flag(peer);
  }
  // Offset of the address (64 bits) of a window of `peer`, see device::Link::windows. Only the owner of the arena
  // reads and writes it.
  static std::uint64_t window_word(std::uint32_t peer, std::uint32_t window);

  // How a rank reaches one peer.
  struct ArenaPeer {
    std::uint64_t arena = 0;     // address of the peer's arena on this rank's device
    bool all_of_memory = false;  // this rank's device can access all memory of the peer at the same addresses
  };
  // Returns the links of `rank`, indexed by device::link_index(). `peers` is indexed by rank and includes this rank.
  std::vector<device::Link> links(device::Protocol protocol, std::uint32_t rank,
                                  std::span<const ArenaPeer> peers) const;

 private:
  struct ConnectionOffsets {
    std::uint64_t send_mailbox, receive_mailbox, envelopes, slots;
  };
  ConnectionOffsets connection_offsets(device::Protocol protocol, std::uint32_t number, std::uint32_t rank,
                                       std::uint32_t peer) const;

  std::uint32_t ranks_;
  AllConnections connections_;
  std::array<std::uint64_t, kDeviceProtocols> begin_{};
  std::array<std::uint64_t, kDeviceProtocols> stride_{};  // bytes per connection, indexed by protocol
  std::uint64_t bytes_ = 0;
};

}  // namespace tutti

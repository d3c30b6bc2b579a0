// DeviceArena: the memory layout of the connections between the GPUs of a communicator. Every rank has one arena in
// the memory of its GPU, and its peers write into it. This class only computes addresses and offsets, and never
// accesses the memory. The layout is the same on all ranks:
//
//   head         addresses of the peers' windows (window_word()), counters of plans (states())
//   connections  for each protocol, and for transfers (sends and receives): for each connection number and peer, the
//                mailboxes of this rank's sending and receiving end, envelopes, slots
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device/call.h"
#include "kernels/device/program.h"

namespace tutti {

inline constexpr std::uint32_t kDeviceProtocols = 3;  // the number of values of device::Protocol
// The largest number of ranks. It is limited because a channel that sends to and receives from all other ranks needs
// two ports per peer, and a channel has at most device::kMaxPorts ports.
inline constexpr std::uint32_t kMostDeviceRanks = 48;

// Windows (registered memory) of a rank are numbered 1 .. kMostDeviceWindows. Window 0 stands for all memory of the
// rank, starting at address 0, for peers that can access all of it (ArenaPeer::all_of_memory).
inline constexpr std::uint32_t kMostDeviceWindows = 64;

class DeviceArena {
 public:
  // The number and size of the connections of one protocol, or of those for transfers.
  struct Connections {
    std::uint32_t count = 1;       // connections from each rank to each other rank; for transfers 0 if there are none
    std::uint32_t slots = 4;       // slots per connection; a power of two
    std::uint64_t slot_bytes = 0;  // bytes per slot; a multiple of device::kLineBytes
  };
  // Indexed by device::Protocol.
  using AllConnections = std::array<Connections, kDeviceProtocols>;
  // Returns the connections of each protocol for a communicator with calls of at most `blocks` thread blocks per
  // rank. The slots of the simple protocol have `slot_bytes` bytes, but fewer (at least 4096) if the slots of the
  // simple protocol would otherwise need more than `most_bytes` bytes in an arena.
  static AllConnections choose_connections(std::uint32_t ranks, std::uint32_t blocks, std::uint64_t slot_bytes,
                                           std::uint64_t most_bytes);
  // Returns the connections for transfers of a communicator whose launches have at most `blocks` thread blocks, and
  // always at least `threads` threads. Their count is limited by `blocks`, by kMostTransferConnections, and so that one
  // launch has a thread for each connection in each direction. It is 0 if the threads are too few. `slot_bytes`,
  // `most_bytes`: as above.
  static Connections choose_transfer_connections(std::uint32_t ranks, std::uint32_t blocks, std::uint32_t threads,
                                                 std::uint64_t slot_bytes, std::uint64_t most_bytes);

  // `ranks` is the number of ranks, 1 .. kMostDeviceRanks.
  DeviceArena(std::uint32_t ranks, const AllConnections& plans, const Connections& transfers);

  std::uint64_t bytes() const { return bytes_; }
  const Connections& connections(device::Protocol protocol) const {
    return connections_[static_cast<std::size_t>(protocol)];
  }
  const Connections& transfer_connections() const { return connections_[kTransfers]; }
  // Offset in the arena of a word (64 bits) that holds the address at which window number `window` of `peer` is mapped
  // on this rank's GPU, see device::Link::windows. Only the owner of the arena reads and writes it.
  static std::uint64_t window_word(std::uint32_t peer, std::uint32_t window);

  // Offset in the arena of memory for the device::ChannelStates of plans, kStatesBytes in all. Peers do not access it.
  static std::uint64_t states();
  static constexpr std::uint64_t kStatesBytes = 32 * 1024;

  // The memory of one peer, as this rank's device sees it.
  struct ArenaPeer {
    std::uint64_t arena = 0;     // address of the peer's arena on this rank's device
    bool all_of_memory = false;  // this rank's device can access all memory of the peer at the same addresses
  };
  // Returns the ends of `rank` of all its connections of one protocol, indexed by device::link_index(): for each
  // peer and connection number, one end that sends to the peer and one that receives from it. `peers` is indexed by
  // rank and includes `rank` itself.
  std::vector<device::Link> links(device::Protocol protocol, std::uint32_t rank,
                                  std::span<const ArenaPeer> peers) const {
    return links_of(static_cast<std::size_t>(protocol), rank, peers);
  }
  std::vector<device::Link> transfer_links(std::uint32_t rank, std::span<const ArenaPeer> peers) const {
    return links_of(kTransfers, rank, peers);
  }

 private:
  // The connections for transfers follow those of the protocols.
  static constexpr std::size_t kTransfers = kDeviceProtocols;
  static constexpr std::size_t kSets = kDeviceProtocols + 1;
  struct ConnectionOffsets {
    std::uint64_t send_mailbox, receive_mailbox, envelopes, slots;
  };
  ConnectionOffsets connection_offsets(std::size_t set, std::uint32_t number, std::uint32_t rank,
                                       std::uint32_t peer) const;
  std::vector<device::Link> links_of(std::size_t set, std::uint32_t rank, std::span<const ArenaPeer> peers) const;

  std::uint32_t ranks_;
  // The next three arrays are indexed by device::Protocol, or kTransfers.
  std::array<Connections, kSets> connections_;
  std::array<std::uint64_t, kSets> begin_{};   // offset of the first connection, in bytes
  std::array<std::uint64_t, kSets> stride_{};  // bytes of one connection, and from one to the next
  std::uint64_t bytes_ = 0;
};

}  // namespace tutti

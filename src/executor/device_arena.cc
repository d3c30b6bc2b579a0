// DeviceArena: lengths of slots, and offsets in the arena.
#include "executor/device_arena.h"

#include <algorithm>

#include "base/assert.h"

namespace tutti {
namespace {

constexpr std::uint64_t kWindowsBytes = 25 * 1024;
constexpr std::uint64_t kLlPayload = 16 * 1024;
constexpr std::uint64_t kLl128Payload = 15 * 1024;  // bytes of data: 128 lines of 120 bytes
// The LL protocol has at least this many connections between two ranks, even if there are fewer thread blocks, so that
// one slice (copy) of a plan with up to this many lanes fits. LL normally carries short messages, which need few
// slices.
constexpr std::uint32_t kFewConnections = 4;
static_assert(kMostDeviceRanks * (kMostDeviceWindows + 1) * sizeof(std::uint64_t) <= kWindowsBytes);

std::uint64_t to_lines(std::uint64_t bytes) {
  return (bytes + device::kLineBytes - 1) / device::kLineBytes * device::kLineBytes;
}

std::uint64_t connection_bytes(const DeviceArena::Connections& connections) {
  return 2 * sizeof(device::Mailbox) + to_lines(connections.slots * sizeof(device::Envelope)) +
         connections.slots * connections.slot_bytes;
}

constexpr std::uint32_t kSlots = 4;
constexpr std::uint64_t kLeastSlot = 4096;
// Largest number of connections for transfers between two ranks, in each direction. A thread block copies about 20
// GB/s, so 16 of them are enough for a PCIe link and for most of an NVLink link. Estimated.
constexpr std::uint32_t kMostTransferConnections = 16;

// The slot length: `slot_bytes`, or less if the slots of `connections` connections to each of the `peers` peers would
// otherwise need more than `most_bytes` bytes in all, but always at least kLeastSlot.
std::uint64_t shared_slot(std::uint64_t slot_bytes, std::uint64_t most_bytes, std::uint64_t peers,
                          std::uint64_t connections) {
  const std::uint64_t share = most_bytes / (peers * connections * kSlots) / kLeastSlot * kLeastSlot;
  return std::max(kLeastSlot, std::min(slot_bytes, share));
}

}  // namespace

DeviceArena::AllConnections DeviceArena::choose_connections(std::uint32_t ranks, std::uint32_t blocks,
                                                            std::uint64_t slot_bytes, std::uint64_t most_bytes) {
  const std::uint64_t peers = std::max(ranks, 2u) - 1;
  const std::uint64_t ll128_lines = kLl128Payload / device::kLl128LineData;
  return {
      Connections{.count = blocks, .slots = kSlots, .slot_bytes = shared_slot(slot_bytes, most_bytes, peers, blocks)},
      Connections{.count = std::max(blocks, kFewConnections),
                  .slots = kSlots,
                  .slot_bytes = device::kHeaderBytes + kLlPayload / device::kLlLineData * device::kLlLineBytes},
      Connections{.count = blocks,
                  .slots = kSlots,
                  .slot_bytes = device::kHeaderBytes + ll128_lines * device::kLl128LineBytes}};
}

DeviceArena::Connections DeviceArena::choose_transfer_connections(std::uint32_t ranks, std::uint32_t blocks,
                                                                  std::uint32_t threads, std::uint64_t slot_bytes,
                                                                  std::uint64_t most_bytes) {
  const std::uint32_t peers = std::max(ranks, 2u) - 1;
  // Each thread looks after one connection in one direction, see kernels/device/transfer.h.
  const std::uint32_t count = std::min({blocks, kMostTransferConnections, threads / (2 * peers)});
  if (count == 0) return {.count = 0, .slots = kSlots, .slot_bytes = 0};
  return {.count = count, .slots = kSlots, .slot_bytes = shared_slot(slot_bytes, most_bytes, peers, count)};
}

DeviceArena::DeviceArena(std::uint32_t ranks, const AllConnections& plans, const Connections& transfers)
    : ranks_(ranks), bytes_(kWindowsBytes + kStatesBytes) {
  TUTTI_ASSERT(ranks >= 1 && ranks <= kMostDeviceRanks, "{} ranks", ranks);
  std::copy(plans.begin(), plans.end(), connections_.begin());
  connections_[kTransfers] = transfers;
  for (std::size_t set = 0; set < kSets; ++set) {
    stride_[set] = connection_bytes(connections_[set]);
    begin_[set] = bytes_;
    bytes_ += stride_[set] * connections_[set].count * (ranks - 1);
  }
}

std::uint64_t DeviceArena::window_word(std::uint32_t peer, std::uint32_t window) {
  TUTTI_ASSERT(peer < kMostDeviceRanks && window <= kMostDeviceWindows, "window {} of rank {}", window, peer);
  return (std::uint64_t{peer} * (kMostDeviceWindows + 1) + window) * sizeof(std::uint64_t);
}

std::uint64_t DeviceArena::states() { return kWindowsBytes; }

DeviceArena::ConnectionOffsets DeviceArena::connection_offsets(std::size_t set, std::uint32_t number,
                                                               std::uint32_t rank, std::uint32_t peer) const {
  const std::uint64_t index = std::uint64_t{number} * (ranks_ - 1) + (peer < rank ? peer : peer - 1);
  ConnectionOffsets connection_offsets{};
  connection_offsets.send_mailbox = begin_[set] + index * stride_[set];
  connection_offsets.receive_mailbox = connection_offsets.send_mailbox + sizeof(device::Mailbox);
  connection_offsets.envelopes = connection_offsets.receive_mailbox + sizeof(device::Mailbox);
  connection_offsets.slots =
      connection_offsets.envelopes + to_lines(connections_[set].slots * sizeof(device::Envelope));
  return connection_offsets;
}

std::vector<device::Link> DeviceArena::links_of(std::size_t set, std::uint32_t rank,
                                                std::span<const ArenaPeer> peers) const {
  TUTTI_ASSERT(peers.size() == ranks_);
  const Connections& how = connections_[set];
  std::vector<device::Link> links(std::size_t{2} * how.count * ranks_);
  // NOLINT: an address on a device
  const auto at = [](std::uint64_t address) { return reinterpret_cast<std::byte*>(address); };
  for (std::uint32_t number = 0; number < how.count; ++number) {
    for (std::uint32_t peer = 0; peer < ranks_; ++peer) {
      if (peer == rank) continue;
      const ConnectionOffsets own = connection_offsets(set, number, rank, peer);
      const ConnectionOffsets theirs = connection_offsets(set, number, peer, rank);
      const std::uint64_t here = peers[rank].arena;
      const std::uint64_t there = peers[peer].arena;
      for (const bool sends : {false, true}) {
        device::Link& link = links[device::link_index(number, ranks_, peer, sends)];
        link.own = reinterpret_cast<device::Mailbox*>(at(here + (sends ? own.send_mailbox : own.receive_mailbox)));
        link.peer =
            reinterpret_cast<device::Mailbox*>(at(there + (sends ? theirs.receive_mailbox : theirs.send_mailbox)));
        link.slots = at(sends ? there + theirs.slots : here + own.slots);
        link.envelopes =
            reinterpret_cast<device::Envelope*>(at(sends ? there + theirs.envelopes : here + own.envelopes));
        link.windows = reinterpret_cast<const std::uint64_t*>(at(here + window_word(peer, 0)));
        link.first_window = peers[peer].all_of_memory ? 0 : 1;
        link.slot_bytes = how.slot_bytes;
        link.slot_mask = how.slots - 1;
      }
    }
  }
  return links;
}

}  // namespace tutti

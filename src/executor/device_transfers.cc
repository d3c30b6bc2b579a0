#include "executor/device_transfers.h"

#include <algorithm>

#include "base/assert.h"

namespace tutti {
namespace {

// A transfer has one part for each full kLeastPartBytes bytes, but at least one, and at most one for each connection.
// With shorter parts, another thread block would cost more time than it saves. Estimated.
constexpr std::uint64_t kLeastPartBytes = 32 * 1024;

std::uint32_t part_count(std::uint64_t bytes, std::uint32_t connections) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(bytes / kLeastPartBytes, 1, connections));
}

// The part `number` of a transfer. Parts begin at multiples of a cache line from the start of the buffer, so their
// alignment relative to cache lines is that of the buffer.
device::TransferPart part_of(const Transfer& transfer, std::uint32_t number, std::uint32_t count) {
  const std::uint64_t lines = device::divide_up(transfer.bytes, device::kLineBytes);
  const auto start = [&](std::uint64_t part) {
    return std::min(transfer.bytes, (lines * part / count) * device::kLineBytes);
  };
  return {.data = transfer.data + start(number),
          .bytes = start(number + 1) - start(number),
          .digest = device_digest(transfer.tag),
          .type = static_cast<DataType>(transfer.tag.type)};
}

}  // namespace

std::uint32_t device_digest(const CallTag& tag) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  const auto add = [&](std::uint64_t value) {
    for (int i = 0; i < 8; ++i) hash = (hash ^ (value >> (8 * i) & 0xff)) * 0x100000001b3u;
  };
  for (const std::uint64_t value : {tag.count, std::uint64_t{tag.kind}, std::uint64_t{tag.type}, std::uint64_t{tag.op},
                                    std::uint64_t{tag.algorithm}, std::uint64_t{tag.root}, std::uint64_t{tag.digest}}) {
    add(value);
  }
  return static_cast<std::uint32_t>(hash ^ hash >> 32) | 1u;
}

DeviceTransfers pack_transfers(std::span<const Transfer> transfers, std::uint32_t ranks, std::uint32_t connections,
                               device::Link* links) {
  const auto pair_of = [](const Transfer& transfer) {
    return 2 * std::size_t{transfer.peer} + (transfer.direction == Direction::kSend ? 1 : 0);
  };
  std::vector<std::vector<const Transfer*>> pairs(2 * std::size_t{ranks});  // indexed by pair_of()
  std::vector<std::size_t> used;  // the pairs that have transfers, in the order of the first call
  for (const Transfer& transfer : transfers) {
    TUTTI_ASSERT(transfer.bytes > 0 && transfer.peer < ranks);
    std::vector<const Transfer*>& pair = pairs[pair_of(transfer)];
    if (pair.empty()) used.push_back(pair_of(transfer));
    pair.push_back(&transfer);
  }
  DeviceTransfers packed;
  for (const std::size_t index : used) {
    std::uint32_t most = 0;
    for (const Transfer* transfer : pairs[index]) most = std::max(most, part_count(transfer->bytes, connections));
    for (std::uint32_t number = 0; number < most; ++number) {
      const auto peer = static_cast<std::uint32_t>(index / 2);
      const bool sends = index % 2 != 0;
      device::TransferQueue queue{.link = links + device::link_index(number, ranks, peer, sends),
                                  .first_part = static_cast<std::uint32_t>(packed.parts.size()),
                                  .part_count = 0,
                                  .peer = peer,
                                  .sends = sends ? 1u : 0u};
      for (const Transfer* transfer : pairs[index]) {
        const std::uint32_t count = part_count(transfer->bytes, connections);
        if (number < count) packed.parts.push_back(part_of(*transfer, number, count));
      }
      queue.part_count = static_cast<std::uint32_t>(packed.parts.size()) - queue.first_part;
      packed.queues.push_back(queue);
    }
  }
  return packed;
}

}  // namespace tutti

// The parameters of a launch that sends and receives: the transfers of one rank, divided among connections. The host
// writes them, and device code (transfer.h) reads them. The types are plain values.
//
// Between two ranks there are one or more connections for transfers, in each direction. They use the same types (Link,
// Mailbox, Envelope) as the connections of plans (call.h), but each connection is either for transfers or for plans. A
// long transfer is divided into parts, which move at the same time on different connections. Sender and receiver divide
// it in the same way, because that depends only on its length and on the number of connections. Transfers with the same
// peer and direction follow each other on their connections in the order of the calls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/call.h"
#include "tutti/types.h"

namespace tutti::device {

// A contiguous part of the buffer of one transfer.
struct TransferPart {
  std::byte* data = nullptr;  // a send only reads it
  std::uint64_t bytes = 0;    // at least 1
  std::uint32_t digest = 0;   // digest of the transfer's tag, the same on both ranks
  DataType type = DataType::kUint8;
  std::uint8_t unused[3] = {};
};
static_assert(sizeof(TransferPart) == 24);

// The parts that move on one connection, one after the other: `part_count` elements of the launch's parts.
struct TransferQueue {
  Link* link = nullptr;
  std::uint32_t first_part = 0;
  std::uint32_t part_count = 0;
  std::uint32_t peer = 0;
  std::uint32_t sends = 0;  // 1: this rank sends; 0: it receives
};
static_assert(sizeof(TransferQueue) == 24);

inline constexpr std::uint32_t kInlineQueues = 64;
inline constexpr std::uint32_t kInlineParts = 64;
// The most threads of a block of this kernel. Each thread looks after at most one queue, so a launch must not have more
// queues than threads in all its blocks.
inline constexpr std::uint32_t kMostTransferThreads = 512;

struct TransferLaunch {
  // `queues` and `parts` are in memory that the device can read. If one of them is null, inline_queues or inline_parts
  // is used instead.
  const TransferQueue* queues = nullptr;
  const TransferPart* parts = nullptr;
  RankStatus* status = nullptr;
  std::uint64_t timeout_ns = kForever;  // how long a queue may wait for its peer before the call fails
  std::uint32_t queue_count = 0;
  std::uint32_t unused = 0;
  TransferQueue inline_queues[kInlineQueues];
  TransferPart inline_parts[kInlineParts];
};
static_assert(sizeof(TransferLaunch) <= kLaunchBytes);

}  // namespace tutti::device

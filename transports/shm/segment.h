// Segment: the shared memory that one rank owns and all ranks of its machine map. It contains the rank's status
// board, its doorbell, its mailboxes, and one inbox for each (peer, lane). An inbox is the receiving half of a
// connection to this rank. The segment of rank 0 also contains the mailbox marks of all ranks.
//
// Each part has a fixed writer:
//
//   status board, mailboxes, Consumed counters   the owner of the segment
//   mailbox mark                                 the rank to which the mark belongs
//   descriptors and slots of inbox (peer, lane)  that peer
//   doorbell                                     any rank
//
// All data are atomics, or bytes that the store to an atomic publishes. The memory is sparse: pages that are never
// touched use no memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/call_tag.h"
#include "transports/shm/mapping.h"
#include "transports/transport.h"

namespace tutti {

inline constexpr std::uint32_t kSegmentMagic = 0x54555454;  // "TUTT"
inline constexpr std::uint32_t kSegmentVersion = 7;
inline constexpr std::uint32_t kMaxLanes = 8;
inline constexpr std::size_t kLine = 64;  // size of a cache line in bytes

// A CallTag that one rank writes and other ranks read.
struct AtomicTag {
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> count;
  std::atomic<std::uint64_t> packed_fields;  // kind, type, op, algorithm, tile_bytes
  std::atomic<std::uint64_t> more;           // root, digest

  void store(const CallTag& tag);  // relaxed; a later store publishes it
  CallTag load() const;            // with acquire
};
static_assert(sizeof(AtomicTag) == 32);

// One message. The number is stored last: k+1 for message k of the connection. When a reader sees it, all other
// fields are valid.
struct alignas(kLine) Descriptor {
  std::atomic<std::uint64_t> number;
  AtomicTag tag;
  std::atomic<std::uint64_t> bytes;
  std::atomic<std::uint64_t> offset;   // for published messages: in bytes, from the start of the window
  std::atomic<std::uint32_t> window;   // for published messages: the window of the sender
  std::atomic<std::uint32_t> carrier;  // a Carrier
};
static_assert(sizeof(Descriptor) == kLine);

struct alignas(kLine) Consumed {
  std::atomic<std::uint64_t> count;  // number of messages that the receiver has released
};
static_assert(sizeof(Consumed) == kLine);

// A failed call, kept for peers that enter the call later.
struct FailureRecord {
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> packed_fields;  // code, argument, culprit
};
// The number of failed calls that a board remembers.
inline constexpr std::uint64_t kFailureRecords = 8;

// More than the number of calls by which a root may run ahead.
inline constexpr std::uint64_t kCallRecords = 2 * kMailboxes;

// The status board. Only the owner writes it. When it enters a call, it stores `changing`, then the output, and then
// `entered`. If a reader finds the same sequence number in `changing` and `entered`, before and after it has read the
// output, then the output belongs to that call.
struct alignas(kLine) Board {
  std::atomic<std::uint64_t> entered;  // sequence number of the last call that the owner entered
  std::atomic<std::uint64_t> changing;
  std::atomic<std::uint64_t> output_offset;
  std::atomic<std::uint64_t> output_window;  // window of the output; 0: not offered
  std::atomic<std::uint64_t> left;           // sequence number of the last call that the owner left
  std::atomic<std::uint32_t> life;           // a PeerLife
  std::atomic<std::uint32_t> reserved;
  alignas(kLine) std::array<AtomicTag, kCallRecords> calls;  // indexed by sequence number modulo the array size
  alignas(kLine) std::array<FailureRecord, kFailureRecords> failures;  // indexed in the same way
};
static_assert(sizeof(Board) == (3 + kCallRecords / 2) * kLine);

// The state of a doorbell, see doorbell.h.
struct alignas(kLine) SharedDoorbell {
  std::atomic<std::uint32_t> rings;     // number of times that the owner was woken; also the futex on which it sleeps
  std::atomic<std::uint32_t> sleepers;  // how to wake the owner while it is armed; one of the values in doorbell.h
  // Rank of the mailbox that the owner waits for, plus 1; 0: it waits for all mailboxes.
  std::atomic<std::uint32_t> awaited;
};
static_assert(sizeof(SharedDoorbell) == kLine);

// Counters that all ranks share. Any rank may write them.
struct alignas(2 * kLine) CommonCounters {
  // Number of ranks that are armed to sleep on their futex; too high if one of them was killed.
  std::atomic<std::uint32_t> sleepers;
};

struct alignas(kLine) SegmentHeader {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint32_t rank;
  std::uint32_t ranks;
  std::uint32_t slots;
  std::uint32_t slot_bytes;
  std::uint64_t bytes;
  // The address at which the owner has mapped the segment. If a peer finds this header at this address in the process
  // of the owner, it can attach to that process.
  std::uint64_t address;
  std::array<std::uint64_t, 2> nonce;  // random; proves that the process is the owner
  bool operator==(const SegmentHeader&) const = default;
};
static_assert(sizeof(SegmentHeader) == kLine);

// The parameters of a segment that must be the same for all segments of a job.
struct SegmentShape {
  std::uint32_t ranks = 1;
  std::uint32_t slots = 4;
  std::uint32_t slot_bytes = 128 * 1024;  // a multiple of 4096

  std::size_t inbox_bytes() const;     // size of one inbox
  std::size_t inboxes_offset() const;  // offset of the first inbox
  std::size_t bytes() const;           // size of the whole segment
  bool operator==(const SegmentShape&) const = default;
};

// Pointers to the parts of one inbox.
struct Inbox {
  Descriptor* descriptors;  // [slots]
  Consumed* consumed;
  std::byte* slots;  // [slots][slot_bytes]
};

// A view of a mapped segment. Copyable; each copy keeps the mapping alive.
class Segment {
 public:
  static Result<Segment> create(const SegmentShape& shape, std::uint32_t rank);
  // Checks that the mapping of a peer is a segment of `rank` with this shape. Errors: kRefused, kMismatch.
  static Result<Segment> open(std::shared_ptr<Mapping> mapping, const SegmentShape& shape, std::uint32_t rank);

  const std::shared_ptr<Mapping>& mapping() const { return mapping_; }
  const SegmentHeader& header() const;
  Board& board() const;
  SharedDoorbell& doorbell() const;
  CommonCounters& common_counters() const;               // only those in the segment of rank 0 are used
  MailboxMark* marks(std::size_t mailbox) const;         // [ranks]; only those in the segment of rank 0 are used
  std::byte* payload_buffer(std::size_t mailbox) const;  // payload buffer of the owner, kMailboxBytes long
  std::byte* long_payload_buffer(std::size_t which) const;
  Inbox inbox(std::uint32_t peer, std::uint16_t lane) const;

 private:
  Segment(std::shared_ptr<Mapping> mapping, const SegmentShape& shape) : mapping_(std::move(mapping)), shape_(shape) {}

  std::shared_ptr<Mapping> mapping_;
  SegmentShape shape_;
};

}  // namespace tutti

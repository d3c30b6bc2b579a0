// Segment: the shared memory that one rank owns, and that all ranks of its communicator on this machine map. It
// contains the rank's status board, its doorbell, the payload buffers of its mailboxes, and one inbox for each (peer,
// lane). An inbox is the receiving half of a connection to this rank. In the segment of rank 0, the mailbox marks of
// all ranks and the CommonCounters are used as well.
//
// The writers of each part:
//
//   header, status board                         the owner of the segment
//   payload buffers                              the owner; a long one also the rank that does the owner's share
//   Consumed counters of the inboxes             the owner of the segment
//   descriptors and slots of inbox (peer, lane)  that peer; a slot also the owner of the segment, for a reply
//   mailbox marks                                see MailboxMark
//   doorbell, CommonCounters                     any rank
//
// Apart from the header, which does not change after set-up, all data are atomics, or bytes that the store to an
// atomic publishes. The memory is sparse: pages that are never touched use no memory.
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
inline constexpr std::uint32_t kSegmentVersion = 9;
inline constexpr std::uint32_t kMaxLanes = 8;
inline constexpr std::size_t kLine = 64;  // size of a cache line in bytes

// A CallTag that one rank writes and other ranks read.
struct AtomicTag {
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> count;
  std::atomic<std::uint64_t> packed_fields;  // kind, type, op, algorithm, tile_bytes
  std::atomic<std::uint64_t> more;           // root, digest

  void store(const CallTag& tag);  // with memory_order_relaxed; a later store with a stronger order publishes the tag
  CallTag load() const;            // with memory_order_acquire
};
static_assert(sizeof(AtomicTag) == 32);

// Describes one message. `number` is stored last. It is k+1 for message k of the connection, counted from 0. If a
// reader finds that number, all other fields belong to message k.
struct alignas(kLine) Descriptor {
  std::atomic<std::uint64_t> number;
  AtomicTag tag;
  std::atomic<std::uint64_t> bytes;
  // For published messages: position in the window, in bytes; for replies: index of the slot.
  std::atomic<std::uint64_t> offset;
  std::atomic<std::uint32_t> window;   // for published messages: number of the window of the sender
  std::atomic<std::uint32_t> carrier;  // a Carrier
};
static_assert(sizeof(Descriptor) == kLine);

struct alignas(kLine) Consumed {
  std::atomic<std::uint64_t> count;  // number of messages of this inbox that the receiver has released
};
static_assert(sizeof(Consumed) == kLine);

// How a call failed on the owner of the board. The record is kept for some time, for peers that enter the call later.
struct FailureRecord {
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> packed_fields;  // code, argument, culprit
};
// The number of records of failed calls on a board. The record of call n is at index n modulo this number.
inline constexpr std::uint64_t kFailureRecords = 8;

// The number of last calls for which a board keeps the tags. It is greater than the number of calls by which the
// mailboxes let a root run ahead of other ranks, so that those ranks still find the tag of their call.
inline constexpr std::uint64_t kCallRecords = 2 * kMailboxes;

// The status board. Only the owner of the segment writes it. When the owner enters a call and offers an output, it
// stores the sequence number in `changing`, then the output, and then the sequence number in `entered`. A reader
// loads `entered`, then the output, and then `changing`. If both equal the sequence number of the reader's call, the
// output that it has read belongs to that call. If the owner offers no output, it changes only `entered` of these
// three.
struct alignas(kLine) Board {
  std::atomic<std::uint64_t> entered;  // sequence number of the last call that the owner entered
  std::atomic<std::uint64_t> changing;
  std::atomic<std::uint64_t> output_offset;
  std::atomic<std::uint64_t> output_window;  // number of the window that contains the output; 0: no output is offered
  std::atomic<std::uint64_t> left;           // sequence number of the last call that the owner left
  std::atomic<std::uint32_t> life;           // a PeerLife
  std::atomic<std::uint32_t> reserved;
  std::atomic<std::uint64_t> device_calls;  // number of collective calls that the owner has submitted to its GPU
  alignas(kLine) std::array<AtomicTag, kCallRecords> calls;  // indexed by sequence number modulo the array size
  // Indexed by sequence number modulo the array size.
  alignas(kLine) std::array<FailureRecord, kFailureRecords> failures;
};
static_assert(sizeof(Board) == (3 + kCallRecords / 2) * kLine);

// The state of a doorbell, see doorbell.h.
struct alignas(kLine) SharedDoorbell {
  // Counts the wake-ups of the owner by futex; it is also the futex on which the owner sleeps.
  std::atomic<std::uint32_t> rings;
  // Whether and how peers must wake the owner: kAwake, kSleepsOnFutex or kSleepsOnDescriptors, see doorbell.h.
  std::atomic<std::uint32_t> sleepers;
  // 1 + the rank of the mailbox that the owner waits for; 0: the owner waits for all mailboxes.
  std::atomic<std::uint32_t> awaited;
};
static_assert(sizeof(SharedDoorbell) == kLine);

// Counters of the whole communicator, in the segment of rank 0. Any rank may write them.
struct alignas(2 * kLine) CommonCounters {
  // Number of ranks that have armed their FutexDoorbell. Too high if a rank was killed while it was armed, which only
  // costs time.
  std::atomic<std::uint32_t> sleepers;
  // Not 0: no rank offers memory of its shared heap, because some rank has a limited address space (ulimit -v) or could
  // not map memory that a peer shares.
  std::atomic<std::uint32_t> heap_refusals;
};

struct alignas(kLine) SegmentHeader {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint32_t rank;
  std::uint32_t ranks;
  std::uint32_t slots;
  std::uint32_t slot_bytes;
  std::uint64_t bytes;
  // The address at which the owner has mapped the segment. A peer reads this address in the process of the owner by
  // cross-memory attach. If it finds this header there, that process is the owner, and the peer can read its memory:
  // see can_attach().
  std::uint64_t address;
  std::array<std::uint64_t, 2> nonce;  // random; proves to an attaching peer that the other process is the owner
  bool operator==(const SegmentHeader&) const = default;
};
static_assert(sizeof(SegmentHeader) == kLine);

// The parameters of segments. They must be the same for all segments that the ranks of one machine have for a
// communicator.
struct SegmentShape {
  std::uint32_t ranks = 1;
  std::uint32_t slots = 4;
  std::uint32_t slot_bytes = 128 * 1024;  // a multiple of 4096

  std::size_t inbox_bytes() const;     // size of one inbox in bytes
  std::size_t inboxes_offset() const;  // offset of the first inbox in the segment, in bytes
  std::size_t bytes() const;           // size of the whole segment in bytes
  bool operator==(const SegmentShape&) const = default;
};

// Pointers to the parts of one inbox.
struct Inbox {
  Descriptor* descriptors;  // array of SegmentShape::slots elements
  Consumed* consumed;
  std::byte* slots;  // SegmentShape::slots buffers of slot_bytes bytes, one behind the other
};

// A view of a mapped segment. Copyable; each copy keeps the mapping alive.
class Segment {
 public:
  static Result<Segment> create(const SegmentShape& shape, std::uint32_t rank);
  // Checks that `mapping`, which normally comes from a peer, is a segment of `rank` with this shape, and returns a view
  // of it. Errors: kRefused, kMismatch.
  static Result<Segment> open(std::shared_ptr<Mapping> mapping, const SegmentShape& shape, std::uint32_t rank);

  const std::shared_ptr<Mapping>& mapping() const { return mapping_; }
  const SegmentHeader& header() const;
  Board& board() const;
  SharedDoorbell& doorbell() const;
  CommonCounters& common_counters() const;        // use only those in the segment of rank 0
  MailboxMark* marks(std::size_t mailbox) const;  // array indexed by rank; use only those in the segment of rank 0
  // The payload buffers that belong to the owner of the segment: one of kMailboxBytes bytes for each mailbox, and the
  // long ones of kLongPayloadBytes bytes.
  std::byte* payload_buffer(std::size_t mailbox) const;
  std::byte* long_payload_buffer(std::size_t which) const;
  Inbox inbox(std::uint32_t peer, std::uint16_t lane) const;

 private:
  Segment(std::shared_ptr<Mapping> mapping, const SegmentShape& shape) : mapping_(std::move(mapping)), shape_(shape) {}

  std::shared_ptr<Mapping> mapping_;
  SegmentShape shape_;
};

}  // namespace tutti

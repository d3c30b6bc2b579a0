// Segment: the shared memory that one rank owns and all ranks of its machine map. It holds the rank's status board, its
// doorbell, its mailboxes, and one inbox per (peer, lane): the receiving half of every connection to this rank. Rank
// 0's holds the mailboxes' marks of all ranks, too.
//
// Who writes what: board, mailboxes and `consumed` counters the owner; marks the rank whose they are; descriptors and
// slots of inbox (peer, lane) that peer; the doorbell anybody. All of it is atomics, or bytes handed over by one.
// Sparse: pages that nobody touches cost nothing.
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
inline constexpr std::size_t kLine = 64;  // bytes of a cache line

// A CallTag that one rank writes and others read.
struct AtomicTag {
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> count;
  std::atomic<std::uint64_t> words;  // kind, type, op, algorithm, tile_bytes
  std::atomic<std::uint64_t> more;   // root, digest

  void store(const CallTag& tag);  // relaxed: published by what is stored after it
  CallTag load() const;            // acquire
};
static_assert(sizeof(AtomicTag) == 32);

// One message: its number is stored last (k+1 for message k of the connection) and tells that the rest is there.
struct alignas(kLine) Descriptor {
  std::atomic<std::uint64_t> number;
  AtomicTag tag;
  std::atomic<std::uint64_t> bytes;
  std::atomic<std::uint64_t> offset;   // published: bytes from the window's start
  std::atomic<std::uint32_t> window;   // published: the sender's window
  std::atomic<std::uint32_t> carrier;  // Carrier
};
static_assert(sizeof(Descriptor) == kLine);

struct alignas(kLine) Consumed {
  std::atomic<std::uint64_t> count;  // messages released by the receiver
};
static_assert(sizeof(Consumed) == kLine);

// A failed call, kept for peers that come late to it.
struct FailureRecord {
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> words;  // code, argument, culprit
};
inline constexpr std::uint64_t kFailureRecords = 8;

inline constexpr std::uint64_t kCallRecords = 2 * kMailboxes;  // more than a root may run ahead

// Written by the owner only. `changing`, then the output, then `entered`: a reader that finds both the same before and
// after it read the output has read that of call `entered`.
struct alignas(kLine) Board {
  std::atomic<std::uint64_t> entered;  // sequence number of the last call entered
  std::atomic<std::uint64_t> changing;
  std::atomic<std::uint64_t> output_offset;
  std::atomic<std::uint64_t> output_window;  // 0: not offered
  std::atomic<std::uint64_t> left;           // sequence number of the last call left
  std::atomic<std::uint32_t> life;           // PeerLife
  std::atomic<std::uint32_t> reserved;
  alignas(kLine) std::array<AtomicTag, kCallRecords> calls;            // by sequence number modulo their count
  alignas(kLine) std::array<FailureRecord, kFailureRecords> failures;  // likewise
};
static_assert(sizeof(Board) == (3 + kCallRecords / 2) * kLine);

struct alignas(kLine) Bell {
  std::atomic<std::uint32_t> rings;     // futex word
  std::atomic<std::uint32_t> sleepers;  // while the owner is armed, how it wants to be woken: see bell.h
  std::atomic<std::uint32_t> awaited;   // whose mailbox the owner waits for, plus 1; 0: anybody's
};
static_assert(sizeof(Bell) == kLine);

// What all ranks share; any of them writes.
struct alignas(2 * kLine) Commons {
  std::atomic<std::uint32_t> sleepers;  // ranks armed to sleep on their futex; too many where one was killed
};

struct alignas(kLine) SegmentHeader {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint32_t rank;
  std::uint32_t ranks;
  std::uint32_t slots;
  std::uint32_t slot_bytes;
  std::uint64_t bytes;
  std::uint64_t address;  // where the owner has mapped it: a peer that reads these lines there can attach to the owner
  std::array<std::uint64_t, 2> nonce;  // random, so that it is this owner
  bool operator==(const SegmentHeader&) const = default;
};
static_assert(sizeof(SegmentHeader) == kLine);

// What must be the same for all segments of a job.
struct SegmentShape {
  std::uint32_t ranks = 1;
  std::uint32_t slots = 4;
  std::uint32_t slot_bytes = 128 * 1024;  // multiple of 4096

  std::size_t inbox_bytes() const;     // one (peer, lane)
  std::size_t inboxes_offset() const;  // where they begin
  std::size_t bytes() const;           // the whole segment
  bool operator==(const SegmentShape&) const = default;
};

// One inbox, addressed.
struct Inbox {
  Descriptor* descriptors;  // [slots]
  Consumed* consumed;
  std::byte* slots;  // [slots][slot_bytes]
};

// A view of a mapped segment. Copyable; the mapping is kept alive by it.
class Segment {
 public:
  static Result<Segment> create(const SegmentShape& shape, std::uint32_t rank);
  // Checks that a peer's mapping is a segment of `rank` with this shape. Errors: kRefused, kMismatch.
  static Result<Segment> open(std::shared_ptr<Mapping> mapping, const SegmentShape& shape, std::uint32_t rank);

  const std::shared_ptr<Mapping>& mapping() const { return mapping_; }
  const SegmentHeader& header() const;
  Board& board() const;
  Bell& bell() const;
  Commons& commons() const;                       // that of rank 0's segment is the one in use
  MailboxMark* marks(std::size_t mailbox) const;  // [ranks], likewise
  std::byte* room(std::size_t mailbox) const;     // the owner's, kMailboxBytes long
  std::byte* long_room(std::size_t which) const;
  Inbox inbox(std::uint32_t peer, std::uint16_t lane) const;

 private:
  Segment(std::shared_ptr<Mapping> mapping, const SegmentShape& shape) : mapping_(std::move(mapping)), shape_(shape) {}

  std::shared_ptr<Mapping> mapping_;
  SegmentShape shape_;
};

}  // namespace tutti

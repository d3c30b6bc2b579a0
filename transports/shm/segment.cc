#include "transports/shm/segment.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <new>

#include "base/assert.h"

namespace tutti {
namespace {

// The first page, which contains the header, the status board and the doorbell.
constexpr std::size_t kHeaderBytes = 4096;
constexpr std::size_t kBoardOffset = kLine;
constexpr std::size_t kDoorbellOffset = kBoardOffset + sizeof(Board);
static_assert(kDoorbellOffset + sizeof(SharedDoorbell) <= kHeaderBytes);
constexpr std::size_t kPayloadOffset = kHeaderBytes;
constexpr std::size_t kLongPayloadOffset = kPayloadOffset + kMailboxes * kMailboxBytes;
constexpr std::size_t kCommonCountersOffset = kLongPayloadOffset + kLongPayloadBuffers * kLongPayloadBytes;
constexpr std::size_t kMarksOffset = kCommonCountersOffset + sizeof(CommonCounters);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

constexpr std::size_t whole_pages(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// Size of the part of an inbox that contains the descriptors and the Consumed counter.
std::size_t control_bytes(std::uint32_t slots) { return whole_pages(slots * sizeof(Descriptor) + sizeof(Consumed)); }

// Returns the object at that offset of the segment. No constructor runs, because zero bytes, which a new segment
// contains, are a valid initial state of all these types.
template <class T>
T* at(const std::shared_ptr<Mapping>& mapping, std::size_t offset) {
  return std::launder(reinterpret_cast<T*>(mapping->data() + offset));
}

// Like at(), for objects in the first page. It uses the separate view of that page if the mapping has one, see
// Mapping::first_page().
template <class T>
T* in_first_page(const std::shared_ptr<Mapping>& mapping, std::size_t offset) {
  TUTTI_ASSERT(offset + sizeof(T) <= kHeaderBytes);
  return std::launder(reinterpret_cast<T*>(mapping->first_page() + offset));
}

}  // namespace

void AtomicTag::store(const CallTag& tag) {
  sequence.store(tag.sequence, std::memory_order_relaxed);
  count.store(tag.count, std::memory_order_relaxed);
  packed_fields.store(std::uint64_t{tag.kind} | std::uint64_t{tag.type} << 8 | std::uint64_t{tag.op} << 16 |
                          std::uint64_t{tag.algorithm} << 24 | std::uint64_t{tag.tile_bytes} << 32,
                      std::memory_order_relaxed);
  more.store(std::uint64_t{tag.root} | std::uint64_t{tag.digest} << 32, std::memory_order_relaxed);
}

CallTag AtomicTag::load() const {
  const std::uint64_t packed = packed_fields.load(std::memory_order_acquire);
  const std::uint64_t rest = more.load(std::memory_order_acquire);
  return {.sequence = sequence.load(std::memory_order_acquire),
          .count = count.load(std::memory_order_acquire),
          .kind = static_cast<std::uint8_t>(packed),
          .type = static_cast<std::uint8_t>(packed >> 8),
          .op = static_cast<std::uint8_t>(packed >> 16),
          .algorithm = static_cast<std::uint8_t>(packed >> 24),
          .tile_bytes = static_cast<std::uint32_t>(packed >> 32),
          .root = static_cast<std::uint32_t>(rest),
          .digest = static_cast<std::uint32_t>(rest >> 32)};
}

std::size_t SegmentShape::inbox_bytes() const { return control_bytes(slots) + std::size_t{slots} * slot_bytes; }
std::size_t SegmentShape::inboxes_offset() const {
  return whole_pages(kMarksOffset + kMailboxes * ranks * sizeof(MailboxMark));
}
std::size_t SegmentShape::bytes() const { return inboxes_offset() + inbox_bytes() * ranks * kMaxLanes; }

Result<Segment> Segment::create(const SegmentShape& shape, std::uint32_t rank) {
  TUTTI_ASSERT(rank < shape.ranks && shape.slots > 0 && shape.slot_bytes % 4096 == 0);
  auto mapping = Mapping::create(shape.bytes(), false);
  if (!mapping) return mapping.error();
  auto* header = at<SegmentHeader>(*mapping, 0);
  *header = {.magic = kSegmentMagic,
             .version = kSegmentVersion,
             .rank = rank,
             .ranks = shape.ranks,
             .slots = shape.slots,
             .slot_bytes = shape.slot_bytes,
             .bytes = shape.bytes(),
             .address = reinterpret_cast<std::uintptr_t>((*mapping)->data()),
             .nonce = {}};
  // If getrandom() fails, the nonce stays zero. Peers then do not attach, see can_attach().
  static_cast<void>(getrandom(header->nonce.data(), sizeof(header->nonce), 0));
  return Segment(std::move(*mapping), shape);
}

Result<Segment> Segment::open(std::shared_ptr<Mapping> mapping, const SegmentShape& shape, std::uint32_t rank) {
  const auto refuse = [rank](ErrorCode code, std::string why) {
    return Error{code, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank),
                 fmt::format("rank {} shares memory that cannot be used: {}", rank, why)};
  };
  if (mapping->size() < kHeaderBytes) return refuse(ErrorCode::kRefused, "it is shorter than a header");
  const SegmentHeader header = *in_first_page<SegmentHeader>(mapping, 0);
  if (header.magic != kSegmentMagic || header.version != kSegmentVersion) {
    return refuse(ErrorCode::kRefused, "it is not a Tutti segment of this version; run the same build everywhere");
  }
  if (header.slots != shape.slots || header.slot_bytes != shape.slot_bytes) {
    return refuse(ErrorCode::kMismatch,
                  fmt::format("it has {} slots of {} bytes, here it is {} of {}; set TUTTI_SLOTS and "
                              "TUTTI_SLOT_BYTES alike on all ranks",
                              header.slots, header.slot_bytes, shape.slots, shape.slot_bytes));
  }
  if (header.rank != rank || header.ranks != shape.ranks || header.bytes != shape.bytes() ||
      mapping->size() != shape.bytes()) {
    return refuse(ErrorCode::kRefused, "its rank or size is wrong");
  }
  return Segment(std::move(mapping), shape);
}

const SegmentHeader& Segment::header() const { return *in_first_page<SegmentHeader>(mapping_, 0); }
Board& Segment::board() const { return *in_first_page<Board>(mapping_, kBoardOffset); }
SharedDoorbell& Segment::doorbell() const { return *in_first_page<SharedDoorbell>(mapping_, kDoorbellOffset); }
CommonCounters& Segment::common_counters() const { return *at<CommonCounters>(mapping_, kCommonCountersOffset); }
std::byte* Segment::payload_buffer(std::size_t mailbox) const {
  return mapping_->data() + kPayloadOffset + mailbox * kMailboxBytes;
}
std::byte* Segment::long_payload_buffer(std::size_t which) const {
  return mapping_->data() + kLongPayloadOffset + which * kLongPayloadBytes;
}
MailboxMark* Segment::marks(std::size_t mailbox) const {
  return at<MailboxMark>(mapping_, kMarksOffset + mailbox * shape_.ranks * sizeof(MailboxMark));
}

Inbox Segment::inbox(std::uint32_t peer, std::uint16_t lane) const {
  TUTTI_ASSERT(peer < shape_.ranks && lane < kMaxLanes);
  const std::size_t offset = shape_.inboxes_offset() + (std::size_t{peer} * kMaxLanes + lane) * shape_.inbox_bytes();
  return {.descriptors = at<Descriptor>(mapping_, offset),
          .consumed = at<Consumed>(mapping_, offset + shape_.slots * sizeof(Descriptor)),
          .slots = mapping_->data() + offset + control_bytes(shape_.slots)};
}

}  // namespace tutti

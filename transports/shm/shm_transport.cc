#include "transports/shm/shm_transport.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/exceptions.h"
#include "base/system/system_calls.h"
#include "transports/shm/attach.h"
#include "transports/shm/shared_heap.h"
#include "transports/shm/shm_connection.h"

namespace tutti {
namespace {

class ShmWindow final : public Window {
 public:
  ShmWindow(std::shared_ptr<WindowTable> table, std::shared_ptr<Mapping> mapping)
      : process_(getpid()), table_(std::move(table)), mapping_(std::move(mapping)), id_(table_->insert(mapping_)) {}
  ~ShmWindow() override {
    if (getpid() != process_) return;  // a copy in a forked child must not free the pages of the rank
    runs_through([this] { table_->erase(id_); });
    // Normally frees the pages, although peers may keep their mapping for a while. Adopted pages become private again
    // instead, and lent pages stay as they are.
    mapping_->retire();
  }
  std::byte* data() const override { return mapping_->data(); }
  std::size_t size() const override { return mapping_->size(); }

 private:
  pid_t process_;
  std::shared_ptr<WindowTable> table_;  // shared, because a window may outlive its transport
  std::shared_ptr<Mapping> mapping_;    // shared with peers in the same process
  std::uint32_t id_;
};

// Memory of the shared heap that the user has registered. It has no window of its own: find_window() finds that of its
// segment.
class HeapBlock final : public Window {
 public:
  HeapBlock(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data() const override { return data_; }
  std::size_t size() const override { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

// The state of a rank according to its board. If the value is not one that a correct rank writes, the rank is treated
// as lost.
PeerLife life_on(const Board& board) {
  const std::uint32_t life = board.life.load(std::memory_order_seq_cst);
  return life <= static_cast<std::uint32_t>(PeerLife::kAborted) ? static_cast<PeerLife>(life) : PeerLife::kLost;
}

}  // namespace

std::uint32_t WindowTable::insert(const std::shared_ptr<Mapping>& mapping) {
  const std::uint32_t id = exchange_->share(mapping, {});
  try {
    const std::scoped_lock lock(mutex_);
    windows_[mapping->data()] = {.id = id, .bytes = mapping->size(), .lent = mapping->lent()};
    addresses_[id] = mapping->data();
  } catch (...) {
    const std::scoped_lock lock(mutex_);
    windows_.erase(mapping->data());
    runs_through([&] { exchange_->unshare(id, {}); });
    throw;
  }
  return id;
}

void WindowTable::erase(std::uint32_t id) {
  {
    const std::scoped_lock lock(mutex_);
    windows_.erase(addresses_.at(id));
    addresses_.erase(id);
  }
  runs_through([&] { exchange_->unshare(id, {}); });  // called from destructors, so no exception may escape
}

WindowRef WindowTable::find(const std::byte* data, std::size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  auto after = windows_.upper_bound(data);
  if (after == windows_.begin()) return {};
  const auto& [start, entry] = *std::prev(after);
  const auto offset = static_cast<std::size_t>(data - start);
  if (offset > entry.bytes || bytes > entry.bytes - offset) return {};
  return {.window = entry.id, .offset = offset};
}

const std::byte* WindowTable::address(const WindowRef& place, std::size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  const auto found = addresses_.find(place.window);
  if (found == addresses_.end()) return nullptr;
  const std::size_t size = windows_.at(found->second).bytes;
  return place.offset > size || bytes > size - place.offset ? nullptr : found->second + place.offset;
}

std::span<const std::byte> WindowTable::memory(std::uint32_t window) const {
  const std::scoped_lock lock(mutex_);
  const auto found = addresses_.find(window);
  if (found == addresses_.end()) return {};
  const RegisteredWindow& entry = windows_.at(found->second);
  return {found->second, entry.lent ? 0 : entry.bytes};
}

bool WindowTable::overlaps(const std::byte* data, std::size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  const auto end = windows_.lower_bound(data + bytes);
  if (end == windows_.begin()) return false;
  const auto& [start, entry] = *std::prev(end);
  return start + entry.bytes > data;
}

Result<OwnSegment> OwnSegment::create(std::uint32_t rank, const SegmentShape& shape,
                                      const std::shared_ptr<SegmentExchange>& exchange) {
  auto segment = Segment::create(shape, rank);
  if (!segment) return segment.error();
  auto share = std::make_shared<const Share>(exchange, segment->mapping());
  return OwnSegment(std::move(*segment), std::move(share));
}

ShmTransport::ShmTransport(std::uint32_t rank, const SegmentShape& shape, OwnSegment own,
                           const std::shared_ptr<SegmentExchange>& exchange)
    : process_(getpid()),
      rank_(rank),
      shape_(shape),
      own_(std::move(own)),
      windows_of_(shape.ranks),
      outputs_(shape.ranks),
      exchange_(exchange),
      windows_(std::make_shared<WindowTable>(exchange)),
      doorbell_(own_.segment(), Ringer(own_.segment(), own_.id(), rank, exchange)) {}

Result<std::unique_ptr<ShmTransport>> ShmTransport::create(std::uint32_t rank, const SegmentShape& shape,
                                                           OwnSegment own, const std::vector<Offer>& offers,
                                                           const std::shared_ptr<SegmentExchange>& exchange) {
  TUTTI_ASSERT(offers.size() == shape.ranks && rank < shape.ranks);
  // The constructor is private.
  std::unique_ptr<ShmTransport> transport(new ShmTransport(rank, shape, std::move(own), exchange));
  for (std::uint32_t peer = 0; peer < shape.ranks; ++peer) {
    auto opened = Segment::open(offers[peer].mapping, shape, peer);
    if (!opened) return opened.error();
    transport->segment_ids_.push_back(offers[peer].id);
    transport->segments_.push_back(std::move(*opened));
    if (peer != rank) transport->peers_.push_back(transport->ringer(peer));
  }
  transport->mailboxes_.ranks = shape.ranks;
  for (std::size_t mailbox = 0; mailbox < kMailboxes; ++mailbox) {
    transport->mailboxes_.marks[mailbox] = transport->segments_[0].marks(mailbox);
    for (const Segment& segment : transport->segments_)
      transport->mailboxes_.payload_buffers[mailbox].push_back(segment.payload_buffer(mailbox));
  }
  for (std::size_t which = 0; which < kLongPayloadBuffers; ++which) {
    for (const Segment& segment : transport->segments_) {
      transport->mailboxes_.long_payload_buffers[which].push_back(segment.long_payload_buffer(which));
    }
  }
  transport->doorbell_.count_sleepers_in(transport->segments_[0]);
  for (std::uint32_t peer = 0; peer < shape.ranks; ++peer) {
    transport->processes_.push_back(peer == rank ? transport->process_ : exchange->process_of(peer));
  }
  // To map a segment of a heap, a process needs many more addresses than the blocks of the segment occupy. So no rank
  // offers its heap if the addresses of this process are limited.
  if (is_limited(RLIMIT_AS)) transport->refuse_heaps();
  return transport;
}

Result<std::unique_ptr<DescriptorDoorbell>> ShmTransport::create_descriptor_doorbell() {
  auto receiver = exchange_->create_wake_receiver(own_.id());
  if (!receiver) return receiver.error();
  return std::make_unique<DescriptorDoorbell>(own_.segment(), exchange_, std::move(*receiver));
}

const std::byte* ShmTransport::window_address(const WindowRef& place, std::size_t bytes) const {
  return windows_->address(place, bytes);
}

std::span<const std::byte> ShmTransport::window_memory(const WindowRef& place) const {
  return windows_->memory(place.window);
}

ShmTransport::~ShmTransport() {
  // Announces nothing if the set-up failed half-way, or if this is the copy of the object in a forked child.
  if (segments_.size() != shape_.ranks || getpid() != process_) return;
  runs_through([this] { announce_leave(); });
}

void ShmTransport::announce_leave() {
  std::uint32_t live = static_cast<std::uint32_t>(PeerLife::kLive);
  segments_[rank_].board().life.compare_exchange_strong(live, static_cast<std::uint32_t>(PeerLife::kLeft));
  ring_peers();
}

Result<std::unique_ptr<SendConnection>> ShmTransport::open_send(std::uint32_t peer, std::uint16_t lane) {
  TUTTI_ASSERT(peer < shape_.ranks && peer != rank_ && lane < kMaxLanes);
  return std::unique_ptr<SendConnection>(
      std::make_unique<ShmSendConnection>(segments_[peer], ringer(peer), shape_, rank_, lane));
}

Result<std::unique_ptr<ReceiveConnection>> ShmTransport::open_receive(std::uint32_t peer, std::uint16_t lane) {
  TUTTI_ASSERT(peer < shape_.ranks && peer != rank_ && lane < kMaxLanes);
  return std::unique_ptr<ReceiveConnection>(std::make_unique<ShmReceiveConnection>(
      segments_[rank_], segments_[peer], ringer(peer), shape_, rank_, peer, lane, exchange_));
}

void ShmTransport::ring_sleepers(std::uint32_t rank) {
  if (segments_[0].common_counters().sleepers.load(std::memory_order_seq_cst) == 0) return;
  for (const Ringer& peer : peers_) peer.ring_for_mailbox(rank);
}

void ShmTransport::await_mailbox(std::uint32_t rank) {
  segments_[rank_].doorbell().awaited.store(rank == kAnyRank ? 0 : rank + 1, std::memory_order_relaxed);
}

void ShmTransport::ring_peers() {
  for (const Ringer& peer : peers_) peer.ring();
}

void ShmTransport::set_life(PeerLife life) {
  segments_[rank_].board().life.store(static_cast<std::uint32_t>(life), std::memory_order_seq_cst);
  ring_peers();
}

// The sequence number of the record in `calls` is zero while its other fields change, so that peer_call() never
// returns a mixture of two calls.
void ShmTransport::enter_call(const CallTag& tag, const WindowRef& output) {
  Board& board = segments_[rank_].board();
  AtomicTag& record = board.calls[tag.sequence % kCallRecords];
  record.sequence.store(0, std::memory_order_relaxed);  // marks the record as invalid while it changes
#if defined(__SANITIZE_THREAD__)                        // the thread sanitizer does not support fences
  record.sequence.exchange(0, std::memory_order_acq_rel);
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
  CallTag unpublished = tag;
  unpublished.sequence = 0;
  record.store(unpublished);
  record.sequence.store(tag.sequence, std::memory_order_release);
  offers_ = output.window != 0;
  if (!offers_) {  // leave_call() has already withdrawn the offer of an earlier call
    board.entered.store(tag.sequence, std::memory_order_release);
    return;
  }
  board.changing.store(tag.sequence, std::memory_order_seq_cst);
  board.output_offset.store(output.offset, std::memory_order_relaxed);
  board.output_window.store(output.window, std::memory_order_relaxed);
  board.entered.store(tag.sequence, std::memory_order_seq_cst);  // seq_cst for the reason that leave_call() describes
}

void ShmTransport::leave_call(const CallTag& tag, const std::optional<CallFailure>& failure) {
  Board& board = segments_[rank_].board();
  if (!offers_ && !failure) {
    board.left.store(tag.sequence, std::memory_order_release);
    return;
  }
  // A peer that enters the call after this store finds no offer. If a peer has entered the call before and this rank
  // gives the call up, the caller of leave_call() waits for that peer for a limited time (FailedOperations::abandon())
  // before it returns the buffers to the user. This rank stores output_window and then loads `entered` of the peer, and
  // the peer stores `entered` and then loads output_window. All four are seq_cst, so at least one of the two ranks sees
  // the store of the other.
  board.output_window.store(0, std::memory_order_seq_cst);
  if (failure) {
    FailureRecord& record = board.failures[tag.sequence % kFailureRecords];
    record.sequence.store(0, std::memory_order_release);  // marks the record as invalid while it changes
    record.packed_fields.store(static_cast<std::uint64_t>(failure->code) |
                                   static_cast<std::uint64_t>(failure->argument) << 8 |
                                   static_cast<std::uint64_t>(static_cast<std::uint32_t>(failure->culprit)) << 32,
                               std::memory_order_release);
    record.sequence.store(tag.sequence, std::memory_order_seq_cst);
  }
  board.left.store(tag.sequence, std::memory_order_seq_cst);
  if (failure) ring_peers();
}

void ShmTransport::publish_device_calls(std::uint64_t calls) {
  segments_[rank_].board().device_calls.store(calls, std::memory_order_release);
}

PeerStatus ShmTransport::peer_status(std::uint32_t peer) {
  const Board& board = segments_.at(peer).board();
  PeerStatus status;
  // `life` must be read first: a peer that leaves properly stores the end of its last call before it stores kLeft. So
  // if this rank sees kLeft, it also sees that the peer has left its last call.
  status.life = life_on(board);
  status.left = board.left.load(std::memory_order_seq_cst);
  status.entered = board.entered.load(std::memory_order_seq_cst);
  status.device_calls = board.device_calls.load(std::memory_order_acquire);
  if (peer != rank_ && status.life == PeerLife::kLive && exchange_->peer_gone(peer)) {
    // Reads `life` and `left` again, because the peer may have left properly, or finished the call, before it exited.
    status.life = life_on(board);
    status.left = board.left.load(std::memory_order_seq_cst);
    if (status.life == PeerLife::kLive) status.life = PeerLife::kLost;
  }
  return status;
}

std::optional<CallTag> ShmTransport::peer_call(std::uint32_t peer, std::uint64_t sequence) {
  const AtomicTag& record = segments_.at(peer).board().calls[sequence % kCallRecords];
  const CallTag tag = record.load();
  // The owner may have changed the record during load(). So the record is read again, and the tag is valid only if
  // both reads are equal.
  if (record.sequence.load(std::memory_order_seq_cst) != sequence || tag.sequence != sequence || sequence == 0)
    return std::nullopt;
  const CallTag again = record.load();
  return again == tag ? std::optional(tag) : std::nullopt;
}

std::optional<CallFailure> ShmTransport::peer_failure(std::uint32_t peer, std::uint64_t sequence) {
  const FailureRecord& record = segments_.at(peer).board().failures[sequence % kFailureRecords];
  if (record.sequence.load(std::memory_order_seq_cst) != sequence || sequence == 0) return std::nullopt;
  const std::uint64_t packed_fields = record.packed_fields.load(std::memory_order_acquire);
  if (record.sequence.load(std::memory_order_acquire) != sequence) return std::nullopt;
  const std::uint64_t code = packed_fields & 0xff;
  const std::uint64_t argument = packed_fields >> 8 & 0xff;
  // A correct rank never writes such values, so only the fact that the call failed is reported.
  if (code > static_cast<std::uint64_t>(kLastErrorCode) || argument > static_cast<std::uint64_t>(kLastCallArgument)) {
    return CallFailure{.code = ErrorCode::kRefused};
  }
  return CallFailure{.code = static_cast<ErrorCode>(code),
                     .culprit = static_cast<std::int32_t>(static_cast<std::uint32_t>(packed_fields >> 32)),
                     .argument = static_cast<CallArgument>(argument)};
}

bool ShmTransport::peer_has_left(std::uint32_t peer, std::uint64_t sequence) {
  return segments_[peer].board().left.load(std::memory_order_seq_cst) >= sequence;
}

std::optional<std::byte*> ShmTransport::peer_output(std::uint32_t peer, std::uint64_t sequence, std::uint64_t bytes) {
  PeerOutput& known = outputs_.at(peer);
  if (known.sequence == sequence) {
    // The offer is checked again whenever this function is called, so before every store into the output: if the peer
    // has given the call up, its memory belongs to its user again.
    if (known.data != nullptr && segments_[peer].board().output_window.load(std::memory_order_seq_cst) == 0) {
      known.data = nullptr;
    }
    return known.data;
  }
  const Board& board = segments_[peer].board();
  const std::uint64_t entered = board.entered.load(std::memory_order_seq_cst);
  if (entered < sequence) return std::nullopt;
  // If this rank offers no output, it has entered the call by a store without seq_cst. Its peers must see that store
  // before this rank reads their offers, see leave_call(). So the store is repeated here with seq_cst.
  std::atomic<std::uint64_t>& own_entered = segments_[rank_].board().entered;
  own_entered.store(own_entered.load(std::memory_order_relaxed), std::memory_order_seq_cst);
  const auto window = static_cast<std::uint32_t>(board.output_window.load(std::memory_order_seq_cst));
  const std::uint64_t offset = board.output_offset.load(std::memory_order_acquire);
  std::shared_ptr<Mapping> mapping;
  if (entered == sequence && window != 0) {
    mapping = exchange_->find(peer, window);
    // If the mapping can still arrive, the result is empty, and the caller asks again. If the mapping is lost, the
    // result is null, so this call sends in another way. The next call tries again, unless the memory is part of a
    // shared heap, which is not offered any more after a loss.
    if (mapping == nullptr && !take_memory_loss(peer, window)) return std::nullopt;
    if (mapping != nullptr && (offset > mapping->size() || bytes > mapping->size() - offset)) {
      mapping = nullptr;  // a correct peer does not offer such a range
    }
  }
  // If `changing` has another value, the peer offers no output for this call, or it has entered a later call since. In
  // the second case the output that was read may be that of the later call. The peer has then given this call up, and
  // the call of this rank fails as well.
  if (board.changing.load(std::memory_order_seq_cst) != sequence) mapping = nullptr;
  known = {.sequence = sequence, .data = mapping == nullptr ? nullptr : mapping->data() + offset, .mapping = mapping};
  return known.data;
}

std::optional<std::byte*> ShmTransport::peer_memory(std::uint32_t peer, std::size_t which, const WindowRef& place,
                                                    std::uint64_t bytes) {
  PeerWindow& known = windows_of_.at(peer).at(which);
  if (known.id != place.window || known.mapping == nullptr) {
    known = {.id = place.window, .mapping = exchange_->find(peer, place.window)};
    if (known.mapping == nullptr) return std::nullopt;
  }
  const std::size_t size = known.mapping->size();
  if (place.offset > size || bytes > size - place.offset) return nullptr;
  return known.mapping->data() + place.offset;
}

Attachment ShmTransport::find_attachment() const {
  Attachment found = Attachment::kPointers;
  for (std::uint32_t peer = 0; peer < shape_.ranks; ++peer) {
    if (!can_attach(processes_[peer], segments_[peer].header())) return Attachment::kNone;
    if (processes_[peer] != process_) found = Attachment::kLongCalls;
  }
  return found;
}

MemoryAccess ShmTransport::read_memory(std::uint32_t peer, std::uint64_t address, std::byte* to, std::size_t bytes) {
  if (exchange_->peer_gone(peer)) return MemoryAccess::kGone;
  return read_process(processes_[peer], address, to, bytes);
}

MemoryAccess ShmTransport::write_memory(std::uint32_t peer, std::uint64_t address, const std::byte* from,
                                        std::size_t bytes) {
  if (exchange_->peer_gone(peer)) return MemoryAccess::kGone;
  return write_process(processes_[peer], address, from, bytes);
}

WindowRef ShmTransport::find_window(const void* data, std::size_t bytes) {
  const auto* const start = static_cast<const std::byte*>(data);
  if (heap_ != nullptr && heap_refusals().load(std::memory_order_relaxed) != 0) {
    HeapSegment segment{};
    if (heap_->find(start, bytes, segment)) return {};
  }
  const WindowRef registered = windows_->find(start, bytes);
  return registered.window != 0 || heap_ == nullptr ? registered : find_in_heap(start, bytes);
}

// Makes a segment of the shared heap a window when a call uses it for the first time.
WindowRef ShmTransport::find_in_heap(const std::byte* data, std::size_t bytes) {
  HeapSegment segment{};
  if (!heap_->find(data, bytes, segment)) return {};
  const std::scoped_lock lock(heap_mutex_);
  const WindowRef known = windows_->find(data, bytes);  // another thread may have made the window meanwhile
  if (known.window != 0) return known;
  const int fd = heap_->open_segment(segment.number);
  if (fd < 0) return {};  // the memory is then used like any other that is not registered
  heap_windows_.push_back(std::make_unique<ShmWindow>(windows_, Mapping::lend(fd, segment.start, segment.bytes)));
  return windows_->find(data, bytes);
}

Result<std::unique_ptr<Window>> ShmTransport::allocate_window(std::size_t bytes) {
  auto mapping = Mapping::create(bytes, true);
  if (!mapping) return mapping.error();
  return std::unique_ptr<Window>(std::make_unique<ShmWindow>(windows_, std::move(*mapping)));
}

Result<std::unique_ptr<Window>> ShmTransport::adopt_window(void* data, std::size_t bytes) {
  HeapSegment segment{};
  if (heap_ != nullptr && heap_->find(data, bytes, segment)) {
    return std::unique_ptr<Window>(std::make_unique<HeapBlock>(static_cast<std::byte*>(data), bytes));
  }
  if (windows_->overlaps(static_cast<const std::byte*>(data), bytes)) {
    return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1,
                 fmt::format("{} bytes at {} overlap memory that is registered already", bytes, data)};
  }
  auto mapping = Mapping::adopt(data, bytes);
  if (!mapping) return mapping.error();
  return std::unique_ptr<Window>(std::make_unique<ShmWindow>(windows_, std::move(*mapping)));
}

}  // namespace tutti

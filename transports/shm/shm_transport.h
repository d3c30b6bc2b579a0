// ShmTransport: connections between the ranks of one machine through shared memory. segment.h describes the memory
// and its writers.
//
// Thread-safety: see transport.h. If a peer writes invalid sizes, windows or offsets into descriptors or its status
// board, it cannot make this rank access other memory, because this rank checks these values before it uses them.
//
// ShmTransport has more than 40 methods and members, because most of the methods implement the interface Transport.
// Most of the work is done by Segment, SegmentExchange, WindowTable and the connections.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "transports/shm/doorbell.h"
#include "transports/shm/exchange.h"
#include "transports/shm/segment.h"
#include "transports/shm/shared_heap.h"
#include "transports/transport.h"

namespace tutti {

// The registered windows of one rank in one communicator. It outlives the transport as long as a Window exists.
// Thread-safe.
class WindowTable {
 public:
  explicit WindowTable(std::shared_ptr<SegmentExchange> exchange) : exchange_(std::move(exchange)) {}
  std::uint32_t insert(const std::shared_ptr<Mapping>& mapping);
  void erase(std::uint32_t id);
  WindowRef find(const std::byte* data, std::size_t bytes) const;
  const std::byte* address(const WindowRef& place, std::size_t bytes) const;
  // The whole memory of the window with the number `window`. Empty if there is no such window, or if it is a segment of
  // the shared heap, in which most memory does not belong to the call.
  std::span<const std::byte> memory(std::uint32_t window) const;
  bool overlaps(const std::byte* data, std::size_t bytes) const;

 private:
  struct RegisteredWindow {
    std::uint32_t id;
    std::size_t bytes;
    bool lent;  // a segment of the shared heap
  };
  mutable std::mutex mutex_;
  std::map<const std::byte*, RegisteredWindow> windows_;  // indexed by start address; windows do not overlap
  std::map<std::uint32_t, const std::byte*> addresses_;   // start addresses, indexed by window number
  std::shared_ptr<SegmentExchange> exchange_;             // shared with the transport, which may be destroyed first
};

// This rank's own segment, offered to the ranks of its communicator on this machine. create() is the first step of the
// set-up of a ShmTransport. The next steps are to send id() to the other ranks, to call collect_offers(), and to call
// ShmTransport::create().
class OwnSegment {
 public:
  static Result<OwnSegment> create(std::uint32_t rank, const SegmentShape& shape,
                                   const std::shared_ptr<SegmentExchange>& exchange);
  const Segment& segment() const { return segment_; }
  std::uint32_t id() const { return share_->id(); }
  // The segment is offered as long as a copy of this pointer exists. If set-up fails on this rank, the caller keeps
  // the pointer until the other ranks have been informed of the failure. Otherwise they could wait for the segment
  // until their deadline.
  std::shared_ptr<const Share> offer() const { return share_; }

 private:
  OwnSegment(Segment segment, std::shared_ptr<const Share> share)
      : segment_(std::move(segment)), share_(std::move(share)) {}

  Segment segment_;
  std::shared_ptr<const Share> share_;
};

class ShmTransport final : public Transport {
 public:
  // `offers`: the segments of all ranks, indexed by rank. `exchange` must number its peers like the ranks. Errors:
  // kRefused and kMismatch, both with the rank of the unusable segment.
  static Result<std::unique_ptr<ShmTransport>> create(std::uint32_t rank, const SegmentShape& shape, OwnSegment own,
                                                      const std::vector<Offer>& offers,
                                                      const std::shared_ptr<SegmentExchange>& exchange);
  ~ShmTransport() override;

  std::string_view name() const override { return "shm"; }
  std::uint32_t slots() const override { return shape_.slots; }
  std::uint64_t slot_bytes() const override { return shape_.slot_bytes; }
  std::uint32_t lanes() const override { return kMaxLanes; }
  Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) override;
  Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) override;
  Doorbell& doorbell() override { return doorbell_; }
  void enter_call(const CallTag& tag, const WindowRef& output) override;
  void leave_call(const CallTag& tag, const std::optional<CallFailure>& failure) override;
  void publish_device_calls(std::uint64_t calls) override;
  PeerStatus peer_status(std::uint32_t peer) override;
  std::optional<CallTag> peer_call(std::uint32_t peer, std::uint64_t sequence) override;
  std::optional<CallFailure> peer_failure(std::uint32_t peer, std::uint64_t sequence) override;
  bool peer_has_left(std::uint32_t peer, std::uint64_t sequence) override;
  std::optional<std::byte*> peer_output(std::uint32_t peer, std::uint64_t sequence, std::uint64_t bytes) override;
  WindowRef find_window(const void* data, std::size_t bytes) override;
  Result<std::unique_ptr<Window>> allocate_window(std::size_t bytes) override;
  Result<std::unique_ptr<Window>> adopt_window(void* data, std::size_t bytes) override;
  const ShmMailboxes* mailboxes() const override { return &mailboxes_; }
  void ring_sleepers(std::uint32_t rank) override;
  void await_mailbox(std::uint32_t rank) override;
  std::optional<std::byte*> peer_memory(std::uint32_t peer, std::size_t which, const WindowRef& place,
                                        std::uint64_t bytes) override;
  std::optional<MemoryLoss> take_memory_loss(std::uint32_t peer, std::uint32_t window) override {
    auto loss = exchange_->take_loss(peer, window);
    // From now on no rank offers memory of its heap. Other registered memory is offered again in the next call.
    if (loss) refuse_heaps();
    return loss;
  }
  void pump() override { exchange_->pump(); }
  void announce_leave() override;
  void announce_abort() override { set_life(PeerLife::kAborted); }

  Attachment attachment() const override { return attachment_; }
  MemoryAccess read_memory(std::uint32_t peer, std::uint64_t address, std::byte* to, std::size_t bytes) override;
  MemoryAccess write_memory(std::uint32_t peer, std::uint64_t address, const std::byte* from,
                            std::size_t bytes) override;

  // For set-up. find_attachment() returns kNone if this rank cannot attach to the processes of all ranks (see
  // can_attach()), otherwise kPointers if all ranks are threads of this process, and otherwise kLongCalls.
  // set_attachment() sets the value on which all ranks have agreed.
  Attachment find_attachment() const;
  void set_attachment(Attachment agreed) { attachment_ = agreed; }

  // Creates the doorbell for a rank that sleeps on file descriptors instead of in doorbell(). Only one of the two
  // doorbells may be armed at a time, and only one DescriptorDoorbell may exist for a transport.
  Result<std::unique_ptr<DescriptorDoorbell>> create_descriptor_doorbell();
  // The address of `place` in a window of this rank. Null if there is no such window, or if fewer than `bytes` bytes
  // follow in it. Thread-safe.
  const std::byte* window_address(const WindowRef& place, std::size_t bytes) const;
  std::span<const std::byte> window_memory(const WindowRef& place) const;  // see WindowTable::memory()

 private:
  // For one peer: the last result of peer_output() that was not empty, and the `sequence` of that call. `mapping` keeps
  // the memory mapped until there is such a result for another sequence number.
  struct PeerOutput {
    std::uint64_t sequence = 0;
    std::byte* data = nullptr;
    std::shared_ptr<Mapping> mapping;
  };
  ShmTransport(std::uint32_t rank, const SegmentShape& shape, OwnSegment own,
               const std::shared_ptr<SegmentExchange>& exchange);
  Ringer ringer(std::uint32_t peer) const { return {segments_[peer], segment_ids_[peer], peer, exchange_}; }
  void set_life(PeerLife life);
  void ring_peers();
  WindowRef find_in_heap(const std::byte* data, std::size_t bytes);
  std::atomic<std::uint32_t>& heap_refusals() const { return segments_.front().common_counters().heap_refusals; }
  void refuse_heaps() { heap_refusals().store(1, std::memory_order_relaxed); }

  pid_t process_;  // process of the rank; a forked child that destroys its copy must not change the state of the rank
  std::uint32_t rank_;
  SegmentShape shape_;
  OwnSegment own_;
  std::vector<Segment> segments_;           // indexed by rank
  std::vector<std::uint32_t> segment_ids_;  // indexed by rank; the numbers under which the owners share their segments
  ShmMailboxes mailboxes_;
  struct PeerWindow {
    std::uint32_t id = 0;
    std::shared_ptr<Mapping> mapping;  // kept until peer_memory() is called for another window with the same `which`
  };
  // Indexed by rank, and then by the argument `which` of peer_memory().
  std::vector<std::array<PeerWindow, 2>> windows_of_;
  std::vector<Ringer> peers_;  // the doorbells of all ranks except this one
  Attachment attachment_ = Attachment::kNone;
  std::vector<pid_t> processes_;               // process numbers, indexed by rank; 0: not visible to this process
  bool offers_ = false;                        // this rank offers an output in its current call
  std::vector<PeerOutput> outputs_;            // indexed by rank
  std::shared_ptr<SegmentExchange> exchange_;  // shared with the windows, which may outlive the transport
  std::shared_ptr<WindowTable> windows_;       // shared with the windows, too
  const HeapInterface* const heap_ = find_shared_heap();  // null if this process has none
  // heap_mutex_ guards heap_windows_: one window for each segment of the shared heap from which a call has used memory.
  // They exist as long as the transport.
  std::mutex heap_mutex_;
  std::vector<std::unique_ptr<Window>> heap_windows_;
  FutexDoorbell doorbell_;
};

}  // namespace tutti

// The two ends of a shared-memory connection. A connection is a ring of descriptors and slots in the segment of the
// receiver, see segment.h. Each end belongs to the thread that drives the progress of its rank.
#pragma once

#include <memory>

#include "transports/shm/doorbell.h"
#include "transports/shm/exchange.h"
#include "transports/shm/segment.h"
#include "transports/transport.h"

namespace tutti {

class ShmSendConnection final : public SendConnection {
 public:
  // `receiver` is the segment of the peer, and `ringer` rings the doorbell of the peer. `sender` is this rank.
  ShmSendConnection(Segment receiver, Ringer ringer, const SegmentShape& shape, std::uint32_t sender,
                    std::uint16_t lane);
  bool ready() override;
  std::byte* slot() override;
  void send_slot(std::uint64_t bytes, const CallTag& tag) override;
  void send_published(const WindowRef& place, std::uint64_t bytes, const CallTag& tag) override;
  void send_delivered(std::uint64_t bytes, const CallTag& tag) override;
  bool can_reply() const override { return true; }
  void send_reply(const Message& over, const CallTag& tag) override;
  bool drained() override;
  bool handed_over() override { return true; }  // sent messages are already in shared memory

 private:
  void post(Carrier carrier, const WindowRef& place, std::uint64_t bytes, const CallTag& tag);

  Segment segment_;
  SegmentShape shape_;
  Inbox inbox_;
  Ringer ringer_;
  std::uint64_t sent_ = 0;
  // The number of messages that the receiver had released when this rank read the counter last.
  std::uint64_t consumed_ = 0;
};

class ShmReceiveConnection final : public ReceiveConnection {
 public:
  // `receiver` is the segment of this rank, which contains the inbox. `sender` is the segment of the peer, which
  // contains the slots of the connection in the opposite direction, for replies. `ringer` rings the doorbell of the
  // peer.
  ShmReceiveConnection(Segment receiver, Segment sender, Ringer ringer, const SegmentShape& shape, std::uint32_t rank,
                       std::uint32_t peer, std::uint16_t lane, std::shared_ptr<SegmentExchange> exchange);
  Arrival arrival(const CallTag& call, std::span<std::byte> place) override;
  CallTag mismatched_tag() const override { return mismatched_; }
  MemoryLoss loss() const override { return loss_; }
  Message front() override { return front_; }
  void release() override;

 private:
  Arrival look(Descriptor& descriptor);

  Segment segment_;
  SegmentShape shape_;
  std::uint32_t peer_;
  Inbox inbox_;
  Segment sender_;
  std::byte* reply_slots_;                     // the slots of the connection to the peer, in the segment of the peer
  Ringer ringer_;                              // rings the sender, which may wait for a credit
  std::shared_ptr<SegmentExchange> exchange_;  // shared with the transport
  std::uint64_t received_ = 0;
  CallTag front_tag_;  // the tag of message number `received_` if front_ describes it; otherwise its sequence is 0
  Message front_;
  CallTag mismatched_;
  MemoryLoss loss_;
  // Sequence number of the call for which arrival() has returned kUnmapped because of loss_, or 0. arrival() returns
  // kUnmapped for that call again, because SegmentExchange::take_loss() reports a loss only once.
  std::uint64_t unmapped_call_ = 0;
  std::uint32_t window_id_ = 0;  // number of the window of the peer that was looked up last; 0: none
  // The mapping of window `window_id_`, or null. Kept until a message in another window arrives, because the peer may
  // withdraw the window before this rank has read the message.
  std::shared_ptr<Mapping> window_;
};

}  // namespace tutti

// The two ends of a shared-memory connection: a ring of descriptors and slots in the receiver's segment, see segment.h.
// Each end belongs to the thread that drives its rank's progress.
#pragma once

#include <memory>

#include "transports/shm/bell.h"
#include "transports/shm/exchange.h"
#include "transports/shm/segment.h"
#include "transports/transport.h"

namespace tutti {

class ShmSendConnection final : public SendConnection {
 public:
  // `receiver` is the peer's segment and `ringer` rings its bell; `sender` is this rank.
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
  bool handed_over() override { return true; }  // it is in shared memory

 private:
  void post(Carrier carrier, const WindowRef& place, std::uint64_t bytes, const CallTag& tag);

  Segment segment_;
  SegmentShape shape_;
  Inbox inbox_;
  Ringer ringer_;
  std::uint64_t sent_ = 0;
  std::uint64_t consumed_ = 0;  // as last seen
};

class ShmReceiveConnection final : public ReceiveConnection {
 public:
  // `receiver` is this rank's own segment, `sender` the peer's, where slots of the way back lie; `ringer` rings the
  // sender's bell.
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
  std::byte* way_back_;                        // the slots of the connection to the peer, in its segment
  Ringer ringer_;                              // of the sender, which may wait for a credit
  std::shared_ptr<SegmentExchange> exchange_;  // shared with the transport
  std::uint64_t received_ = 0;
  std::uint64_t looked_at_ = 0;  // the call as whose message front_ describes message `received_`; 0: none
  Message front_;
  CallTag mismatched_;
  MemoryLoss loss_;
  // Number of the call that failed because of loss_, or 0: arrival() says kUnmapped for it again, since take_loss()
  // reports once.
  std::uint64_t lost_at_ = 0;
  std::uint32_t window_id_ = 0;      // the window that `window_` maps
  std::shared_ptr<Mapping> window_;  // kept while its messages come: the peer may take it back meanwhile
};

}  // namespace tutti

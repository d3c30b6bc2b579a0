// UcxSendConnection and UcxReceiveConnection: the sending end and the receiving end of one connection over UCX. Both
// are thin wrappers of a UcxLane that apply the rules of transport.h. Use them in the thread that drives progress.
#pragma once

#include <memory>
#include <span>

#include "transports/transport.h"
#include "transports/ucx/worker.h"

namespace tutti {

class UcxSendConnection final : public SendConnection {
 public:
  UcxSendConnection(std::shared_ptr<UcxWorker> worker, UcxLane& lane) : worker_(std::move(worker)), lane_(lane) {}
  bool ready() override { return worker_->ready(lane_); }
  std::byte* slot() override { return worker_->sender().slot(lane_); }
  void send_slot(std::uint64_t bytes, const CallTag& tag) override { worker_->sender().send(lane_, bytes, tag); }
  bool lingers() const override { return true; }
  void send_published(const WindowRef& place, std::uint64_t bytes, const CallTag& tag) override;
  void send_delivered(std::uint64_t bytes, const CallTag& tag) override;
  bool drained() override { return worker_->delivered(lane_); }
  bool handed_over() override { return worker_->handed_over(lane_); }

 private:
  std::shared_ptr<UcxWorker> worker_;  // shared with the UcxPath, which may be destroyed first
  UcxLane& lane_;                      // belongs to the worker
};

class UcxReceiveConnection final : public ReceiveConnection {
 public:
  UcxReceiveConnection(std::shared_ptr<UcxWorker> worker, UcxLane& lane) : worker_(std::move(worker)), lane_(lane) {}
  Arrival arrival(const CallTag& call, std::span<std::byte> place) override;
  bool may_bring_more() override;
  CallTag mismatched_tag() const override { return mismatched_; }
  Message front() override;
  void release() override;

 private:
  std::shared_ptr<UcxWorker> worker_;  // shared with the UcxPath, which may be destroyed first
  UcxLane& lane_;                      // belongs to the worker
  CallTag mismatched_;
  // Sequence number of the call of the message that was seen last. If the lane is below kPointToPointLane, that call
  // was recorded with note_call().
  std::uint64_t noted_ = 0;
  std::int64_t more_asked_ns_ = 0;  // time of the first call of may_bring_more() on a working lane; 0: none yet
};

}  // namespace tutti

// VerbsSendConnection and VerbsReceiveConnection: the sending end and the receiving end of one connection over
// InfiniBand verbs. Both are thin wrappers of a VerbsLane that apply the rules of transport.h, for example that
// messages of earlier calls are dropped. Use them in the thread that drives progress.
#pragma once

#include <memory>

#include "transports/tcp/links.h"
#include "transports/transport.h"
#include "transports/verbs/lane.h"

namespace tutti {

class VerbsSendConnection final : public SendConnection {
 public:
  explicit VerbsSendConnection(std::shared_ptr<VerbsLane> lane) : lane_(std::move(lane)) {}
  bool ready() override { return lane_->ready(); }
  std::byte* slot() override { return lane_->sender().slot(); }
  void send_slot(std::uint64_t bytes, const CallTag& tag) override { lane_->sender().send(bytes, tag); }
  void send_pinned(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                   const CallTag& tag) override {
    lane_->sender().send_pinned(whole, data, bytes, tag);
  }
  std::uint64_t min_aimed_bytes() const override { return kVerbsMinDirectBytes; }
  bool aim(const CallTag& call, std::uint64_t output_bytes, std::uint64_t offset) override {
    return lane_->sender().aim(call, output_bytes, offset);
  }
  std::uint64_t send_aimed(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                           const CallTag& tag) override {
    return lane_->sender().send_aimed(whole, data, bytes, tag);
  }
  void send_published(const WindowRef& place, std::uint64_t bytes, const CallTag& tag) override;
  void send_delivered(std::uint64_t bytes, const CallTag& tag) override;
  bool pins_done() override { return handed_over(); }
  void drop_pins() override {
    if (!pins_done()) lane_->drop_pins();
  }
  bool drained() override { return handed_over(); }
  // The NIC sends without help from this process. Only data that it reads directly from the memory of the user must
  // be waited for, because the user may change that memory afterwards.
  bool handed_over() override { return lane_->pairs().pins_done() || (lane_->pump(), lane_->pairs().pins_done()); }

 private:
  std::shared_ptr<VerbsLane> lane_;  // shared by the connections of both directions and by the VerbsPath
};

class VerbsReceiveConnection final : public ReceiveConnection {
 public:
  // `links` must exist whenever a function is called, but may be destroyed before this object.
  VerbsReceiveConnection(std::shared_ptr<VerbsLane> lane, TcpLinks& links, std::uint32_t peer, std::uint16_t number)
      : lane_(std::move(lane)), links_(links), peer_(peer), number_(number) {}
  Arrival arrival(const CallTag& call, std::span<std::byte> place) override;
  std::uint64_t min_aimed_bytes() const override {
    return lane_->options().advertises_outputs ? kVerbsMinDirectBytes : ReceiveConnection::min_aimed_bytes();
  }
  bool advertise_output(const CallTag& call, std::span<std::byte> output) override {
    return lane_->outputs().advertise(call, output);
  }
  bool revoke_output() override { return lane_->outputs().revoke(); }
  void withdraw_output(bool gave_up) override { lane_->outputs().withdraw(gave_up); }
  CallTag mismatched_tag() const override { return mismatched_; }
  Message front() override;
  void release() override { lane_->receiver().release(); }

 private:
  std::shared_ptr<VerbsLane> lane_;  // shared like VerbsSendConnection::lane_
  TcpLinks& links_;
  const std::uint32_t peer_;
  const std::uint16_t number_;
  // Sequence number of the call of the message that was seen last. Unless the lane is kPointToPointLane, that call
  // was recorded in `links_`.
  std::uint64_t noted_ = 0;
  CallTag mismatched_;
};

}  // namespace tutti

// The two ends of a connection by verbs: a VerbsLane's sending and receiving side, with the rules of transport.h about
// calls. Belong to the thread that drives progress.
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
  std::byte* slot() override { return lane_->slot(); }
  void send_slot(std::uint64_t bytes, const CallTag& tag) override { lane_->send(bytes, tag); }
  void send_pinned(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                   const CallTag& tag) override {
    lane_->send_pinned(whole, data, bytes, tag);
  }
  std::uint64_t least_aimed() const override { return kVerbsLeastAimed; }
  bool aim(const CallTag& call, std::uint64_t output_bytes, std::uint64_t offset) override {
    return lane_->aim(call, output_bytes, offset);
  }
  std::uint64_t send_aimed(std::span<const std::byte> whole, const std::byte* data, std::uint64_t bytes,
                           const CallTag& tag) override {
    return lane_->send_aimed(whole, data, bytes, tag);
  }
  void send_published(const WindowRef& place, std::uint64_t bytes, const CallTag& tag) override;
  void send_delivered(std::uint64_t bytes, const CallTag& tag) override;
  bool drained() override { return handed_over(); }
  // The card sends by itself; only what it reads from memory that is not ours has to be waited for.
  bool handed_over() override { return lane_->pins_done() || (lane_->pump(), lane_->pins_done()); }

 private:
  std::shared_ptr<VerbsLane> lane_;  // shared by the two directions and the path
};

class VerbsReceiveConnection final : public ReceiveConnection {
 public:
  // `links` outlives every use but the destruction.
  VerbsReceiveConnection(std::shared_ptr<VerbsLane> lane, TcpLinks& links, std::uint32_t peer, std::uint16_t number)
      : lane_(std::move(lane)), links_(links), peer_(peer), number_(number) {}
  Arrival arrival(const CallTag& call, std::span<std::byte> place) override;
  std::uint64_t least_aimed() const override {
    return lane_->options().shows_outputs ? kVerbsLeastAimed : ReceiveConnection::least_aimed();
  }
  bool show_output(const CallTag& call, std::span<std::byte> output) override {
    return lane_->show_output(call, output);
  }
  bool recall_output() override { return lane_->recall_output(); }
  void hide_output(bool gave_up) override { lane_->hide_output(gave_up); }
  CallTag mismatched_tag() const override { return mismatched_; }
  Message front() override;
  void release() override { lane_->release(); }

 private:
  std::shared_ptr<VerbsLane> lane_;  // as above
  TcpLinks& links_;
  const std::uint32_t peer_;
  const std::uint16_t number_;
  std::uint64_t noted_ = 0;  // the call that the board was told of last
  CallTag mismatched_;
};

}  // namespace tutti

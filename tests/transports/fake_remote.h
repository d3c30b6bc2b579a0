// FakeRemote: a transport between simulated machines, which are threads of one process. It consists of message
// queues under one lock, and of a doorbell that sleeps in epoll. It has no windows and can send from any memory, as
// a socket transport can.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "test_doorbell.h"
#include "transports/transport.h"

namespace tutti {

// The network between the simulated machines, shared by all ranks.
struct FakeNet {
  // A message that has been sent and not yet received.
  struct Packet {
    std::vector<std::byte> bytes;
    CallTag tag;
  };
  // The published state of one rank, which its peers read.
  struct Board {
    PeerStatus status;
    CallTag entered;
    std::optional<CallFailure> failure;  // the failure of call status.left, if it failed
  };
  static constexpr std::uint32_t kSlots = 3;
  static constexpr std::uint64_t kSlotBytes = 4096;
  static constexpr std::uint32_t kLanes = 2;

  FakeNet(std::uint32_t ranks, Trigger trigger) : boards(ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) doorbells.push_back(std::make_unique<TestDoorbell>(trigger));
  }

  std::mutex mutex;  // guards all members except `doorbells`
  // Indexed by sender, receiver and lane.
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint16_t>, std::deque<Packet>> queues;
  std::vector<Board> boards;
  std::vector<std::unique_ptr<TestDoorbell>> doorbells;
  std::uint64_t carried = 0;  // messages sent so far
};

class FakeSend final : public SendConnection {
 public:
  FakeSend(FakeNet& net, std::uint32_t from, std::uint32_t to, std::uint16_t lane)
      : net_(net), queue_(net.queues[{from, to, lane}]), to_(to), slot_(FakeNet::kSlotBytes) {}
  bool ready() override {
    const std::scoped_lock lock(net_.mutex);
    return queue_.size() < FakeNet::kSlots;
  }
  std::byte* slot() override { return slot_.data(); }
  void send_slot(std::uint64_t bytes, const CallTag& tag) override { send_from(slot_.data(), bytes, tag); }
  bool sends_from_memory() const override { return true; }
  void send_from(const std::byte* data, std::uint64_t bytes, const CallTag& tag) override {
    {
      const std::scoped_lock lock(net_.mutex);
      queue_.push_back({std::vector<std::byte>(data, data + bytes), tag});
      ++net_.carried;
    }
    net_.doorbells[to_]->ring();
  }
  void send_published(const WindowRef&, std::uint64_t, const CallTag&) override {
    ADD_FAILURE() << "this transport has no windows";
  }
  void send_delivered(std::uint64_t, const CallTag&) override { ADD_FAILURE() << "this transport has no windows"; }
  bool handed_over() override { return true; }
  bool drained() override {
    const std::scoped_lock lock(net_.mutex);
    return queue_.empty();
  }

 private:
  FakeNet& net_;
  std::deque<FakeNet::Packet>& queue_;
  std::uint32_t to_;
  std::vector<std::byte> slot_;
};

class FakeReceive final : public ReceiveConnection {
 public:
  FakeReceive(FakeNet& net, std::uint32_t from, std::uint32_t to, std::uint16_t lane)
      : net_(net), queue_(net.queues[{from, to, lane}]), from_(from) {}
  Arrival arrival(const CallTag& call, std::span<std::byte>) override {
    const std::scoped_lock lock(net_.mutex);
    while (!queue_.empty() && queue_.front().tag.sequence < call.sequence) queue_.pop_front();
    if (queue_.empty() || queue_.front().tag.sequence > call.sequence) return Arrival::kNothing;
    return queue_.front().tag == call ? Arrival::kMessage : Arrival::kMismatch;
  }
  CallTag mismatched_tag() const override { return queue_.front().tag; }
  Message front() override {
    const std::scoped_lock lock(net_.mutex);
    const std::vector<std::byte>& bytes = queue_.front().bytes;
    return {.carrier = Carrier::kSlot, .data = bytes.data(), .bytes = bytes.size()};
  }
  void release() override {
    {
      const std::scoped_lock lock(net_.mutex);
      queue_.pop_front();
    }
    net_.doorbells[from_]->ring();
  }

 private:
  FakeNet& net_;
  std::deque<FakeNet::Packet>& queue_;
  std::uint32_t from_;
};

class FakeRemote final : public Transport {
 public:
  FakeRemote(std::shared_ptr<FakeNet> net, std::uint32_t rank) : net_(std::move(net)), rank_(rank) {}
  std::string_view name() const override { return "fake"; }
  std::uint32_t slots() const override { return FakeNet::kSlots; }
  std::uint64_t slot_bytes() const override { return FakeNet::kSlotBytes; }
  std::uint32_t lanes() const override { return FakeNet::kLanes; }
  Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) override {
    const std::scoped_lock lock(net_->mutex);
    return std::unique_ptr<SendConnection>(std::make_unique<FakeSend>(*net_, rank_, peer, lane));
  }
  Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) override {
    const std::scoped_lock lock(net_->mutex);
    return std::unique_ptr<ReceiveConnection>(std::make_unique<FakeReceive>(*net_, peer, rank_, lane));
  }
  Doorbell& doorbell() override { return poll_doorbell(); }
  PollDoorbell& poll_doorbell() { return *net_->doorbells[rank_]; }
  void enter_call(const CallTag& tag, const WindowRef& output) override {
    EXPECT_EQ(output, WindowRef{}) << "peers cannot store to an output through this transport";
    const std::scoped_lock lock(net_->mutex);
    board().entered = tag;
    board().status.entered = tag.sequence;
  }
  void leave_call(const CallTag& tag, const std::optional<CallFailure>& failure) override {
    const std::scoped_lock lock(net_->mutex);
    board().failure = failure;
    board().status.left = tag.sequence;
  }
  PeerStatus peer_status(std::uint32_t peer) override {
    const std::scoped_lock lock(net_->mutex);
    return net_->boards[peer].status;
  }
  std::optional<CallTag> peer_call(std::uint32_t peer, std::uint64_t sequence) override {
    const std::scoped_lock lock(net_->mutex);
    const CallTag& entered = net_->boards[peer].entered;
    return entered.sequence == sequence ? std::optional(entered) : std::nullopt;
  }
  std::optional<CallFailure> peer_failure(std::uint32_t peer, std::uint64_t sequence) override {
    const std::scoped_lock lock(net_->mutex);
    const FakeNet::Board& board = net_->boards[peer];
    return board.status.left == sequence ? board.failure : std::nullopt;
  }
  bool peer_has_left(std::uint32_t peer, std::uint64_t sequence) override { return peer_status(peer).left >= sequence; }
  std::optional<std::byte*> peer_output(std::uint32_t, std::uint64_t, std::uint64_t) override { return nullptr; }
  WindowRef find_window(const void*, std::size_t) override { return {}; }
  Result<std::unique_ptr<Window>> allocate_window(std::size_t) override { return no_windows(); }
  Result<std::unique_ptr<Window>> adopt_window(void*, std::size_t) override { return no_windows(); }
  MemoryReleaseCallback memory_release_callback() override { return release_callback; }
  void pump() override { ++pumps; }
  bool flush() override { return flushed; }
  void announce_leave() override {
    const std::scoped_lock lock(net_->mutex);
    board().status.life = PeerLife::kLeft;
  }
  void announce_abort() override {
    const std::scoped_lock lock(net_->mutex);
    board().status.life = PeerLife::kAborted;
  }

  int pumps = 0;
  bool flushed = true;
  MemoryReleaseCallback release_callback;  // empty: this transport caches nothing

 private:
  static Error no_windows() { return {ErrorCode::kUnsupported, ErrorScope::kCall, -1, "has no windows"}; }
  FakeNet::Board& board() { return net_->boards[rank_]; }

  std::shared_ptr<FakeNet> net_;  // shared by all ranks
  std::uint32_t rank_;
};

}  // namespace tutti

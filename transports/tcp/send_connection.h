// TcpSendConnection: the sending end of a connection. What the kernel takes at once leaves from where it lies; what it
// does not take, and messages of up to kCoalescedBytes, wait in a queue of `slots` messages until flush(), a receive or
// a later call. So small messages between two flushes leave in one system call.
//
// It makes a socket of its own. Where the peer is the lower rank and has made one for the same lane, short messages
// move to that one, so that both directions share it. Long ones move back: while a socket sends much, what comes on it
// waits for this process. Belongs to the thread that drives progress.
//
// When the peer has closed its end, messages that the kernel has not taken cannot reach it any more. From then on the
// connection is never ready(), and if there were such messages they are never handed_over(). So whoever sends waits,
// looks at the peer's status and learns why; data is never lost without an error.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "transports/tcp/links.h"
#include "transports/transport.h"

namespace tutti {

class TcpSendConnection final : public SendConnection, public TcpLink {
 public:
  // Starts to connect.
  static Result<std::unique_ptr<TcpSendConnection>> open(std::shared_ptr<TcpLinks> links, std::uint32_t peer,
                                                         std::uint16_t lane);
  ~TcpSendConnection() override;

  bool ready() override;
  std::byte* slot() override { return payload(next_slot()); }
  void send_slot(std::uint64_t bytes, const CallTag& tag) override { send(slot(), bytes, tag); }
  bool sends_from_memory() const override { return true; }
  void send_from(const std::byte* data, std::uint64_t bytes, const CallTag& tag) override { send(data, bytes, tag); }
  void send_published(const WindowRef& place, std::uint64_t bytes, const CallTag& tag) override;
  void send_delivered(std::uint64_t bytes, const CallTag& tag) override;
  bool drained() override { return push(); }
  bool handed_over() override { return push() && !lost_; }

 private:
  struct Slot {  // one frame: the header, right before the payload, which lies at a multiple of 64
    PageBytes memory;
    std::size_t bytes = 0;  // header and payload
  };
  TcpSendConnection(std::shared_ptr<TcpLinks> links, std::uint32_t peer, std::uint16_t lane, const Preamble& preamble,
                    TcpStream stream);
  std::size_t next_slot() const { return (first_ + count_) % slots_.size(); }
  bool pending() const {
    return !over_ && (count_ > 0 || preamble_sent_ < sizeof(preamble_) || moving_ || socket_->socket.unsent());
  }
  // The way back of our own: no data.
  bool brings_answer() const { return !links_->hosts(peer()) && socket_ == own_; }
  void consider_moving(std::uint64_t bytes);
  std::byte* payload(std::size_t slot);
  void send(const std::byte* data, std::uint64_t bytes, const CallTag& tag);
  void enqueue(const FrameHeader& header, const std::byte* data, std::size_t already_sent);
  std::size_t transmit(const FrameHeader* header, const std::byte* data);
  bool move();
  void keep_for_goodbye(const std::shared_ptr<LaneSocket>& socket);
  void fail(const Moved& moved);
  void give_up(const Reply& reply);
  void close_queue();

  void look() override;
  bool push() override;
  bool say_goodbye(const FrameHeader& goodbye) override;
  void end() override;

  std::shared_ptr<TcpLinks> links_;  // shared with the transport, which may end first
  TcpLane& lane_;
  std::shared_ptr<LaneSocket> own_;       // never null; see LaneSocket
  std::shared_ptr<LaneSocket> borrowed_;  // the lane's common one, once this connection has moved to it
  std::shared_ptr<LaneSocket> socket_;    // the one of them that messages go to
  Preamble preamble_;
  std::size_t preamble_sent_ = 0;
  std::vector<Slot> slots_;
  std::size_t first_ = 0;           // the slot of the oldest queued message
  std::size_t count_ = 0;           // queued messages
  std::size_t first_sent_ = 0;      // bytes of the oldest that have gone
  bool moving_ = false;             // to the other socket: a frame that says so is on its way
  std::size_t move_sent_ = 0;       // bytes of that frame
  std::uint32_t out_of_place_ = 0;  // messages in a row that would rather go by the other socket
  bool over_ = false;               // nothing can be sent any more: the other end is gone, or this one has ended
  bool lost_ = false;               // a message was given to send() that the kernel did not take before that
  ReplyReader replies_;
};

}  // namespace tutti

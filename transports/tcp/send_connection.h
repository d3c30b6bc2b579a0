// TcpSendConnection: the sending end of a connection.
//
// A message that is longer than kCoalescedBytes is normally passed to the kernel at once, directly from the memory of
// the caller. Other messages, and the rest of a message that the kernel does not take, are copied into a queue of
// `slots` messages. The queue is sent by TcpLinks::flush(), before a receive, with the next long message, when it is
// full, or by drained() or handed_over(). So several small messages between two flushes are normally sent in one system
// call.
//
// Each connection makes its own socket. If the peer is the lower rank and has made a socket for the same lane, this
// connection sends short messages on that common socket, so that both directions share it. It sends long messages on
// this rank's own socket, because on a common socket the data that arrives would be delayed while this process sends
// much. It changes the socket only after several messages in a row that are better sent on the other one. Belongs to
// the thread that drives progress.
//
// When the peer has closed its end, messages that the kernel has not taken can no longer reach the peer. As soon as
// this connection has noticed the end, ready() always returns false, and if there were such messages, handed_over()
// does as well. A caller that sends therefore waits, checks the status of the peer and learns the reason. So messages
// that the kernel has not taken are not lost without an error.
//
// This class has more than 40 methods and members. 13 of the methods implement the interfaces SendConnection and
// TcpLink, and the others are the steps by which one queue is sent on one of two sockets.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "transports/tcp/links.h"
#include "transports/transport.h"

namespace tutti {

class TcpSendConnection final : public SendConnection, public TcpLink {
 public:
  // Starts to connect; does not wait for the connection.
  static Result<std::unique_ptr<TcpSendConnection>> open(std::shared_ptr<TcpLinks> links, std::uint32_t peer,
                                                         std::uint16_t lane);
  ~TcpSendConnection() override;

  bool ready() override;
  std::byte* slot() override { return payload(next_slot()); }
  void send_slot(std::uint64_t bytes, const CallTag& tag) override { send_from(slot(), bytes, tag); }
  bool sends_from_memory() const override { return true; }
  void send_from(const std::byte* data, std::uint64_t bytes, const CallTag& tag) override;
  void send_published(const WindowRef& place, std::uint64_t bytes, const CallTag& tag) override;
  void send_delivered(std::uint64_t bytes, const CallTag& tag) override;
  bool drained() override { return push(); }
  bool handed_over() override { return push() && !lost_; }

 private:
  // The memory for one queued frame. The header is directly before the payload, which is aligned to 64 bytes.
  struct Slot {
    PageBytes memory;
    std::size_t bytes = 0;  // length of the queued frame: header and payload
  };
  TcpSendConnection(std::shared_ptr<TcpLinks> links, std::uint32_t peer, std::uint16_t lane, const Preamble& preamble,
                    TcpStream stream);
  std::size_t next_slot() const { return (first_ + count_) % slots_.size(); }
  bool pending() const {
    return !over_ && (count_ > 0 || preamble_sent_ < sizeof(preamble_) || moving_ || socket_->socket.unsent());
  }
  // Whether messages are sent on this rank's own socket and the peer sends at most one frame on it, but no messages.
  bool brings_answer() const { return !links_->makes_common_socket(peer()) && socket_ == own_; }
  void switch_if_better(std::uint64_t bytes);
  std::byte* payload(std::size_t slot);
  void enqueue(const FrameHeader& header, const std::byte* data, std::size_t already_sent);
  std::size_t transmit(const FrameHeader* header, const std::byte* data);
  bool move();
  void keep_for_close(const std::shared_ptr<LaneSocket>& socket);
  void fail(const Moved& moved);
  void give_up(const Reply& reply);
  void close_queue();

  void look() override;
  bool push() override;
  bool send_close(const FrameHeader& close_frame) override;
  std::array<LaneSocket*, 2> sockets() const override { return {own_.get(), borrowed_.get()}; }
  void end() override;

  std::shared_ptr<TcpLinks> links_;  // shared with the transport, which may be destroyed first
  TcpLane& lane_;
  std::shared_ptr<LaneSocket> own_;  // the socket that this connection has made; never null
  // The common socket of the lane; null before this connection has switched to it for the first time.
  std::shared_ptr<LaneSocket> borrowed_;
  std::shared_ptr<LaneSocket> socket_;  // own_ or borrowed_: the socket on which messages are sent now
  Preamble preamble_;
  std::size_t preamble_sent_ = 0;
  std::vector<Slot> slots_;
  std::size_t first_ = 0;       // index in slots_ of the oldest queued message
  std::size_t count_ = 0;       // number of queued messages
  std::size_t first_sent_ = 0;  // bytes of the oldest queued message, with its header, that were sent
  bool moving_ = false;         // the connection is switching to its other socket: the kMoved frame must be sent first
  std::size_t move_sent_ = 0;   // bytes of the kMoved frame that were sent
  std::uint32_t out_of_place_ = 0;  // number of last messages in a row for which the other socket would be better
  bool over_ = false;               // nothing can be sent any more: the connection has ended, or end() was called
  bool closing_ = false;            // send_close() has begun to send the close frame
  bool lost_ = false;               // a message was not passed completely to the kernel before the connection ended
  ReplyReader replies_;
};

}  // namespace tutti

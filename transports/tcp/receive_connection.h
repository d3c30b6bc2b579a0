// TcpReceiveConnection: the receiving end of a connection.
//
// It holds one message at a time; further messages stay in the kernel. If the receiver names a place with the length
// of the message, the message is read directly into that place, but only inside arrival() calls that name it. All
// other messages go into one slot. A system call that reads a header may also read more bytes behind it; they go into
// a read-ahead buffer, the stash.
//
// It reads the socket that the peer has made, until the peer reports that it continues on the common socket of the
// lane. The peer may switch back later. Belongs to the thread that drives progress.
//
// This class has more than 40 methods and members. 11 of the methods implement the interfaces ReceiveConnection and
// TcpLink, and the others are the steps by which one message is read from one of two sockets.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "transports/tcp/links.h"
#include "transports/transport.h"

namespace tutti {

class TcpReceiveConnection final : public ReceiveConnection, public TcpLink {
 public:
  TcpReceiveConnection(std::shared_ptr<TcpLinks> links, std::uint32_t peer, std::uint16_t lane);
  ~TcpReceiveConnection() override;

  Arrival arrival(const CallTag& call, std::span<std::byte> place) override;
  bool wants_place() const override { return true; }
  // look() may have seen a close frame behind messages that were not read yet.
  bool may_bring_more() override { return claim() && !ended_ && !corrupt_; }
  CallTag mismatched_tag() const override { return mismatched_; }
  Message front() override;
  void release() override;

  void look() override;
  Unread unread() const override;
  bool missing() const override { return active_.socket == nullptr && !ended_; }
  bool send_close(const FrameHeader& close_frame) override;
  void end() override;

 private:
  enum class Stage : std::uint8_t { kHeader, kPayload };  // the part of the message that is read next
  enum class PayloadTarget : std::uint8_t { kUndecided, kCallerBuffer, kSlot };

  struct BufferedSocket {                // a socket and its read-ahead buffer, which contains the bytes in [begin, end)
    std::shared_ptr<LaneSocket> socket;  // null if it has not arrived; shared, see LaneSocket
    PageBytes stash;
    std::size_t begin = 0;
    std::size_t end = 0;
    std::vector<std::byte> stashed() const { return {stash.get() + begin, stash.get() + end}; }
  };
  std::size_t stashed() const { return active_.end - active_.begin; }
  std::size_t rest() const { return header_.bytes - received_; }
  TcpStream& stream() { return active_.socket->socket; }
  bool open() const { return active_.socket != nullptr && active_.socket->socket.is_open(); }
  void check_inactive();
  bool claim();
  bool switch_socket();
  bool read_header();
  bool take_header();
  void decide(std::span<std::byte> place);
  bool read_payload(std::byte* to);
  bool skip();
  bool fill(std::byte* to, std::size_t bytes);
  void note_end(int error);

  std::shared_ptr<TcpLinks> links_;  // shared with the transport, which may be destroyed first
  const std::uint16_t lane_;
  TcpLane& lane_state_;  // state that is shared with the sending connection of the lane
  PageBytes slot_;
  BufferedSocket active_;           // the socket on which messages arrive now
  BufferedSocket inactive_;         // the other socket; empty until the peer has switched for the first time
  bool inactive_end_seen_ = false;  // the end of the inactive socket was seen
  Stage stage_ = Stage::kHeader;
  FrameHeader header_;        // valid from Stage::kPayload on
  std::size_t received_ = 0;  // bytes of the payload
  PayloadTarget target_ = PayloadTarget::kUndecided;
  std::span<std::byte> caller_buffer_;  // valid if the target is the caller's buffer
  bool long_messages_ = false;  // the last message was too long for the stash, so only the next header is read ahead
  bool corrupt_ = false;
  bool close_received_ = false;
  bool ended_ = false;  // end of file or reset; nothing more will arrive
  bool end_seen_ = false;
  std::uint64_t last_noted_call_ = 0;  // the last call that was reported to the board of the peer
  CallTag mismatched_;
};

}  // namespace tutti

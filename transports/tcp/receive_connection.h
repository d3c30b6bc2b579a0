// TcpReceiveConnection: the receiving end of a connection.
//
// It holds one message at a time; further messages stay in the kernel or in the stash. If the caller of arrival() names
// a place that is as long as the message, before any of the payload was stored, the payload goes directly into that
// place, but only inside calls of arrival() that name the place. The payload of any other message goes into one slot. A
// system call that reads a header or the end of a payload may also read bytes behind it; they go into a read-ahead
// buffer, which is called the stash.
//
// It reads the socket that the peer has made for this lane, until the peer reports that it continues on the common
// socket of the lane (kMoved). The peer may switch back later. Belongs to the thread that drives progress.
//
// This class has more than 40 methods and members. 12 of the methods implement the interfaces ReceiveConnection and
// TcpLink, and the others are the steps by which one message is read from one of two sockets.
#pragma once

#include <array>
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
  void withdraw_place() override;
  // True if the connection has arrived, has not ended for this reader, and has brought no invalid data. That is
  // possible even after look() has reported a close frame of the peer, because messages before that frame may still
  // have to be read.
  bool may_bring_more() override { return claim() && !ended_ && !corrupt_; }
  CallTag mismatched_tag() const override { return mismatched_; }
  Message front() override;
  void release() override;

  void look() override;
  Unread unread() const override;
  bool missing() const override { return active_.socket == nullptr && !ended_; }
  bool send_close(const FrameHeader& close_frame) override;
  std::array<LaneSocket*, 2> sockets() const override { return {active_.socket.get(), inactive_.socket.get()}; }
  void end() override;

 private:
  enum class Stage : std::uint8_t { kHeader, kPayload };  // the part of the current message that must be read next
  enum class PayloadTarget : std::uint8_t { kUndecided, kCallerBuffer, kSlot };

  // A socket and its read-ahead buffer. The positions from `begin` to before `end` contain the bytes that were not
  // used yet.
  struct BufferedSocket {
    std::shared_ptr<LaneSocket> socket;  // null if no connection was assigned yet
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
  TcpLane& lane_state_;  // shared with the sending connection of the lane
  PageBytes slot_;
  BufferedSocket active_;    // the socket on which messages arrive now
  BufferedSocket inactive_;  // the other socket of the lane; empty until the peer has switched for the first time
  bool inactive_end_seen_ = false;  // inactive_ has ended, and that was reported
  Stage stage_ = Stage::kHeader;
  FrameHeader header_;        // header of the current message; valid in Stage::kPayload
  std::size_t received_ = 0;  // bytes of the payload that have been read
  PayloadTarget target_ = PayloadTarget::kUndecided;
  std::span<std::byte> caller_buffer_;  // valid if target_ is kCallerBuffer
  bool long_messages_ = false;  // the last message had at least kLongBytes, so that only one header is read ahead
  bool corrupt_ = false;
  bool close_received_ = false;
  bool ended_ = false;  // end of file, an error, or end() was called; nothing more will arrive
  bool end_seen_ = false;
  // Sequence number in the last message. If the lane is below kPointToPointLane, that call was reported to the
  // PeerBoard of the peer.
  std::uint64_t last_noted_call_ = 0;
  CallTag mismatched_;
};

}  // namespace tutti

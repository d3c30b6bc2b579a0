// TcpReceiveConnection: the receiving end of a connection. It holds one message at a time; the rest waits in the
// kernel. A message whose length fits is read straight into the place that its receiver names, but only inside
// arrival() calls that name it; others go into one slot. What comes with a header in one system call is stashed.
// It reads the socket that the peer has made, until the peer says that it goes on with the lane's common one, and back.
// Belongs to the thread that drives progress.
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
  bool may_bring_more() override { return claim() && !ended_ && !corrupt_; }  // a goodbye may have been seen ahead
  CallTag mismatched_tag() const override { return mismatched_; }
  Message front() override;
  void release() override;

  void look() override;
  Unread unread() const override;
  bool missing() const override { return side_.socket == nullptr && !ended_; }
  bool say_goodbye(const FrameHeader& goodbye) override;
  void end() override;

 private:
  enum class Stage : std::uint8_t { kHeader, kPayload };  // of the message at the front
  enum class Where : std::uint8_t { kUndecided, kPlace, kSlot };

  struct Side {                          // a socket and what was read of it beyond what was wanted
    std::shared_ptr<LaneSocket> socket;  // null: it has not come; see LaneSocket
    PageBytes stash;
    std::size_t begin = 0;
    std::size_t end = 0;
    std::vector<std::byte> stashed() const { return {stash.get() + begin, stash.get() + end}; }
  };
  std::size_t stashed() const { return side_.end - side_.begin; }
  std::size_t rest() const { return header_.bytes - received_; }
  TcpStream& stream() { return side_.socket->socket; }
  bool open() const { return side_.socket != nullptr && side_.socket->socket.is_open(); }
  void look_at_other();
  bool claim();
  bool follow();
  bool read_header();
  bool take_header();
  void decide(std::span<std::byte> place);
  bool read_payload(std::byte* to);
  bool skip();
  bool fill(std::byte* to, std::size_t bytes);
  void note_end(int error);

  std::shared_ptr<TcpLinks> links_;  // shared with the transport, which may end first
  const std::uint16_t lane_;
  TcpLane& both_;  // directions of the lane
  PageBytes slot_;
  Side side_;                // that messages come on
  Side other_;               // where the peer has moved from, or to before
  bool other_seen_ = false;  // its end
  Stage stage_ = Stage::kHeader;
  FrameHeader header_;        // from Stage::kPayload on
  std::size_t received_ = 0;  // of its payload
  Where where_ = Where::kUndecided;
  std::span<std::byte> place_;  // Where::kPlace
  bool long_messages_ = false;  // the last was too long for the stash: the next header alone is read ahead
  bool corrupt_ = false;
  bool goodbye_ = false;
  bool ended_ = false;  // end of file or reset: nothing more will come
  bool tail_seen_ = false;
  std::uint64_t noted_ = 0;  // the call that the board was told of last
  CallTag mismatched_;
};

}  // namespace tutti

#include "transports/tcp/receive_connection.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/assert.h"
#include "base/exceptions.h"

namespace tutti {
namespace {

constexpr std::size_t kStashBytes = 16384;
// Length from which on a message counts as long. After a long message, only one header is read ahead, so that the
// next payload is not copied through the stash.
constexpr std::size_t kLongBytes = kStashBytes / 2;

}  // namespace

TcpReceiveConnection::TcpReceiveConnection(std::shared_ptr<TcpLinks> links, std::uint32_t peer, std::uint16_t lane)
    : TcpLink(peer),
      links_(std::move(links)),
      lane_(lane),
      lane_state_(links_->lane(peer, lane)),
      slot_(make_page_bytes(links_->options().slot_bytes)),
      active_{.socket = nullptr, .stash = make_page_bytes(kStashBytes)} {
  links_->add(*this);
}

TcpReceiveConnection::~TcpReceiveConnection() {
  links_->remove(*this);
  for (const BufferedSocket* side : {&active_, &inactive_}) {
    if (side->socket == nullptr) continue;
    side->socket->reader = nullptr;
    if (side->socket->sender) continue;
    if (side->socket->torn) {
      lane_state_.common.reset();
    } else {
      runs_through([&] {
        links_->keep_for_close({.socket = side->socket,
                                .peer = peer(),
                                .brings_answer = false,
                                .stashed = side->stashed(),
                                .replies = {}});
      });
    }
  }
}

Arrival TcpReceiveConnection::arrival(const CallTag& call, std::span<std::byte> place) {
  if (!claim()) return Arrival::kNothing;
  while (!corrupt_) {
    if (stage_ == Stage::kHeader && !read_header()) break;
    const std::uint64_t sequence = header_.tag.sequence;
    // The peer already sends messages of a later call. If it should have sent one of `call` before, it has given `call`
    // up. If `call` is a collective, the status board of the peer then normally contains the reason, now or soon.
    if (sequence > call.sequence) return Arrival::kNothing;
    if (sequence < call.sequence) {  // a message of an earlier call that failed
      if (!skip()) return Arrival::kNothing;
      continue;
    }
    if (header_.tag != call) {
      mismatched_ = header_.tag;
      // Sends the state of this call to the peers (unless it was sent already), so that the errors of both ranks name
      // the difference.
      links_->pusher().push_now();
      return Arrival::kMismatch;
    }
    decide(place);
    if (received_ == header_.bytes) return Arrival::kMessage;
    return read_payload(target_ == PayloadTarget::kCallerBuffer ? caller_buffer_.data() : slot_.get())
               ? Arrival::kMessage
               : Arrival::kNothing;
  }
  return corrupt_ ? Arrival::kCorrupt : Arrival::kNothing;
}

// Takes the connection of the peer from TcpLinks if this was not done before. Returns true once the connection has
// arrived, also after its end, and after end().
bool TcpReceiveConnection::claim() {
  if (active_.socket != nullptr || ended_) return true;
  TcpStream socket = links_->claim(peer(), lane_);
  if (!socket.is_open()) return false;
  active_.socket = std::make_shared<LaneSocket>();  // shared ownership, see LaneSocket
  active_.socket->socket = std::move(socket);
  active_.socket->reader = this;
  if (!links_->makes_common_socket(peer())) lane_state_.common = active_.socket;
  return true;
}

// Switches to the other socket of the lane, because the peer has sent a kMoved frame: its next messages arrive on the
// common socket, or again on the socket that the peer has made. Returns false, and does nothing, if the peer is the
// lower of the two ranks: only the higher rank may switch, so the frame is invalid.
bool TcpReceiveConnection::switch_socket() {
  if (!links_->makes_common_socket(peer())) return false;
  if (inactive_.socket == nullptr) {
    inactive_.socket = lane_state_.common;
    if (inactive_.socket == nullptr) {
      // There is no common socket, for example because the sending connection of this rank was destroyed before it had
      // sent everything, or after its socket had ended. So no message of the peer can arrive any more.
      note_end(0);
      return true;
    }
    inactive_.stash = make_page_bytes(kStashBytes);
    inactive_.socket->reader = this;
    links_->take_back(*inactive_.socket);
  }
  std::swap(active_, inactive_);
  return true;
}

Message TcpReceiveConnection::front() {
  TUTTI_ASSERT(stage_ == Stage::kPayload && received_ == header_.bytes);
  if (target_ == PayloadTarget::kCallerBuffer)
    return {.carrier = Carrier::kDelivered, .data = nullptr, .bytes = header_.bytes};
  return {.carrier = Carrier::kSlot, .data = slot_.get(), .bytes = header_.bytes};
}

void TcpReceiveConnection::release() {
  TUTTI_ASSERT(stage_ == Stage::kPayload && received_ == header_.bytes);
  stage_ = Stage::kHeader;
}

void TcpReceiveConnection::withdraw_place() {
  if (stage_ != Stage::kPayload || target_ != PayloadTarget::kCallerBuffer) return;
  std::memcpy(slot_.get(), caller_buffer_.data(), received_);
  target_ = PayloadTarget::kSlot;
}

// Decides where the payload goes. The caller of arrival() may pass another `place` than in the previous call, or
// none. The old place is then withdrawn. It is still valid, because a caller that gives up a call withdraws the place
// itself.
void TcpReceiveConnection::decide(std::span<std::byte> place) {
  const bool fits = header_.bytes > 0 && place.size() == header_.bytes;
  if (target_ == PayloadTarget::kUndecided) {
    target_ = fits ? PayloadTarget::kCallerBuffer : PayloadTarget::kSlot;
    caller_buffer_ = place;
  } else if (target_ == PayloadTarget::kCallerBuffer && (!fits || place.data() != caller_buffer_.data())) {
    withdraw_place();
  }
}

// Reads until header_ contains the header of a message, and then returns true. Returns false if none has arrived yet,
// if the connection has ended, or if invalid data has arrived.
bool TcpReceiveConnection::read_header() {
  while (!ended_) {
    while (stashed() >= kHeaderBytes) {
      if (take_header()) return true;
      if (corrupt_) return false;
    }
    std::memmove(active_.stash.get(), active_.stash.get() + active_.begin, stashed());
    active_.end = stashed();
    active_.begin = 0;
    const std::size_t wanted = (long_messages_ ? kHeaderBytes : kStashBytes) - active_.end;
    links_->send_first();
    const Moved moved = stream().receive(active_.stash.get() + active_.end, wanted);
    if (moved.ended) note_end(moved.error);
    if (moved.bytes == 0) return false;
    active_.end += moved.bytes;
  }
  return false;
}

// Takes the header of one frame from the read-ahead buffer. Returns true if it is the header of a message. Handles a
// close frame or a kMoved frame itself, and returns false. Sets corrupt_ and returns false if the frame is invalid.
bool TcpReceiveConnection::take_header() {
  std::memcpy(&header_, active_.stash.get() + active_.begin, kHeaderBytes);
  active_.begin += kHeaderBytes;
  if (header_.magic == kFrameMagic && header_.kind == FrameKind::kClose && header_.bytes == 0) {
    close_received_ = true;
    links_->note_reply(peer(), reply_of(header_));
    return false;
  }
  if (header_.magic == kFrameMagic && header_.kind == FrameKind::kMoved && header_.bytes == 0 && switch_socket())
    return false;
  if (header_.magic != kFrameMagic || header_.kind != FrameKind::kMessage ||
      header_.bytes > links_->options().slot_bytes || header_.tag.sequence == 0) {
    corrupt_ = true;
    return false;
  }
  if (header_.tag.sequence != last_noted_call_) {
    last_noted_call_ = header_.tag.sequence;
    // On the point-to-point lane and above, sequence numbers do not count collectives, so the board must not record
    // them.
    if (lane_ < kPointToPointLane) links_->note_call(peer(), header_.tag);
  }
  stage_ = Stage::kPayload;
  target_ = PayloadTarget::kUndecided;
  received_ = 0;
  long_messages_ = header_.bytes >= kLongBytes;
  return true;
}

// Receives once from the socket: up to `bytes` more bytes of the payload into `to`, and possibly bytes behind the
// payload into the read-ahead buffer, which must be empty. Returns true if the payload is complete.
bool TcpReceiveConnection::fill(std::byte* to, std::size_t bytes) {
  active_.begin = 0;
  active_.end = 0;
  const std::size_t ahead = bytes == rest() ? (long_messages_ ? kHeaderBytes : kStashBytes) : 0;
  std::array<iovec, 2> parts{{{.iov_base = to, .iov_len = bytes}, {.iov_base = active_.stash.get(), .iov_len = ahead}}};
  links_->send_first();
  const Moved moved = stream().receive(parts);
  if (moved.ended) note_end(moved.error);
  const std::size_t own = std::min(moved.bytes, bytes);
  received_ += own;
  active_.end = moved.bytes - own;
  return rest() == 0;
}

bool TcpReceiveConnection::read_payload(std::byte* to) {
  const std::size_t have = std::min(rest(), stashed());
  if (have > 0) {
    std::memcpy(to + received_, active_.stash.get() + active_.begin, have);
    active_.begin += have;
    received_ += have;
  }
  if (rest() == 0) return true;
  return !ended_ && fill(to + received_, rest());
}

// Reads the rest of the payload and discards it. Returns true if the whole payload has arrived.
bool TcpReceiveConnection::skip() {
  while (rest() > 0) {
    const std::size_t have = std::min(rest(), stashed());
    active_.begin += have;
    received_ += have;
    if (rest() == 0) break;
    const std::size_t before = received_;
    if (ended_ || (!fill(slot_.get(), rest()) && received_ == before)) return false;
  }
  stage_ = Stage::kHeader;
  return true;
}

// Records that the connection has ended, and reports it to TcpLinks unless the peer has sent a close frame.
void TcpReceiveConnection::note_end(int error) {
  ended_ = true;
  if (!close_received_) links_->note_reply(peer(), {.kind = Reply::Kind::kEnded, .error = error});
}

TcpLink::Unread TcpReceiveConnection::unread() const {
  if (ended_ || !open() || stage_ == Stage::kHeader) return Unread::kNone;
  return end_seen_ ? Unread::kSome : Unread::kMore;
}

void TcpReceiveConnection::look() {
  if (ended_ || corrupt_ || close_received_ || end_seen_ || !claim()) return;
  check_inactive();
  if (stage_ == Stage::kHeader && !read_header()) return;
  // The payload of a message must be read before the frames behind it. If the peer has closed the connection, the last
  // bytes that have arrived already show whether it has sent a close frame.
  const Reply reply = stream().final_reply({active_.stash.get() + active_.begin, stashed()});
  if (reply.kind == Reply::Kind::kNothing) return;
  end_seen_ = true;
  close_received_ = reply.kind == Reply::Kind::kClose;
  links_->note_reply(peer(), reply);
}

// Checks whether the inactive socket has ended. No message arrives there before the peer switches to it, but its last
// bytes may be a close frame.
void TcpReceiveConnection::check_inactive() {
  if (inactive_end_seen_ || inactive_.socket == nullptr || !inactive_.socket->socket.is_open()) return;
  const Reply reply = inactive_.socket->socket.final_reply(inactive_.stashed());
  inactive_end_seen_ = reply.kind != Reply::Kind::kNothing;
  links_->note_reply(peer(), reply);
}

bool TcpReceiveConnection::send_close(const FrameHeader& close_frame) {
  if (ended_) return true;
  for (const BufferedSocket* side : {&active_, &inactive_}) {
    LaneSocket* const socket = side->socket.get();
    if (socket == nullptr || !socket->socket.is_open() || socket->sender || socket->torn)
      continue;  // the sending connection sends the close frame there, or nothing more may be sent
    socket->socket.send_frame(close_frame);
  }
  return true;
}

void TcpReceiveConnection::end() {
  ended_ = true;
  for (const BufferedSocket* side : {&active_, &inactive_}) {
    if (side->socket != nullptr) side->socket->end();
  }
}

}  // namespace tutti

#include "transports/tcp/receive_connection.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/assert.h"
#include "base/exceptions.h"

namespace tutti {
namespace {

constexpr std::size_t kStashBytes = 16384;
constexpr std::size_t kLongBytes = kStashBytes / 2;  // a message from here on is better read to where it belongs

}  // namespace

TcpReceiveConnection::TcpReceiveConnection(std::shared_ptr<TcpLinks> links, std::uint32_t peer, std::uint16_t lane)
    : TcpLink(peer),
      links_(std::move(links)),
      lane_(lane),
      both_(links_->lane(peer, lane)),
      slot_(make_page_bytes(links_->options().slot_bytes)),
      side_{.socket = nullptr, .stash = make_page_bytes(kStashBytes)} {
  links_->add(*this);
}

TcpReceiveConnection::~TcpReceiveConnection() {
  links_->remove(*this);
  for (const Side* side : {&side_, &other_}) {
    if (side->socket == nullptr) continue;
    side->socket->reader = nullptr;
    if (side->socket->sender) continue;
    if (side->socket->torn) {
      both_.common.reset();
    } else {
      runs_through([&] {
        links_->keep_for_goodbye({.socket = side->socket,
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
    if (sequence > call.sequence) return Arrival::kNothing;  // the peer has given this call up: its board says why
    if (sequence < call.sequence) {                          // left behind by a call that failed
      if (!skip()) return Arrival::kNothing;
      continue;
    }
    if (header_.tag != call) {
      mismatched_ = header_.tag;
      links_->pusher().push_now();  // both sides say best who differs when both know
      return Arrival::kMismatch;
    }
    decide(place);
    if (received_ == header_.bytes) return Arrival::kMessage;
    return read_payload(where_ == Where::kPlace ? place_.data() : slot_.get()) ? Arrival::kMessage : Arrival::kNothing;
  }
  return corrupt_ ? Arrival::kCorrupt : Arrival::kNothing;
}

// True once the peer's connection has come.
bool TcpReceiveConnection::claim() {
  if (side_.socket != nullptr || ended_) return true;
  TcpStream socket = links_->claim(peer(), lane_);
  if (!socket.is_open()) return false;
  side_.socket = std::make_shared<LaneSocket>();  // see LaneSocket
  side_.socket->socket = std::move(socket);
  side_.socket->reader = this;
  if (!links_->hosts(peer())) both_.common = side_.socket;
  return true;
}

// The peer's next messages come on the way back of this rank's own connection, or on its own again. False where that
// cannot be.
bool TcpReceiveConnection::follow() {
  if (!links_->hosts(peer())) return false;
  if (other_.socket == nullptr) {
    other_.socket = both_.common;
    if (other_.socket == nullptr) {  // its sender has ended before it could send all
      note_end(0);
      return true;
    }
    other_.stash = make_page_bytes(kStashBytes);
    other_.socket->reader = this;
    links_->take_back(*other_.socket);
  }
  std::swap(side_, other_);
  return true;
}

Message TcpReceiveConnection::front() {
  TUTTI_ASSERT(stage_ == Stage::kPayload && received_ == header_.bytes);
  if (where_ == Where::kPlace) return {.carrier = Carrier::kDelivered, .data = nullptr, .bytes = header_.bytes};
  return {.carrier = Carrier::kSlot, .data = slot_.get(), .bytes = header_.bytes};
}

void TcpReceiveConnection::release() {
  TUTTI_ASSERT(stage_ == Stage::kPayload && received_ == header_.bytes);
  stage_ = Stage::kHeader;
}

// Where the payload goes. The caller may name another place than before, or none: what has come is then taken from the
// old place, which belongs to the same call and so to us still.
void TcpReceiveConnection::decide(std::span<std::byte> place) {
  const bool fits = header_.bytes > 0 && place.size() == header_.bytes;
  if (where_ == Where::kUndecided) {
    where_ = fits ? Where::kPlace : Where::kSlot;
    place_ = place;
  } else if (where_ == Where::kPlace && (!fits || place.data() != place_.data())) {
    std::memcpy(slot_.get(), place_.data(), received_);
    where_ = Where::kSlot;
  }
}

// True when there is a message's header in header_. False when there is nothing, or the connection is at its end.
bool TcpReceiveConnection::read_header() {
  while (!ended_) {
    while (stashed() >= kHeaderBytes) {
      if (take_header()) return true;
      if (corrupt_) return false;
    }
    std::memmove(side_.stash.get(), side_.stash.get() + side_.begin, stashed());
    side_.end = stashed();
    side_.begin = 0;
    const std::size_t wanted = (long_messages_ ? kHeaderBytes : kStashBytes) - side_.end;
    links_->send_first();
    const Moved moved = stream().receive(side_.stash.get() + side_.end, wanted);
    if (moved.ended) note_end(moved.error);
    if (moved.bytes == 0) return false;
    side_.end += moved.bytes;
  }
  return false;
}

// Takes one frame's header off the stash; true if a message follows.
bool TcpReceiveConnection::take_header() {
  std::memcpy(&header_, side_.stash.get() + side_.begin, kHeaderBytes);
  side_.begin += kHeaderBytes;
  if (header_.magic == kFrameMagic && header_.kind == FrameKind::kGoodbye && header_.bytes == 0) {
    goodbye_ = true;
    links_->note_reply(peer(), reply_of(header_));
    return false;
  }
  if (header_.magic == kFrameMagic && header_.kind == FrameKind::kMoved && header_.bytes == 0 && follow()) return false;
  if (header_.magic != kFrameMagic || header_.kind != FrameKind::kMessage ||
      header_.bytes > links_->options().slot_bytes || header_.tag.sequence == 0) {
    corrupt_ = true;
    return false;
  }
  if (header_.tag.sequence != noted_) {
    noted_ = header_.tag.sequence;
    if (lane_ < kPointToPointLane) links_->note_call(peer(), header_.tag);  // beyond it: introductions
  }
  stage_ = Stage::kPayload;
  where_ = Where::kUndecided;
  received_ = 0;
  long_messages_ = header_.bytes >= kLongBytes;
  return true;
}

// One system call at most: up to `bytes` more of the payload to `to`, and what comes after it to the stash, which is
// empty. True when the payload is complete.
bool TcpReceiveConnection::fill(std::byte* to, std::size_t bytes) {
  side_.begin = 0;
  side_.end = 0;
  const std::size_t ahead = bytes == rest() ? (long_messages_ ? kHeaderBytes : kStashBytes) : 0;
  std::array<iovec, 2> parts{{{.iov_base = to, .iov_len = bytes}, {.iov_base = side_.stash.get(), .iov_len = ahead}}};
  links_->send_first();
  const Moved moved = stream().receive(parts);
  if (moved.ended) note_end(moved.error);
  const std::size_t own = std::min(moved.bytes, bytes);
  received_ += own;
  side_.end = moved.bytes - own;
  return rest() == 0;
}

bool TcpReceiveConnection::read_payload(std::byte* to) {
  const std::size_t have = std::min(rest(), stashed());
  if (have > 0) {
    std::memcpy(to + received_, side_.stash.get() + side_.begin, have);
    side_.begin += have;
    received_ += have;
  }
  if (rest() == 0) return true;
  return !ended_ && fill(to + received_, rest());
}

// Reads the rest of the payload and forgets it. True when it was all there.
bool TcpReceiveConnection::skip() {
  while (rest() > 0) {
    const std::size_t have = std::min(rest(), stashed());
    side_.begin += have;
    received_ += have;
    if (rest() == 0) break;
    const std::size_t before = received_;
    if (ended_ || (!fill(slot_.get(), rest()) && received_ == before)) return false;
  }
  stage_ = Stage::kHeader;
  return true;
}

void TcpReceiveConnection::note_end(int error) {
  ended_ = true;
  if (!goodbye_) links_->note_reply(peer(), {.kind = Reply::Kind::kEnded, .error = error});
}

TcpLink::Unread TcpReceiveConnection::unread() const {
  if (ended_ || !open() || stage_ == Stage::kHeader) return Unread::kNone;
  return tail_seen_ ? Unread::kSome : Unread::kMore;
}

void TcpReceiveConnection::look() {
  if (ended_ || corrupt_ || goodbye_ || tail_seen_ || !claim()) return;
  look_at_other();
  if (stage_ == Stage::kHeader && !read_header()) return;
  // There is a message to be read first. Once the peer has closed, the last bytes say whether it said goodbye.
  const Reply reply = stream().last_words({side_.stash.get() + side_.begin, stashed()});
  if (reply.kind == Reply::Kind::kNothing) return;
  tail_seen_ = true;
  goodbye_ = reply.kind == Reply::Kind::kGoodbye;
  links_->note_reply(peer(), reply);
}

// Nothing comes there before the peer moves to it; once it is over, it may tell why.
void TcpReceiveConnection::look_at_other() {
  if (other_seen_ || other_.socket == nullptr || !other_.socket->socket.is_open()) return;
  const Reply reply = other_.socket->socket.last_words(other_.stashed());
  other_seen_ = reply.kind != Reply::Kind::kNothing;
  links_->note_reply(peer(), reply);
}

bool TcpReceiveConnection::say_goodbye(const FrameHeader& goodbye) {
  if (ended_) return true;
  for (const Side* side : {&side_, &other_}) {
    LaneSocket* const socket = side->socket.get();
    if (socket == nullptr || !socket->socket.is_open() || socket->sender || socket->torn)
      continue;  // the sender says it
    socket->socket.say(goodbye);
  }
  return true;
}

void TcpReceiveConnection::end() {
  ended_ = true;
  for (const Side* side : {&side_, &other_}) {
    if (side->socket != nullptr) side->socket->end();
  }
}

}  // namespace tutti

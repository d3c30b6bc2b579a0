#include "transports/tcp/send_connection.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/exceptions.h"

namespace tutti {
namespace {

constexpr std::uint64_t kCoalescedBytes = 4096;
// Messages of up to this length are better sent on the common socket. Measured: 8 KiB are faster there, 32 KiB are
// not.
constexpr std::uint64_t kShortBytes = 16384;
// Number of consecutive messages that would be better sent on the other socket, after which the connection switches to
// it, as soon as nothing is queued.
constexpr std::uint32_t kMoveAfter = 4;
// Bytes before the payload in a slot; the header takes the last ones of them.
constexpr std::size_t kHeaderSpace = 64;
constexpr std::size_t kMostParts = 32;  // maximum number of parts in one send: preamble, queued frames, header, payload
static_assert(kHeaderSpace >= kHeaderBytes);

}  // namespace

TcpSendConnection::TcpSendConnection(std::shared_ptr<TcpLinks> links, std::uint32_t peer, std::uint16_t lane,
                                     const Preamble& preamble, TcpStream stream)
    : TcpLink(peer),
      links_(std::move(links)),
      lane_(links_->lane(peer, lane)),
      own_(std::make_shared<LaneSocket>()),
      socket_(own_),
      preamble_(preamble),
      preamble_sent_(stream.is_encrypted() ? sizeof(Preamble) : 0),  // with TLS, the stream sends the preamble
      slots_(links_->options().slots) {
  socket_->socket = std::move(stream);
  socket_->sender = true;
  if (links_->makes_common_socket(peer)) lane_.common = socket_;
  links_->add(*this);
}

Result<std::unique_ptr<TcpSendConnection>> TcpSendConnection::open(std::shared_ptr<TcpLinks> links, std::uint32_t peer,
                                                                   std::uint16_t lane) {
  auto socket = links->connect(peer);
  if (!socket) return socket.error();
  const Preamble preamble = links->preamble(peer, lane);
  auto stream = links->begin(std::move(*socket), preamble);
  if (!stream) return stream.error();
  stream->advance();
  std::unique_ptr<TcpSendConnection> connection(  // the constructor is private
      new TcpSendConnection(std::move(links), peer, lane, preamble, std::move(*stream)));
  if (!connection->push()) connection->links_->mark_dirty(*connection);
  return connection;
}

TcpSendConnection::~TcpSendConnection() {
  if (links_->own_process()) runs_through([this] { push(); });
  links_->remove(*this);
  socket_->sender = false;
  if (socket_->reader != nullptr) {
    socket_->torn |= pending();
  } else if (pending() || over_) {
    if (lane_.common == socket_) lane_.common.reset();
  } else {
    keep_for_close(socket_);
  }
  if (borrowed_ == nullptr) return;
  const std::shared_ptr<LaneSocket>& other = socket_ == own_ ? borrowed_ : own_;
  other->sender = false;
  if (other->reader == nullptr) keep_for_close(other);
}

void TcpSendConnection::keep_for_close(const std::shared_ptr<LaneSocket>& socket) {
  const bool answer = socket == own_ && !links_->makes_common_socket(peer());
  runs_through([&] {
    links_->keep_for_close(
        {.socket = socket, .peer = peer(), .brings_answer = answer, .stashed = {}, .replies = replies_});
  });
}

std::byte* TcpSendConnection::payload(std::size_t slot) {
  PageBytes& memory = slots_[slot].memory;
  if (memory == nullptr) memory = make_page_bytes(kHeaderSpace + links_->options().slot_bytes);
  return memory.get() + kHeaderSpace;
}

bool TcpSendConnection::ready() {
  if (count_ == slots_.size()) push();
  return !over_ && count_ < slots_.size();
}

void TcpSendConnection::send_published(const WindowRef&, std::uint64_t, const CallTag&) {
  TUTTI_ASSERT(false, "memory cannot be registered with the TCP transport");
}

void TcpSendConnection::send_delivered(std::uint64_t, const CallTag&) {
  TUTTI_ASSERT(false, "ranks cannot store into each other's memory over TCP");
}

void TcpSendConnection::send_from(const std::byte* data, std::uint64_t bytes, const CallTag& tag) {
  TUTTI_ASSERT(bytes <= links_->options().slot_bytes && count_ < slots_.size());
  lost_ |= over_;
  if (over_) return;
  const FrameHeader header{.kind = FrameKind::kMessage, .bytes = bytes, .tag = tag};
  if (lane_.common != nullptr && lane_.common != own_) switch_if_better(bytes);
  std::size_t sent = 0;
  if (bytes > kCoalescedBytes && count_ + 3 <= kMostParts) sent = transmit(&header, data);
  lost_ |= over_;
  if (over_ || sent == kHeaderBytes + bytes) return;
  enqueue(header, data, sent);
}

void TcpSendConnection::enqueue(const FrameHeader& header, const std::byte* data, std::size_t already_sent) {
  const std::size_t index = next_slot();
  std::byte* to = payload(index);
  std::memcpy(to - kHeaderBytes, &header, kHeaderBytes);
  const std::size_t gone = already_sent > kHeaderBytes ? already_sent - kHeaderBytes : 0;
  if (data != to && header.bytes > gone) std::memcpy(to + gone, data + gone, header.bytes - gone);
  slots_[index].bytes = kHeaderBytes + header.bytes;
  // If older messages are queued (count_ > 0), nothing of this message was sent.
  if (count_ == 0) first_sent_ = already_sent;
  ++count_;
  links_->mark_dirty(*this);
}

// Sends the queue and, if `header` is not null, one more message behind the queue, with one call of TcpStream::send(),
// as far as the system takes them. Sends at most kMostParts parts. Before that, completes a switch of the socket that
// has begun. Returns the number of bytes of the message behind the queue, with its header, that were sent.
std::size_t TcpSendConnection::transmit(const FrameHeader* header, const std::byte* data) {
  if (moving_ && !move()) return 0;
  std::array<iovec, kMostParts> parts;
  std::size_t used = 0;
  std::size_t queued_bytes = 0;
  const auto add = [&](const void* from, std::size_t bytes) {
    parts[used++] = {.iov_base = const_cast<void*>(from), .iov_len = bytes};
    queued_bytes += bytes;
  };
  if (preamble_sent_ < sizeof(preamble_)) {
    add(reinterpret_cast<const std::byte*>(&preamble_) + preamble_sent_, sizeof(preamble_) - preamble_sent_);
  }
  for (std::size_t i = 0; i < count_ && used < kMostParts; ++i) {
    const std::size_t index = (first_ + i) % slots_.size();
    const std::size_t skip = i == 0 ? first_sent_ : 0;
    add(payload(index) - kHeaderBytes + skip, slots_[index].bytes - skip);
  }
  const std::size_t before = queued_bytes;
  if (header != nullptr) {
    add(header, kHeaderBytes);
    add(data, header->bytes);
  }
  const Moved moved = used > 0 ? socket_->socket.send({parts.data(), used}) : socket_->socket.finish();
  if (moved.ended) {
    fail(moved);
    return 0;
  }
  std::size_t left = moved.bytes;
  const std::size_t of_preamble = std::min(left, sizeof(preamble_) - preamble_sent_);
  preamble_sent_ += of_preamble;
  left -= of_preamble;
  while (count_ > 0 && left >= slots_[first_].bytes - first_sent_) {
    left -= slots_[first_].bytes - first_sent_;
    first_sent_ = 0;
    first_ = (first_ + 1) % slots_.size();
    --count_;
  }
  if (count_ == 0) {
    first_ = 0;  // a queue that never holds more than one message then uses only one slot, which stays in the cache
    return moved.bytes > before ? moved.bytes - before : 0;
  }
  first_sent_ += left;
  return 0;
}

bool TcpSendConnection::push() {
  while (pending()) {
    const std::size_t had = count_;
    transmit(nullptr, nullptr);
    if (pending() && count_ == had) return false;
  }
  return true;
}

// Requests a switch to the other socket if the last kMoveAfter messages, including this one, are better sent there and
// nothing is queued.
void TcpSendConnection::switch_if_better(std::uint64_t bytes) {
  const bool in_place = (bytes <= kShortBytes) == (socket_ != own_);
  out_of_place_ = in_place ? 0 : out_of_place_ + 1;
  if (out_of_place_ >= kMoveAfter && !pending()) moving_ = true;
}

// Switches to the other socket. All messages before the request to switch were already passed to the operating system.
// The kMoved frame tells the receiver that the next messages arrive on the other socket. Returns false if the frame
// could not be sent completely.
bool TcpSendConnection::move() {
  FrameHeader frame{.kind = FrameKind::kMoved};
  while (move_sent_ < kHeaderBytes) {
    iovec part{.iov_base = reinterpret_cast<std::byte*>(&frame) + move_sent_, .iov_len = kHeaderBytes - move_sent_};
    const Moved moved = socket_->socket.send({&part, 1});
    if (moved.ended) fail(moved);
    if (moved.bytes == 0) return false;
    move_sent_ += moved.bytes;
  }
  if (borrowed_ == nullptr) {
    borrowed_ = lane_.common;
    borrowed_->sender = true;
    links_->take_back(*borrowed_);
  }
  socket_ = socket_ == own_ ? borrowed_ : own_;
  moving_ = false;
  move_sent_ = 0;
  out_of_place_ = 0;
  return true;
}

// Handles an error of a send: finds out how the connection has ended, and ends this end of it.
void TcpSendConnection::fail(const Moved& moved) {
  if (socket_->reader != nullptr) {
    close_queue();
    return socket_->reader->look();  // look() finds the reason, perhaps behind data that has arrived
  }
  TcpStream& stream = socket_->socket;
  Reply reply = brings_answer() ? replies_.read(stream) : stream.final_reply({});  // the peer may have sent the reason
  if (reply.kind != Reply::Kind::kClose && reply.kind != Reply::Kind::kRefused) {
    reply = {.kind = Reply::Kind::kEnded, .error = moved.error};
  }
  give_up(reply);
}

void TcpSendConnection::look() {
  for (const auto& socket : {own_, borrowed_}) {
    // If the socket has a reader, that receiving connection checks the socket.
    if (over_ || socket == nullptr || !socket->socket.is_open() || socket->reader != nullptr) continue;
    TcpStream& stream = socket->socket;
    const bool answer = socket == own_ && !links_->makes_common_socket(peer());
    const Reply reply = answer ? replies_.read(stream) : stream.final_reply({});
    if (reply.kind != Reply::Kind::kNothing) give_up(reply);
  }
}

void TcpSendConnection::give_up(const Reply& reply) {
  links_->note_answer(peer(), reply);
  close_queue();
}

void TcpSendConnection::close_queue() {
  lost_ |= count_ > 0;
  over_ = true;
  count_ = 0;
}

// Returns true without sending if the connection has ended, or if earlier data (a preamble, a handshake, or queued
// messages, which belong to a failed call) cannot be sent now: there is no reason to wait until it can.
bool TcpSendConnection::send_close(const FrameHeader& close_frame) {
  if (over_ || (!closing_ && !push())) return true;
  closing_ = true;  // unsent data that a later call of send_close() finds is part of the close frame
  bool all_sent = true;
  for (const auto& socket : {own_, borrowed_}) {
    if (socket == nullptr || !socket->socket.is_open()) continue;
    all_sent &= socket->socket.send_close_frame(close_frame);
  }
  return all_sent;
}

void TcpSendConnection::end() {
  close_queue();
  for (const auto& socket : {own_, borrowed_}) {
    if (socket != nullptr) socket->end();
  }
}

}  // namespace tutti

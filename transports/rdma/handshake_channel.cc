#include "transports/rdma/handshake_channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/assert.h"

namespace tutti {
namespace {

struct Header {
  std::uint32_t lane = 0;
  std::uint32_t bytes = 0;
};

// The tag of every message. It never changes, so the TCP connections treat all messages as messages of a single call,
// and never drop one as a message of an earlier call.
constexpr CallTag kTag{.sequence = 1, .kind = 0xfe};

}  // namespace

HandshakeChannel::HandshakeChannel(OpenSend open_send, OpenReceive open_receive, std::uint64_t slot_bytes)
    : open_send_(std::move(open_send)), open_receive_(std::move(open_receive)), slot_bytes_(slot_bytes) {}

Status HandshakeChannel::send(std::uint32_t peer, std::uint16_t lane, const std::string& text) {
  TUTTI_ASSERT(text.size() <= kMaxMessageBytes);
  PeerChannels& known = peers_[peer];
  if (known.receive == nullptr) {
    auto receive = open_receive_(peer);
    if (!receive) return receive.error();
    known.receive = std::move(*receive);
  }
  if (known.send == nullptr) {
    auto send = open_send_(peer);
    if (!send) return send.error();
    known.send = std::move(*send);
  }
  const Header header{.lane = lane, .bytes = static_cast<std::uint32_t>(text.size())};
  known.unsent.append(reinterpret_cast<const char*>(&header), sizeof(header));
  known.unsent += text;
  send_pending(known);
  return {};
}

std::optional<std::string> HandshakeChannel::take(std::uint32_t peer, std::uint16_t lane) {
  const auto known = peers_.find(peer);
  if (known == peers_.end()) return std::nullopt;
  receive_pending(peer, known->second);
  auto found = known->second.messages.extract(lane);
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

bool HandshakeChannel::corrupt(std::uint32_t peer) const {
  const auto known = peers_.find(peer);
  return known != peers_.end() && known->second.corrupt;
}

void HandshakeChannel::pump() {
  for (auto& [rank, peer] : peers_) {
    send_pending(peer);
    receive_pending(rank, peer);
  }
}

void HandshakeChannel::send_pending(PeerChannels& peer) {
  while (!peer.unsent.empty() && peer.send != nullptr && peer.send->ready()) {
    const std::size_t part = std::min<std::size_t>(peer.unsent.size(), slot_bytes_);
    peer.send->send_from(reinterpret_cast<const std::byte*>(peer.unsent.data()), part, kTag);
    peer.unsent.erase(0, part);
  }
  if (peer.send != nullptr) static_cast<void>(peer.send->handed_over());  // pushes waiting bytes
}

void HandshakeChannel::receive_pending(std::uint32_t rank, PeerChannels& peer) {
  while (!peer.corrupt && peer.receive != nullptr) {
    const Arrival arrival = peer.receive->arrival(kTag);
    if (arrival == Arrival::kNothing) return;
    if (arrival == Arrival::kMessage) {
      const Message message = peer.receive->front();
      peer.received.append(reinterpret_cast<const char*>(message.data), message.bytes);
      peer.receive->release();
      while (take_message(peer)) {
      }
    }
    if (arrival != Arrival::kMessage || peer.corrupt) {
      peer.corrupt = true;
      trouble_ = fmt::format("rank {} has sent a malformed handshake message", rank);
    }
  }
}

bool HandshakeChannel::take_message(PeerChannels& peer) {
  Header header;
  if (peer.received.size() < sizeof(header)) return false;
  std::memcpy(&header, peer.received.data(), sizeof(header));
  if (header.bytes > kMaxMessageBytes || header.lane > 0xffff || peer.messages.size() >= kMaxUnread) {
    peer.corrupt = true;
    return false;
  }
  if (peer.received.size() < sizeof(header) + header.bytes) return false;
  // If a message with this lane number is still unread, a second one is dropped, because a correct peer sends one
  // message for each lane number.
  peer.messages.try_emplace(static_cast<std::uint16_t>(header.lane),
                            peer.received.substr(sizeof(header), header.bytes));
  peer.received.erase(0, sizeof(header) + header.bytes);
  return true;
}

}  // namespace tutti

#include "transports/tcp/oob_datagrams.h"

#include <unistd.h>

#include <array>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"

namespace tutti {
namespace {

constexpr std::size_t kReadBytes = 16384;  // maximum length of each read from a socket

}  // namespace

TcpOobDatagrams::TcpOobDatagrams(std::shared_ptr<TcpEndpoint> endpoint, std::uint64_t channel, std::uint32_t rank,
                                 std::vector<std::string> addresses)
    : process_(getpid()),
      endpoint_(std::move(endpoint)),
      channel_(channel),
      rank_(rank),
      addresses_(std::move(addresses)),
      mailbox_(endpoint_->attach(channel, rank, doorbell_)),
      connections_(addresses_.size()) {}

TcpOobDatagrams::~TcpOobDatagrams() {
  if (getpid() != process_) return;
  runs_through([this] {
    for (std::uint32_t peer = 0; peer < connections_.size(); ++peer) hang_up(peer);
  });
  runs_through([this] { endpoint_->detach(*mailbox_, make_close_frame(0, 0)); });
}

void TcpOobDatagrams::dial(std::uint32_t peer) {
  PeerConnection& connection = connections_.at(peer);
  auto address = PeerAddress::parse(addresses_[peer], static_cast<std::int32_t>(peer));
  auto socket =
      address ? connect_to(address->socket, 0, static_cast<std::int32_t>(peer)) : Result<Socket>(address.error());
  connection.ended = !socket.ok();
  if (!socket) {
    connection.trouble = socket.error().message;
    return;
  }
  Preamble preamble;
  preamble.kind = TcpLinkKind::kDatagrams;
  preamble.nonce = address->nonce;
  preamble.communicator = channel_;
  preamble.sender = rank_;
  preamble.receiver = peer;
  preamble.ranks = static_cast<std::uint32_t>(addresses_.size());
  endpoint_->sign(preamble);
  auto stream = endpoint_->begin(std::move(*socket), preamble);
  connection.ended = !stream.ok();
  if (!stream) {
    connection.trouble = stream.error().message;
    return;
  }
  connection.socket = std::move(*stream);
  if (!connection.socket.is_encrypted())
    connection.unsent.assign(reinterpret_cast<const char*>(&preamble), sizeof(preamble));
}

void TcpOobDatagrams::post(std::uint32_t peer, const std::string& datagram) {
  TUTTI_ASSERT(peer != rank_ && datagram.size() <= kMostDatagramBytes);
  PeerConnection& connection = connections_.at(peer);
  if (!connection.socket.is_open() && !connection.ended) dial(peer);
  if (connection.ended) return;
  const FrameHeader header{.kind = FrameKind::kDatagram, .bytes = datagram.size()};
  connection.unsent.append(reinterpret_cast<const char*>(&header), sizeof(header)).append(datagram);
  send_pending(connection);
}

std::optional<std::string> TcpOobDatagrams::take(std::uint32_t peer) {
  PeerConnection& connection = connections_.at(peer);
  if (connection.socket.is_open()) receive_pending(connection);
  return connection.datagrams.take(channel_);
}

bool TcpOobDatagrams::all_sent_to(std::uint32_t peer) const {
  return connections_.at(peer).ended || connections_.at(peer).unsent.empty();
}

void TcpOobDatagrams::pump() {
  endpoint_->service();
  for (AcceptedLink& link : endpoint_->take(*mailbox_)) {
    const Preamble& preamble = link.preamble;
    if (preamble.kind != TcpLinkKind::kDatagrams || preamble.sender >= connections_.size() ||
        preamble.sender == rank_) {
      endpoint_->refuse(std::move(link), Refusal::kShape);
      continue;
    }
    accept(connections_[preamble.sender], std::move(link.socket));
  }
  for (PeerConnection& connection : connections_) {
    if (!connection.socket.is_open()) continue;
    send_pending(connection);
    receive_pending(connection);
  }
}

// A peer that connects again does not use the previous connection any more. The datagrams that have arrived there are
// kept until they are taken. An incomplete frame is dropped, because the rest of it never arrives.
void TcpOobDatagrams::accept(PeerConnection& connection, TcpStream socket) {
  if (connection.socket.is_open()) receive_pending(connection);
  OobDatagramQueue datagrams = std::move(connection.datagrams);
  connection = PeerConnection();
  connection.socket = std::move(socket);
  connection.datagrams = std::move(datagrams);
}

void TcpOobDatagrams::send_pending(PeerConnection& connection) {
  while (!connection.ended && !connection.unsent.empty()) {
    iovec part{.iov_base = connection.unsent.data(), .iov_len = connection.unsent.size()};
    const Moved moved = connection.socket.send({&part, 1});
    connection.unsent.erase(0, moved.bytes);
    // Receives the datagrams that the peer sent before the connection ended.
    if (moved.ended) receive_pending(connection);
    connection.ended |= moved.ended;
    if (moved.bytes == 0) return;
  }
}

void TcpOobDatagrams::receive_pending(PeerConnection& connection) {
  std::array<std::byte, kReadBytes> bytes;
  while (!connection.ended) {
    const Moved moved = connection.socket.receive(bytes.data(), bytes.size());
    connection.unread.append(reinterpret_cast<const char*>(bytes.data()), moved.bytes);
    while (connection.unread.size() >= sizeof(FrameHeader)) {
      FrameHeader header;
      std::memcpy(&header, connection.unread.data(), sizeof(header));
      const bool sound =
          header.magic == kFrameMagic && header.kind == FrameKind::kDatagram && header.bytes <= kMostDatagramBytes;
      if (!sound) {  // a close frame, a refusal, or data that no rank of Tutti sends
        connection.ended = true;
        return;
      }
      if (connection.unread.size() < sizeof(header) + header.bytes) break;
      connection.datagrams.put(channel_, connection.unread.substr(sizeof(header), header.bytes));
      connection.unread.erase(0, sizeof(header) + header.bytes);
    }
    connection.ended |= moved.ended;
    if (moved.bytes == 0) return;
  }
}

void TcpOobDatagrams::hang_up(std::uint32_t peer) {
  PeerConnection& connection = connections_.at(peer);
  connection.socket.end();
  connection = PeerConnection();
}

}  // namespace tutti

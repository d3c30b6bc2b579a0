#include "transports/tcp/oob_datagrams.h"

#include <unistd.h>

#include <array>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"

namespace tutti {
namespace {

constexpr std::size_t kReadBytes = 16384;  // at once

}  // namespace

TcpOobDatagrams::TcpOobDatagrams(std::shared_ptr<TcpEndpoint> endpoint, std::uint64_t channel, std::uint32_t rank,
                                 std::vector<std::string> addresses)
    : process_(getpid()),
      endpoint_(std::move(endpoint)),
      channel_(channel),
      rank_(rank),
      addresses_(std::move(addresses)),
      mailbox_(endpoint_->attach(channel, rank, bell_)),
      lines_(addresses_.size()) {}

TcpOobDatagrams::~TcpOobDatagrams() {
  if (getpid() != process_) return;
  runs_through([this] {
    for (std::uint32_t peer = 0; peer < lines_.size(); ++peer) hang_up(peer);
  });
  runs_through([this] { endpoint_->detach(*mailbox_, goodbye_frame(0, 0)); });
}

void TcpOobDatagrams::dial(std::uint32_t peer) {
  Line& line = lines_.at(peer);
  auto address = PeerAddress::parse(addresses_[peer], static_cast<std::int32_t>(peer));
  auto socket =
      address ? connect_to(address->socket, 0, static_cast<std::int32_t>(peer)) : Result<Socket>(address.error());
  line.ended = !socket.ok();
  if (!socket) {
    line.trouble = socket.error().message;
    return;
  }
  Preamble preamble;
  preamble.kind = TcpLinkKind::kNotes;
  preamble.nonce = address->nonce;
  preamble.communicator = channel_;
  preamble.sender = rank_;
  preamble.receiver = peer;
  preamble.ranks = static_cast<std::uint32_t>(addresses_.size());
  endpoint_->sign(preamble);
  auto stream = endpoint_->begin(std::move(*socket), preamble);
  line.ended = !stream.ok();
  if (!stream) {
    line.trouble = stream.error().message;
    return;
  }
  line.socket = std::move(*stream);
  if (!line.socket.is_encrypted()) line.unsent.assign(reinterpret_cast<const char*>(&preamble), sizeof(preamble));
}

void TcpOobDatagrams::post(std::uint32_t peer, const std::string& datagram) {
  TUTTI_ASSERT(peer != rank_ && datagram.size() <= kMostDatagramBytes);
  Line& line = lines_.at(peer);
  if (!line.socket.is_open() && !line.ended) dial(peer);
  if (line.ended) return;
  const FrameHeader header{.kind = FrameKind::kDatagram, .bytes = datagram.size()};
  line.unsent.append(reinterpret_cast<const char*>(&header), sizeof(header)).append(datagram);
  send_pending(line);
}

std::optional<std::string> TcpOobDatagrams::take(std::uint32_t peer) {
  Line& line = lines_.at(peer);
  if (line.socket.is_open()) receive_pending(line);
  return line.datagrams.take(channel_);
}

bool TcpOobDatagrams::all_sent_to(std::uint32_t peer) const {
  return lines_.at(peer).ended || lines_.at(peer).unsent.empty();
}

void TcpOobDatagrams::pump() {
  endpoint_->service();
  for (AcceptedLink& link : endpoint_->take(*mailbox_)) {
    const Preamble& preamble = link.preamble;
    if (preamble.kind != TcpLinkKind::kNotes || preamble.sender >= lines_.size() || preamble.sender == rank_) {
      endpoint_->refuse(std::move(link), Refusal::kShape);
      continue;
    }
    Line line;  // the peer dials anew when it is through with the line before
    line.socket = std::move(link.socket);
    lines_[preamble.sender] = std::move(line);
  }
  for (Line& line : lines_) {
    if (!line.socket.is_open()) continue;
    send_pending(line);
    receive_pending(line);
  }
}

void TcpOobDatagrams::send_pending(Line& line) {
  while (!line.ended && !line.unsent.empty()) {
    iovec part{.iov_base = line.unsent.data(), .iov_len = line.unsent.size()};
    const Moved moved = line.socket.send({&part, 1});
    line.unsent.erase(0, moved.bytes);
    if (moved.ended) receive_pending(line);  // what the peer said before its end
    line.ended |= moved.ended;
    if (moved.bytes == 0) return;
  }
}

void TcpOobDatagrams::receive_pending(Line& line) {
  std::array<std::byte, kReadBytes> bytes;
  while (!line.ended) {
    const Moved moved = line.socket.receive(bytes.data(), bytes.size());
    line.unread.append(reinterpret_cast<const char*>(bytes.data()), moved.bytes);
    while (line.unread.size() >= sizeof(FrameHeader)) {
      FrameHeader header;
      std::memcpy(&header, line.unread.data(), sizeof(header));
      const bool sound =
          header.magic == kFrameMagic && header.kind == FrameKind::kDatagram && header.bytes <= kMostDatagramBytes;
      if (!sound) {  // a goodbye, a refusal, or a stranger
        line.ended = true;
        return;
      }
      if (line.unread.size() < sizeof(header) + header.bytes) break;
      line.datagrams.put(channel_, line.unread.substr(sizeof(header), header.bytes));
      line.unread.erase(0, sizeof(header) + header.bytes);
    }
    line.ended |= moved.ended;
    if (moved.bytes == 0) return;
  }
}

void TcpOobDatagrams::hang_up(std::uint32_t peer) {
  Line& line = lines_.at(peer);
  line.socket.end();
  line = Line();
}

}  // namespace tutti

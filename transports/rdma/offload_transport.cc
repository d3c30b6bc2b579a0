#include "transports/rdma/offload_transport.h"

#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"

namespace tutti {
namespace {

// How long announce_leave() waits, at most, for sent data to arrive.
constexpr std::int64_t kDrainNs = 2'000'000'000;

}  // namespace

OffloadTransport::OffloadTransport(std::unique_ptr<TcpTransport> tcp)
    : tcp_(std::move(tcp)),
      handshake_channel_(
          [this](std::uint32_t peer) { return tcp_->open_send(peer, static_cast<std::uint16_t>(lanes())); },
          [this](std::uint32_t peer) { return tcp_->open_receive(peer, static_cast<std::uint16_t>(lanes())); },
          tcp_->slot_bytes()) {}

Result<std::unique_ptr<OffloadTransport>> OffloadTransport::create(TcpTransportOptions options,
                                                                   std::shared_ptr<TcpEndpoint> endpoint,
                                                                   const std::vector<std::string>& addresses,
                                                                   const MakePath& make_path) {
  ++options.lanes;
  auto tcp = TcpTransport::create(options, std::move(endpoint), addresses);
  if (!tcp) return tcp.error();
  std::unique_ptr<OffloadTransport> transport(new OffloadTransport(std::move(*tcp)));  // private constructor
  auto path = make_path({.handshake_channel = transport->handshake_channel_, .links = transport->tcp_->links()});
  if (!path) return path.error();
  transport->path_ = std::move(*path);
  return transport;
}

OffloadTransport::~OffloadTransport() {
  if (path_ == nullptr || !tcp_->links().own_process()) return;
  // If announce_leave() throws, the destructor of tcp_ still sends the close notification.
  runs_through([this] { announce_leave(); });
}

Result<std::unique_ptr<SendConnection>> OffloadTransport::open_send(std::uint32_t peer, std::uint16_t lane) {
  TUTTI_ASSERT(lane < lanes());
  return path_->reaches(peer) ? path_->open_send(peer, lane) : tcp_->open_send(peer, lane);
}

Result<std::unique_ptr<ReceiveConnection>> OffloadTransport::open_receive(std::uint32_t peer, std::uint16_t lane) {
  TUTTI_ASSERT(lane < lanes());
  return path_->reaches(peer) ? path_->open_receive(peer, lane) : tcp_->open_receive(peer, lane);
}

PeerStatus OffloadTransport::peer_status(std::uint32_t peer) {
  PeerStatus status = tcp_->peer_status(peer);
  const bool live = status.life == PeerLife::kLive && !tcp_->links().is_probing(peer);
  if (live && path_->broken(peer)) unreachable_.insert(peer);
  if (status.life == PeerLife::kLeft && path_->peer_reported_broken(peer)) unreachable_.insert(peer);
  const bool parted = status.life == PeerLife::kLive || status.life == PeerLife::kLeft;
  if (parted && unreachable_.contains(peer)) {
    status.life = PeerLife::kUnreachable;
    status.ended = status.cut = false;
  }
  return status;
}

std::string OffloadTransport::peer_trouble(std::uint32_t peer) {
  const std::optional<std::string> broken = path_->broken(peer);
  return broken ? *broken : tcp_->peer_trouble(peer);
}

void OffloadTransport::pump() {
  tcp_->pump();
  handshake_channel_.pump();
  path_->pump();
}

bool OffloadTransport::flush() {
  const bool handed_over = path_->flush();
  return tcp_->flush() && handed_over;
}

std::string OffloadTransport::troubles() {
  std::string text = tcp_->troubles();
  for (const std::string& more : {path_->troubles(), handshake_channel_.trouble()}) {
    if (!more.empty()) text += (text.empty() ? "" : "; ") + more;
  }
  return text;
}

// The close notification is sent last, so with verbs a peer that has received it has received everything before it,
// unless drain() ran out of time or a lane has broken. With UCX, sent messages can arrive after it (see
// UcxReceiveConnection::may_bring_more()).
void OffloadTransport::announce_leave() {
  if (std::exchange(left_, true)) return;
  path_->drain(kDrainNs);
  tcp_->announce_leave();
}

}  // namespace tutti

// OffloadTransport: a TcpTransport that sends its messages over a DataPath to the peers that the DataPath reaches.
// Status boards, close notifications, and the detection that a process has ended remain on TCP. Two ranks that exchange
// messages over the DataPath have a TCP connection in each direction, which carries the handshake of the data path, and
// can have control connections (transports/tcp/board.h).
//
// Thread safety as in transport.h.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "transports/rdma/data_path.h"
#include "transports/rdma/handshake_channel.h"
#include "transports/tcp/tcp_transport.h"

namespace tutti {

class OffloadTransport final : public Transport {
 public:
  using MakePath = std::function<Result<std::unique_ptr<DataPath>>(const DataPathHost& host)>;

  // Like TcpTransport::create(). `options.lanes`: the number of lanes that plans and transfers use; one more lane is
  // added for the handshake. Errors: in addition those of `make_path`.
  static Result<std::unique_ptr<OffloadTransport>> create(TcpTransportOptions options,
                                                          std::shared_ptr<TcpEndpoint> endpoint,
                                                          const std::vector<std::string>& addresses,
                                                          const MakePath& make_path);
  ~OffloadTransport() override;

  std::string_view name() const override { return path_->name(); }
  bool shares_memory() const override { return false; }
  std::uint32_t slots() const override { return tcp_->slots(); }
  std::uint64_t slot_bytes() const override { return tcp_->slot_bytes(); }
  std::uint32_t lanes() const override { return tcp_->lanes() - 1; }
  Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) override;
  Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) override;
  EpollDoorbell& doorbell() override { return tcp_->doorbell(); }
  void enter_call(const CallTag& tag, const WindowRef& output) override { tcp_->enter_call(tag, output); }
  void leave_call(const CallTag& tag, const std::optional<CallFailure>& failure) override {
    tcp_->leave_call(tag, failure);
  }
  PeerStatus peer_status(std::uint32_t peer) override;
  std::optional<CallTag> peer_call(std::uint32_t peer, std::uint64_t sequence) override {
    return tcp_->peer_call(peer, sequence);
  }
  std::optional<CallFailure> peer_failure(std::uint32_t peer, std::uint64_t sequence) override {
    return tcp_->peer_failure(peer, sequence);
  }
  bool peer_has_left(std::uint32_t peer, std::uint64_t sequence) override {
    return tcp_->peer_has_left(peer, sequence);
  }
  std::string peer_path(std::uint32_t peer) override { return path_->describe_path(peer); }
  std::string peer_trouble(std::uint32_t peer) override;
  std::string peer_loss(std::uint32_t peer) override { return tcp_->peer_loss(peer); }
  std::optional<std::byte*> peer_output(std::uint32_t, std::uint64_t, std::uint64_t) override { return nullptr; }
  WindowRef find_window(const void*, std::size_t) override { return {}; }
  Result<std::unique_ptr<Window>> allocate_window(std::size_t bytes) override { return tcp_->allocate_window(bytes); }
  Result<std::unique_ptr<Window>> adopt_window(void* data, std::size_t bytes) override {
    return tcp_->adopt_window(data, bytes);
  }
  MemoryReleaseCallback memory_release_callback() override { return path_->memory_release_callback(); }
  std::uint64_t send_completions() const { return path_->send_completions(); }  // as in DataPath
  void pump() override;
  bool flush() override;
  std::string troubles() override;
  // Of the connections for the handshake and for status boards, and of all connections to other peers.
  std::span<const std::optional<std::uint64_t>> count_retransmissions() override {
    return tcp_->count_retransmissions();
  }
  void announce_leave() override;
  void announce_abort() override { tcp_->announce_abort(); }

 private:
  explicit OffloadTransport(std::unique_ptr<TcpTransport> tcp);

  std::unique_ptr<TcpTransport> tcp_;
  HandshakeChannel handshake_channel_;
  std::unique_ptr<DataPath> path_;
  bool left_ = false;
  // Peers to or from which messages cannot pass any more, as this rank or the peer has found. They are reported as
  // kUnreachable even after they have left, because that failure is probably the reason why they left. Peers that are
  // lost or have aborted are reported as such.
  std::set<std::uint32_t> unreachable_;
};

}  // namespace tutti

// TcpTransport: connections over TCP between ranks of one machine or of several machines. See
// docs/decisions/0009-tcp.md.
//
// Thread-safety: see transport.h. Messages are in slots or delivered, never published or replied, because there is no
// memory that both ends can access. For the same reason windows are plain memory, and find_window() never finds them.
// If a rank has no address here, another transport serves it: peer_status() then reports kLive for it, and no
// connection may be opened to it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transports/tcp/endpoint.h"
#include "transports/tcp/links.h"
#include "transports/transport.h"

namespace tutti {

class TcpTransport final : public Transport {
 public:
  // `addresses`: the results of TcpEndpoint::address(), indexed by rank; empty for this rank and for ranks that
  // another transport serves. Errors: kRefused (an address is invalid), kSystem.
  static Result<std::unique_ptr<TcpTransport>> create(const TcpTransportOptions& options,
                                                      std::shared_ptr<TcpEndpoint> endpoint,
                                                      const std::vector<std::string>& addresses);
  ~TcpTransport() override;

  std::string_view name() const override { return "tcp"; }
  bool shares_memory() const override { return false; }
  std::uint32_t slots() const override { return links_->options().slots; }
  std::uint64_t slot_bytes() const override { return links_->options().slot_bytes; }
  std::uint32_t lanes() const override { return links_->options().lanes; }
  Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) override;
  Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) override;
  EpollDoorbell& doorbell() override { return links_->doorbell(); }
  void enter_call(const CallTag& tag, const WindowRef&) override { links_->pusher().enter(tag); }
  void leave_call(const CallTag& tag, const std::optional<CallFailure>& failure) override;
  PeerStatus peer_status(std::uint32_t peer) override { return links_->status(peer); }
  std::optional<CallTag> peer_call(std::uint32_t peer, std::uint64_t sequence) override;
  std::optional<CallFailure> peer_failure(std::uint32_t peer, std::uint64_t sequence) override;
  bool peer_has_left(std::uint32_t peer, std::uint64_t sequence) override;
  std::optional<std::byte*> peer_output(std::uint32_t, std::uint64_t, std::uint64_t) override { return nullptr; }
  WindowRef find_window(const void*, std::size_t) override { return {}; }
  Result<std::unique_ptr<Window>> allocate_window(std::size_t bytes) override;
  Result<std::unique_ptr<Window>> adopt_window(void* data, std::size_t bytes) override;
  void pump() override { links_->pump(); }
  bool flush() override { return links_->flush(); }
  void announce_leave() override { links_->send_close(); }
  void announce_abort() override { links_->pusher().abort(); }

  std::span<const std::optional<std::uint64_t>> count_retransmissions() override {
    return links_->count_retransmissions();
  }
  std::string troubles() override { return links_->troubles(); }
  std::string peer_trouble(std::uint32_t peer) override { return links_->tampering(peer); }
  std::string peer_loss(std::uint32_t peer) override { return links_->loss(peer); }
  // For transports that have data connections of their own, but use the status boards of this transport.
  TcpLinks& links() { return *links_; }

 private:
  explicit TcpTransport(std::shared_ptr<TcpLinks> links) : links_(std::move(links)) {}

  std::shared_ptr<TcpLinks> links_;  // shared with the connections, which may outlive the transport
};

}  // namespace tutti

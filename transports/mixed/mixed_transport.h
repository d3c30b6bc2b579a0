// MixedTransport: one communicator over two transports. It uses shared memory for the ranks that have a local index,
// normally those of this machine, and a network transport for all other ranks. Most functions about one peer are
// forwarded to the transport that serves the peer, and most other functions to both transports, or to the one that can
// answer. Thread-safety: see transport.h.
//
// Windows belong to the shared-memory transport, and local peers read them in place. A message that is published to a
// remote peer is sent over the network from the memory of the window.
//
// The rank sleeps in the doorbell of the network transport, which also watches the descriptors of a
// DescriptorDoorbell of the shared-memory transport. While the rank sleeps, the state of that DescriptorDoorbell
// shows local peers that they must wake the rank through a descriptor instead of a futex.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "transports/poll_doorbell.h"
#include "transports/shm/shm_transport.h"
#include "transports/transport.h"

namespace tutti {

struct MixedOptions {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  // Indexed by rank: the number of the rank in the shared-memory transport, or -1 if the rank is reached by the
  // network. The element of this rank itself must not be -1.
  std::vector<std::int32_t> local_index;
};

class MixedTransport final : public Transport {
 public:
  // `local` connects the ranks that have a local index. `remote` identifies its peers by rank, and is only used for the
  // other ranks. `remote_doorbell` is remote->doorbell(). Both transports must have the same slot_bytes(). Errors:
  // kSystem.
  static Result<std::unique_ptr<MixedTransport>> create(MixedOptions options, std::unique_ptr<ShmTransport> local,
                                                        std::unique_ptr<Transport> remote,
                                                        PollDoorbell& remote_doorbell);

  std::string_view name() const override { return name_; }
  std::uint32_t slots() const override;
  std::uint64_t slot_bytes() const override { return local_->slot_bytes(); }
  std::uint32_t lanes() const override;
  Result<std::unique_ptr<SendConnection>> open_send(std::uint32_t peer, std::uint16_t lane) override;
  Result<std::unique_ptr<ReceiveConnection>> open_receive(std::uint32_t peer, std::uint16_t lane) override;
  Doorbell& doorbell() override { return doorbell_; }
  void enter_call(const CallTag& tag, const WindowRef& output) override;
  void leave_call(const CallTag& tag, const std::optional<CallFailure>& failure) override;
  PeerStatus peer_status(std::uint32_t peer) override;
  std::optional<CallTag> peer_call(std::uint32_t peer, std::uint64_t sequence) override;
  std::optional<CallFailure> peer_failure(std::uint32_t peer, std::uint64_t sequence) override;
  bool peer_has_left(std::uint32_t peer, std::uint64_t sequence) override;
  std::optional<std::byte*> peer_output(std::uint32_t peer, std::uint64_t sequence, std::uint64_t bytes) override;
  WindowRef find_window(const void* data, std::size_t bytes) override { return local_->find_window(data, bytes); }
  Result<std::unique_ptr<Window>> allocate_window(std::size_t bytes) override;
  Result<std::unique_ptr<Window>> adopt_window(void* data, std::size_t bytes) override;
  void pump() override;
  bool flush() override;
  std::string troubles() override { return remote_->troubles(); }
  std::string peer_path(std::uint32_t peer) override {
    return options_.local_index[peer] < 0 ? remote_->peer_path(peer) : std::string();
  }
  std::string peer_trouble(std::uint32_t peer) override {
    return options_.local_index[peer] < 0 ? remote_->peer_trouble(peer) : std::string();
  }
  std::string peer_loss(std::uint32_t peer) override {
    return options_.local_index[peer] < 0 ? remote_->peer_loss(peer) : std::string();
  }
  // The remote transport identifies its peers by rank.
  std::span<const std::optional<std::uint64_t>> count_retransmissions() override {
    return remote_->count_retransmissions();
  }
  void announce_leave() override;
  void announce_abort() override;

 private:
  // Sleeps until the doorbell of either transport is rung, or until the timeout.
  class BothDoorbell final : public Doorbell {
   public:
    BothDoorbell(std::unique_ptr<DescriptorDoorbell> local, PollDoorbell& remote)
        : local_(std::move(local)), remote_(remote) {}
    void arm() override;
    void disarm() override;
    void sleep(std::int64_t timeout_ns) override;
    void ring() override { remote_.ring(); }

   private:
    std::unique_ptr<DescriptorDoorbell> local_;
    PollDoorbell& remote_;
  };
  // The transport that serves a peer.
  struct Route {
    Transport& transport;
    std::uint32_t peer;  // the number of the peer in that transport
  };

  MixedTransport(MixedOptions options, std::unique_ptr<ShmTransport> local, std::unique_ptr<Transport> remote,
                 std::unique_ptr<DescriptorDoorbell> local_doorbell, PollDoorbell& remote_doorbell);
  Route route(std::uint32_t peer) const;
  Result<std::unique_ptr<Window>> wrap_window(Result<std::unique_ptr<Window>> window);

  MixedOptions options_;
  std::string name_;
  std::unique_ptr<ShmTransport> local_;
  std::unique_ptr<Transport> remote_;
  BothDoorbell doorbell_;
};

}  // namespace tutti

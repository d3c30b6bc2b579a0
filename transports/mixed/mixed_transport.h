// MixedTransport: one communicator over two transports: shared memory to the ranks of this rank's machine, another one
// to all others. It decides nothing but the way: every function goes to the transport that serves the peer, or to both.
// Thread-safety as in transport.h.
//
// Memory is registered with the local transport only. A local peer reads it in place, to a remote one it is sent: a
// published message to a remote peer leaves from the window's memory.
//
// Sleeping: the rank sleeps in the remote transport's doorbell, which also watches the descriptors of the shared-memory
// poke bell; local peers see that the rank wants a poke instead of a futex.
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
  // By rank: its rank in the local transport, or -1 where it lives on another machine. This rank has one too.
  std::vector<std::int32_t> local_index;
};

class MixedTransport final : public Transport {
 public:
  // `local` connects the ranks with a local index; `remote` names its peers by rank and is asked for remote ones only.
  // `remote_doorbell` is remote->doorbell(). Both transports have the same slot_bytes(). Errors: kSystem.
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
  std::string peer_way(std::uint32_t peer) override {
    return options_.local_index[peer] < 0 ? remote_->peer_way(peer) : std::string();
  }
  std::string peer_trouble(std::uint32_t peer) override {
    return options_.local_index[peer] < 0 ? remote_->peer_trouble(peer) : std::string();
  }
  std::string peer_loss(std::uint32_t peer) override {
    return options_.local_index[peer] < 0 ? remote_->peer_loss(peer) : std::string();
  }
  void announce_leave() override;
  void announce_abort() override;

 private:
  // Sleeps for both.
  class BothDoorbell final : public Doorbell {
   public:
    BothDoorbell(std::unique_ptr<PokeBell> local, PollDoorbell& remote) : local_(std::move(local)), remote_(remote) {}
    void arm() override;
    void disarm() override;
    void sleep(std::int64_t timeout_ns) override;
    void ring() override { remote_.ring(); }

   private:
    std::unique_ptr<PokeBell> local_;
    PollDoorbell& remote_;
  };
  struct Route {
    Transport& transport;
    std::uint32_t peer;  // the peer's rank there
  };

  MixedTransport(MixedOptions options, std::unique_ptr<ShmTransport> local, std::unique_ptr<Transport> remote,
                 std::unique_ptr<PokeBell> bell, PollDoorbell& remote_doorbell);
  Route route(std::uint32_t peer) const;
  Result<std::unique_ptr<Window>> remembered(Result<std::unique_ptr<Window>> window);

  MixedOptions options_;
  std::string name_;
  std::unique_ptr<ShmTransport> local_;
  std::unique_ptr<Transport> remote_;
  BothDoorbell doorbell_;
};

}  // namespace tutti

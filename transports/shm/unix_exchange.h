// UnixExchange: passes memfd descriptors between the processes of one machine over Unix sockets (SOCK_SEQPACKET,
// abstract addresses: no file, nothing left behind). One socket per pair of ranks; its closing tells of a peer's death.
//
// Admission: the kernel's peer credentials must name this user, and the connecting rank must present the nonce that the
// listening rank published through the bootstrap. Everything received is length-checked.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transports/shm/exchange.h"

namespace tutti {

class UnixExchange final : public SegmentExchange {
 public:
  // Step 1: listen. address() then goes to all peers through the bootstrap.
  static Result<std::unique_ptr<UnixExchange>> listen(std::uint32_t rank, std::uint32_t ranks);
  // Opaque, printable, below 128 bytes.
  std::string address() const;
  // Step 2: connect to all lower ranks, accept all higher ones, share this rank's segment as number 0 and receive
  // theirs. Errors: kTimeout and kPeerLost name the ranks; kRefused: another user.
  Status connect(const std::vector<std::string>& addresses, const std::shared_ptr<Mapping>& segment, Clock& clock,
                 std::int64_t deadline_ns);

  ~UnixExchange() override;
  void share(std::uint32_t id, const std::shared_ptr<Mapping>& mapping) override;
  void unshare(std::uint32_t id) override;
  std::shared_ptr<Mapping> find(std::uint32_t peer, std::uint32_t id) override;
  void pump() override;
  bool peer_gone(std::uint32_t peer) override;

 private:
  struct Packet;   // what travels
  struct Notice {  // a packet still to be sent; the mapping keeps its descriptor open
    std::uint32_t operation;
    std::uint32_t id;
    std::shared_ptr<Mapping> mapping;
  };
  struct Peer {
    int socket = -1;
    int pidfd = -1;
    bool gone = false;
    std::deque<Notice> outbox;
    std::map<std::uint32_t, std::shared_ptr<Mapping>> mappings;
  };
  using Nonce = std::array<std::uint8_t, 16>;

  UnixExchange(std::uint32_t rank, std::uint32_t ranks) : rank_(rank), peers_(ranks) {}
  Status connect_to(std::uint32_t peer, const std::string& address);
  Status accept_one(std::uint32_t& accepted);
  Status wait_for_segments(Clock& clock, std::int64_t deadline_ns);
  void send_pending(Peer& peer);
  void receive_pending(Peer& peer);
  void pump_locked();
  void queue(const Notice& notice);

  std::uint32_t rank_;
  int listener_ = -1;
  std::string name_;  // abstract address without its leading zero
  Nonce nonce_{};
  std::mutex mutex_;  // guards peers_
  std::vector<Peer> peers_;
};

}  // namespace tutti

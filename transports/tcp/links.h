// TcpLinks: what a rank's connections and its transport share: the peers' addresses and fates, the doorbell, the
// boards, and the lists of connections that have something to send or may have died.
//
// Everything belongs to the thread that drives the rank's progress, except pusher(), which is thread-safe. Shared
// ownership: connections may outlive their transport.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transports/tcp/board.h"
#include "transports/tcp/endpoint.h"
#include "transports/tcp/epoll_doorbell.h"
#include "transports/tcp/wire.h"

namespace tutti {

struct TcpTransportOptions {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::uint64_t communicator = 0;  // agreed by all ranks, unique among those that their endpoints serve
  std::uint32_t slots = 4;         // messages that a connection holds in this process, beside what the kernel holds
  std::uint32_t slot_bytes = 128 * 1024;
  std::uint32_t lanes = 8;
  std::uint32_t socket_buffer_bytes = 0;  // 0: the kernel tunes them
  Clock* clock = nullptr;                 // null: the system's
};

// One end of a data connection, as TcpLinks sees it.
class TcpLink {
 public:
  TcpLink(std::uint32_t peer, bool outgoing) : peer_(peer), outgoing_(outgoing) {}
  virtual ~TcpLink() = default;
  std::uint32_t peer() const { return peer_; }
  bool outgoing() const { return outgoing_; }
  // Looks for the end of the connection and for a goodbye, and tells TcpLinks. Takes no payload.
  virtual void look() = 0;
  // What the peer has sent and its owner has not had yet; after kSome the connection's end has come, without a goodbye.
  enum class Unread : std::uint8_t { kNone, kSome, kMore };
  virtual Unread unread() const { return Unread::kNone; }
  // Sends what is left; true when nothing is.
  virtual bool push() { return true; }
  // Says goodbye where that can be said.
  virtual void say_goodbye(const FrameHeader& goodbye) = 0;
  // After that: closes. Nothing is sent or received from then on.
  virtual void end() = 0;

 private:
  friend class TcpLinks;
  bool dirty_ = false;  // in its list of those that have something to send
  const std::uint32_t peer_;
  const bool outgoing_;
};

class TcpLinks {
 public:
  static Result<std::shared_ptr<TcpLinks>> create(const TcpTransportOptions& options,
                                                  std::shared_ptr<TcpEndpoint> endpoint,
                                                  const std::vector<std::string>& addresses);

  const TcpTransportOptions& options() const { return options_; }
  EpollDoorbell& doorbell() { return *doorbell_; }
  StatePusher& pusher() { return *pusher_; }
  // False in a child that was forked: its copy must neither send nor say goodbye.
  bool own_process() const { return getpid() == process_; }
  bool reaches(std::uint32_t peer) const { return peer < addresses_.size() && addresses_[peer].has_value(); }

  // For the connections.
  Result<Socket> connect(std::uint32_t peer);
  Preamble preamble(std::uint32_t peer, std::uint16_t lane) const;
  void add(TcpLink& link);
  void remove(TcpLink& link);
  // The connection that `peer` has opened; a closed socket if it has not come.
  Socket claim(std::uint32_t peer, std::uint16_t lane);
  void keep_for_goodbye(Socket socket, const TcpLink& link);  // of a connection that was destroyed before the transport
  void mark_dirty(TcpLink& link) {
    if (!link.dirty_) dirty_.push_back(&link);
    link.dirty_ = true;
  }
  void note_call(std::uint32_t peer, const CallTag& tag) { peers_[peer].board.note_call(tag); }
  void note_reply(std::uint32_t peer, const Reply& reply);

  // For the transport.
  bool flush();
  void pump();
  PeerStatus status(std::uint32_t peer);
  PeerBoard& board(std::uint32_t peer) { return peers_[peer].board; }
  std::string troubles();
  void say_goodbye();

 private:
  struct Peer {
    PeerBoard board;
    bool goodbye = false;
    std::int64_t ended_since_ns = 0;  // when the first of its connections ended without a goodbye; 0: none has
    std::string trouble;              // why, in words
  };
  struct Orphan {  // the socket of a connection that was destroyed before its transport
    Socket socket;
    std::uint32_t peer = 0;
    bool outgoing = false;
    ReplyReader replies;
  };
  struct Waiting {
    Socket socket;
    bool ended = false;  // and its peer's fate is noted
  };
  using LaneKey = std::uint64_t;

  TcpLinks(const TcpTransportOptions& options, std::shared_ptr<TcpEndpoint> endpoint);
  static LaneKey key(std::uint32_t peer, std::uint16_t lane) { return LaneKey{peer} << 16 | lane; }
  void admit();
  void admit(AcceptedLink link);
  void look();
  void listen_to_boards();

  const pid_t process_;
  TcpTransportOptions options_;
  SteadyClock system_clock_;
  Clock& clock_;
  std::shared_ptr<TcpEndpoint> endpoint_;  // shared by all ranks and communicators of the process
  std::vector<std::optional<PeerAddress>> addresses_;
  std::unique_ptr<EpollDoorbell> doorbell_;
  std::unique_ptr<StatePusher> pusher_;
  std::shared_ptr<TcpMailbox> mailbox_;  // shared with the endpoint
  std::vector<Peer> peers_;
  std::map<LaneKey, Waiting> waiting_;  // admitted, and not claimed yet
  std::map<LaneKey, bool> claimed_;     // lanes that have had their connection
  std::vector<TcpLink*> links_;
  std::vector<TcpLink*> dirty_;
  std::vector<Orphan> orphans_;
  std::int64_t pumped_ns_ = 0;
};

}  // namespace tutti

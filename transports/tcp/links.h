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
#include "transports/tcp/peer_probe.h"
#include "transports/tcp/stream.h"
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

class TcpLink;

// The socket of a data connection. Shared by the sending and the receiving connection of a lane, either of which may
// end first, and by the lane.
struct LaneSocket {
  TcpStream socket;
  bool sender = false;        // a sending connection uses it, and it alone knows where a frame ends
  TcpLink* reader = nullptr;  // the receiving connection that reads it
  bool torn = false;          // a sending connection has ended within a frame: nothing may follow

  void end() { socket.end(); }
};

// What this rank's two connections of one (peer, lane) know of each other.
struct TcpLane {
  // The one that the lower rank has connected and both directions may use; null before it is there. Short messages that
  // go both ways on one socket acknowledge each other, which spares a packet for each.
  std::shared_ptr<LaneSocket> common;
};

// One end of a data connection, as TcpLinks sees it.
class TcpLink {
 public:
  explicit TcpLink(std::uint32_t peer) : peer_(peer) {}
  virtual ~TcpLink() = default;
  std::uint32_t peer() const { return peer_; }
  // Looks for the end of the connection and for a goodbye, and tells TcpLinks. Takes no payload.
  virtual void look() = 0;
  // What the peer has sent and its owner has not had yet; after kSome the connection's end has come, without a goodbye.
  enum class Unread : std::uint8_t { kNone, kSome, kMore };
  virtual Unread unread() const { return Unread::kNone; }
  // The peer would have to make the connection, and has not.
  virtual bool missing() const { return false; }
  // Sends what is left; true when nothing is.
  virtual bool push() { return true; }
  // Says goodbye where that can be said. False: it could not be yet.
  virtual bool say_goodbye(const FrameHeader& goodbye) = 0;
  // After that: closes. Nothing is sent or received from then on.
  virtual void end() = 0;

 private:
  friend class TcpLinks;
  bool dirty_ = false;  // in its list of those that have something to send
  bool told_ = false;   // it has said goodbye
  const std::uint32_t peer_;
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
  Preamble preamble(std::uint32_t peer, std::uint16_t lane) const;  // of one new connection
  Result<TcpStream> begin(Socket socket, const Preamble& preamble) const {
    return endpoint_->begin(std::move(socket), preamble);
  }
  void add(TcpLink& link);
  void remove(TcpLink& link);
  // The connection that `peer` has opened; a closed socket if it has not come.
  TcpStream claim(std::uint32_t peer, std::uint16_t lane);
  TcpLane& lane(std::uint32_t peer, std::uint16_t lane) { return lanes_[key(peer, lane)]; }  // stays where it is
  // Whether the connections that this rank makes to `peer` are those that both directions use.
  bool hosts(std::uint32_t peer) const { return options_.rank < peer; }
  // A socket that no connection uses any more: goodbye is said, and listened for, when the transport ends.
  struct Orphan {
    std::shared_ptr<LaneSocket> socket;
    std::uint32_t peer = 0;
    bool brings_answer = false;      // a frame at most; else it may bring data
    std::vector<std::byte> stashed;  // of the data, what was read
    ReplyReader replies;             // what was read of the answer
    bool told = false;               // goodbye was said
  };
  void keep_for_goodbye(Orphan orphan);
  void take_back(const LaneSocket& socket);  // it is used again
  void mark_dirty(TcpLink& link) {
    if (!link.dirty_) dirty_.push_back(&link);
    link.dirty_ = unsent_ = true;
  }
  // Before a rank looks for an answer: what it has queued since the last flush goes out first.
  void send_first() {
    if (unsent_) flush();
  }
  void note_call(std::uint32_t peer, const CallTag& tag) { peers_[peer].board.note_call(tag); }
  void note_reply(std::uint32_t peer, const Reply& reply);
  void note_answer(std::uint32_t peer, const Reply& reply);
  void note_deaf(std::uint32_t peer, const Reply& reply);

  // For the transport.
  bool flush();
  void pump();
  PeerStatus status(std::uint32_t peer);
  PeerBoard& board(std::uint32_t peer) { return peers_[peer].board; }
  std::string troubles();
  const std::string& tampering(std::uint32_t peer) const { return peers_[peer].tampering; }
  // Of a peer that is kLost: how its connection ended, if its process need not have ended; empty if it has.
  std::string loss(std::uint32_t peer) const;
  // Its connections have ended, and whether its process has is being found out.
  bool is_probing(std::uint32_t peer) const;
  void say_goodbye();

 private:
  struct Peer {
    PeerBoard board;
    bool goodbye = false;
    std::int64_t ended_since_ns = 0;   // when the first of its connections ended without a goodbye; 0: none has
    std::int64_t silent_since_ns = 0;  // a connection to it ended without an answer: perhaps before it was accepted
    std::int64_t deaf_since_ns = 0;    // it takes no state: it may also have ended well, and had no way to say so
    // The time at which this rank first saw that a receive link waits for a connection from the peer while no link to
    // the peer has a socket. 0 if that is not the case.
    std::int64_t absent_since_ns = 0;
    std::string trouble;             // why, in words
    std::string tampering;           // the same where it is no rank's doing
    bool refused = false;            // whoever listens at the peer's address has answered with a refusal
    std::optional<PeerProbe> probe;  // from the end of its connections on
    PeerProbe::Finding finding = PeerProbe::Finding::kNone;
  };
  struct Waiting {
    TcpStream socket;
    bool ended = false;  // and its peer's fate is noted
  };
  using LaneKey = std::uint64_t;

  TcpLinks(const TcpTransportOptions& options, std::shared_ptr<TcpEndpoint> endpoint);
  static LaneKey key(std::uint32_t peer, std::uint16_t lane) { return LaneKey{peer} << 16 | lane; }
  void admit();
  void admit(AcceptedLink link);
  void look();
  void listen_to_boards();
  void connect_to_absent(std::int64_t now_ns);
  void describe_end(std::uint32_t peer, const Reply& reply);
  bool tell_orphans(const FrameHeader& goodbye);
  bool tell_links(const FrameHeader& goodbye);
  bool misses(std::uint32_t peer) const;
  void judge(std::uint32_t peer, PeerStatus& status);

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
  std::map<LaneKey, TcpLane> lanes_;
  std::vector<TcpLink*> links_;
  std::vector<TcpLink*> dirty_;
  bool unsent_ = false;  // some of them have queued something that no flush has tried to send
  std::vector<Orphan> orphans_;
  std::int64_t pumped_ns_ = 0;
};

}  // namespace tutti

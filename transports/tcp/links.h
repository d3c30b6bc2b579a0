// TcpLinks: the state that a rank's connections and its transport share: addresses and states of the peers, the
// doorbell, the status boards, and the lists of connections that have something to send or may have ended.
//
// Everything belongs to the thread that drives the rank's progress, except pusher(), which is thread-safe, and ring()
// and watch() of the doorbell, which any thread may call. Ownership is shared, because connections may outlive their
// transport.
//
// TcpLinks has more than 40 methods and members. About a third of the methods are steps of pump(), status() and
// send_close(). They stay in one class, because pump() and send_close() pass over all the lists (links, waiting
// connections, orphaned sockets and boards): any of them can show that a peer has ended.
#pragma once

#include <unistd.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
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
  std::uint64_t communicator = 0;  // the same on all ranks; unique among the communicators that their endpoints serve
  std::uint32_t slots = 4;  // maximum number of messages that wait in a sending connection, besides those in the kernel
  std::uint32_t slot_bytes = 128 * 1024;
  std::uint32_t lanes = 8;
  std::uint32_t socket_buffer_bytes = 0;  // 0: the kernel chooses the size
  Clock* clock = nullptr;                 // null: the clock of the system
};

class TcpLink;

// The socket of a data connection. It can be shared by the lane and by the sending and the receiving connection of the
// lane, either of which may be destroyed first.
struct LaneSocket {
  TcpStream socket;
  bool sender = false;        // a sending connection uses this socket; only that connection can tell where a frame ends
  TcpLink* reader = nullptr;  // the receiving connection that reads this socket; null: none
  // A sending connection was destroyed before it had sent everything, perhaps in the middle of a frame. So nothing more
  // may be sent.
  bool torn = false;

  void end() { socket.end(); }
};

// The state that is shared by this rank's two connections of one (peer, lane).
struct TcpLane {
  // The socket that the lower rank has connected and that both directions may use; null if there is none. If short
  // messages in both directions use one socket, each also carries the TCP acknowledgment for the other direction, which
  // can save one packet for each message.
  std::shared_ptr<LaneSocket> common;
};

// One end of a data connection, as TcpLinks sees it.
class TcpLink {
 public:
  explicit TcpLink(std::uint32_t peer) : peer_(peer) {}
  virtual ~TcpLink() = default;
  std::uint32_t peer() const { return peer_; }
  // Checks whether the connection has ended or a close frame has arrived, and reports that to TcpLinks. May read ahead,
  // but consumes no payload.
  virtual void look() = 0;
  // Whether the owner of the connection must still read messages of the peer. kNone: there is no message that it has
  // not released, or the connection is not open, or its end was read. kSome: there is such a message, and look() has
  // found the end of the connection, so no more data can arrive. kMore: there is such a message, and more data may
  // arrive.
  enum class Unread : std::uint8_t { kNone, kSome, kMore };
  virtual Unread unread() const { return Unread::kNone; }
  // True if the peer must open this connection, and has not done so yet.
  virtual bool missing() const { return false; }
  // Sends the queued data. Returns true if none is left, or if nothing can be sent any more.
  virtual bool push() { return true; }
  // Sends the close frame if that is possible. Returns false if it must be tried again later.
  virtual bool send_close(const FrameHeader& close_frame) = 0;
  // The sockets of the connection, null if there are none. Two connections of one lane can share a socket.
  virtual std::array<LaneSocket*, 2> sockets() const = 0;
  // Closes the connection after the close frame. Nothing is sent or received afterwards.
  virtual void end() = 0;

 private:
  friend class TcpLinks;
  bool dirty_ = false;       // this link is in TcpLinks::dirty_, because it has something to send
  bool close_sent_ = false;  // send_close() has returned true, or has run out of memory; it is not called again
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
  // False in a forked child: its copy must send neither data nor close frames.
  bool own_process() const { return getpid() == process_; }
  bool reaches(std::uint32_t peer) const { return peer < addresses_.size() && addresses_[peer].has_value(); }

  // The following functions are for the connections.
  Result<Socket> connect(std::uint32_t peer);
  Preamble preamble(std::uint32_t peer, std::uint16_t lane) const;  // the preamble of a new connection
  Result<TcpStream> begin(Socket socket, const Preamble& preamble) const {
    return endpoint_->begin(std::move(socket), preamble);
  }
  void add(TcpLink& link);
  void remove(TcpLink& link);
  // Hands out the connection that `peer` has opened for this lane. Returns a closed socket if it has not arrived, if it
  // was claimed before, or after send_close().
  TcpStream claim(std::uint32_t peer, std::uint16_t lane);
  // Returns the shared state of the lane. The reference stays valid as long as this object exists.
  TcpLane& lane(std::uint32_t peer, std::uint16_t lane) { return lanes_[key(peer, lane)]; }
  // Whether this rank makes the common socket, which both directions may use. That is the case if it is the lower
  // rank.
  bool makes_common_socket(std::uint32_t peer) const { return options_.rank < peer; }
  // A socket that no connection uses any more. It is kept open until the peer ends it or sends a close frame or a
  // refusal, a connection uses it again (take_back()), or the transport is closed, because a close frame must be sent
  // on it, and one may arrive on it.
  struct Orphan {
    std::shared_ptr<LaneSocket> socket;
    std::uint32_t peer = 0;
    bool brings_answer = false;      // at most one frame can arrive on the socket; otherwise data can arrive
    std::vector<std::byte> stashed;  // if data can arrive: the data that was read but not used
    ReplyReader replies;             // if only one frame can arrive: the part that was already read
    bool close_sent = false;         // the close frame was sent on the socket, or cannot be sent
  };
  void keep_for_close(Orphan orphan);
  void take_back(const LaneSocket& socket);  // removes it from orphans_, because a connection uses it again
  void mark_dirty(TcpLink& link) {
    if (!link.dirty_) dirty_.push_back(&link);
    link.dirty_ = unsent_ = true;
  }
  // Calls flush() if data was queued since the last flush(). Call it before waiting for an answer, because the answer
  // may depend on the queued data.
  void send_first() {
    if (unsent_) flush();
  }
  void note_call(std::uint32_t peer, const CallTag& tag) { peers_[peer].board.note_call(tag); }
  void note_reply(std::uint32_t peer, const Reply& reply);
  void note_answer(std::uint32_t peer, const Reply& reply);
  void note_control_end(std::uint32_t peer, const Reply& reply);

  // The following functions are for the transport.
  bool flush();
  void pump();
  PeerStatus status(std::uint32_t peer);
  PeerBoard& board(std::uint32_t peer) { return peers_[peer].board; }
  std::string troubles();
  const std::string& tampering(std::uint32_t peer) const { return peers_[peer].tampering; }
  // For a kLost peer: how its connection ended, if that does not prove that its process has exited. Empty if this rank
  // has concluded that the process has exited.
  std::string loss(std::uint32_t peer) const;
  // True while a PeerProbe examines whether the process of the peer has exited, because connections to the peer have
  // ended or were not accepted.
  bool is_probing(std::uint32_t peer) const;
  // See Transport::count_retransmissions().
  std::span<const std::optional<std::uint64_t>> count_retransmissions();
  void send_close();

 private:
  struct Peer {
    PeerBoard board;
    bool close_received = false;
    // When note_reply() first recorded a refusal, invalid data, or an end without a close frame; 0: it has not. pump()
    // moves this time and the next two forward if pump() was not called for long.
    std::int64_t ended_since_ns = 0;
    // When a connection on which this rank sends messages to the peer first ended without a close frame, a refusal or a
    // sign of tampering, possibly before the peer accepted it; 0: none has.
    std::int64_t unanswered_since_ns = 0;
    // When the peer did not accept a control connection of this rank, or such a connection ended without a close frame
    // or a refusal and without an error of the network; 0: that has not happened. The peer may have left properly,
    // without a connection on which it could report that.
    std::int64_t rejects_since_ns = 0;
    // The time at which this rank first saw that a receive link waits for a connection from the peer while no link to
    // the peer has a socket. 0 if that is not the case.
    std::int64_t absent_since_ns = 0;
    std::string trouble;  // why connections to the peer ended or were refused, as text
    // Like `trouble`, but only for the causes that make the peer kUnreachable: a refusal other than Refusal::kNonce,
    // invalid data on a control connection, or an error for which is_tampering() is true.
    std::string tampering;
    bool refused = false;            // the process that listens at the address of the peer has refused a connection
    std::optional<PeerProbe> probe;  // created by classify_end() if it must find out whether the process has exited
    PeerProbe::Finding finding = PeerProbe::Finding::kNone;
  };
  // A connection of a peer that no receiving connection has claimed yet.
  struct Waiting {
    TcpStream socket;
    bool ended = false;  // the connection has ended, and that was recorded
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
  bool send_close_to_orphans(const FrameHeader& close_frame);
  bool send_close_to_links(const FrameHeader& close_frame);
  bool awaits_connection(std::uint32_t peer) const;
  void classify_end(std::uint32_t peer, PeerStatus& status);

  const pid_t process_;
  TcpTransportOptions options_;
  SteadyClock system_clock_;
  Clock& clock_;
  std::shared_ptr<TcpEndpoint> endpoint_;  // can be shared with other ranks and communicators of the process
  std::vector<std::optional<PeerAddress>> addresses_;
  std::unique_ptr<EpollDoorbell> doorbell_;
  std::unique_ptr<StatePusher> pusher_;
  std::shared_ptr<TcpMailbox> mailbox_;  // shared with the endpoint; null after the transport was closed
  std::vector<Peer> peers_;
  std::map<LaneKey, Waiting> waiting_;  // accepted, but not claimed yet
  std::map<LaneKey, bool> claimed_;     // lanes for which the connection was claimed
  std::map<LaneKey, TcpLane> lanes_;
  std::vector<TcpLink*> links_;
  std::vector<TcpLink*> dirty_;
  bool unsent_ = false;  // a link of dirty_ has queued data that no flush() has tried to send
  std::vector<Orphan> orphans_;
  std::vector<std::optional<std::uint64_t>> retransmissions_;  // result of the last count_retransmissions()
  std::int64_t pumped_ns_ = 0;
};

}  // namespace tutti

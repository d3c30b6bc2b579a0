// The status boards over TCP. There is no memory that all ranks can read, so each rank sends its state to its peers,
// and keeps a copy of the state of each peer.
//
// A rank sends its state on control connections, which it opens when they are needed. It sends the state immediately
// when a call fails or the rank aborts, and when it is still in a call kLateNs (board.cc) after its first wait in that
// call. It also sends the state of its call when a peer reports its own state, or when the calls of two ranks do not
// match. Apart from failures and aborts, it sends the state at most once during a call, and then once more at the end
// of that call. When the communicator is closed, it sends the state on the connections that are open. Other calls cause
// no such traffic. A rank that waits for a peer to which it has no connection opens a control connection as well,
// because only a connection shows that the process of the peer has exited.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transports/tcp/endpoint.h"
#include "transports/tcp/epoll_doorbell.h"
#include "transports/tcp/wire.h"
#include "transports/transport.h"

namespace tutti {

// Sends this rank's state on the control connections to its peers. Thread-safe.
class StatePusher {
 public:
  // A frame that `peer` has sent back on a control connection of this rank, or the end of that connection (kEnded).
  // kEnded is also returned if no process listens at the address of the peer.
  struct PeerEvent {
    std::uint32_t peer;
    Reply reply;
  };

  // `mine`: a preamble of this rank, from which the fields that are the same for all peers are used. `addresses`:
  // indexed by rank; empty for this rank and for ranks that are not reached by TCP.
  StatePusher(const Preamble& mine, std::vector<std::optional<PeerAddress>> addresses, TcpEndpoint& endpoint,
              EpollDoorbell& doorbell, Clock& clock);
  void enter(const CallTag& tag);
  void leave(const CallTag& tag, const std::optional<CallFailure>& failure);
  void abort();
  // Sends kLeft, or kAborted after abort(), on the open connections. Call it before the destructor.
  void send_close();
  // Sends the state of the current call if the state was not sent in this call yet, and if this function was first
  // called at least kLateNs ago in this call. Call it again and again while the rank waits.
  void push_if_late();
  void push_now();  // sends the state of the current call, unless it was already sent; no effect between calls
  bool flush();     // sends queued bytes; returns true if none are left, even if some connections could not be opened
  // Adds to `totals`, by rank, the segments that the kernel has sent again on the control connections since the last
  // call.
  void count_retransmissions(std::span<std::optional<std::uint64_t>> totals);
  std::vector<PeerEvent> take_events();  // the events since the last call
  StateRecord record() const;
  // Why the last attempt to open the connection to some peer failed. Empty if it failed for no peer, or if bytes were
  // sent since then on each connection for which it failed.
  std::string trouble() const;
  // Opens the control connection to `peer` if there is none. No effect if the last attempt to open it began less than
  // kRetryIntervalNs (board.cc) ago, or if the connection has ended for good. take_events() returns the end of the
  // connection. An end without a close frame or a refusal shows that the process of the peer has exited, unless the
  // network or a firewall has ended the connection.
  void connect(std::uint32_t peer);

 private:
  struct ControlConnection {  // the control connection of this rank to one peer
    TcpStream socket;
    ReplyReader replies;
    std::vector<std::byte> pending;
    std::size_t sent = 0;  // number of bytes at the start of `pending` that were sent
    bool begun = false;    // queued bytes were sent on this connection, so the peer may have received them
    // The state must be queued for the peer as soon as there is a connection and `pending` is not too long.
    bool state_due = false;
    std::int64_t retry_ns = 0;  // open() does not try to connect before this time
    // The connection has ended (and try_again() has not reset it), the peer has sent a frame (a close frame or a
    // refusal), or no process listens at the address of the peer. Nothing more is sent, and the connection is never
    // opened again.
    bool closed = false;
    // flush_with_limit() has waited in vain for as long as leave() may wait for this peer. It does not wait for this
    // peer again before the queue is empty.
    bool slow = false;
    std::string trouble{};  // why the last failed attempt to connect failed; cleared when bytes are sent
    // Segments that were sent again, including those of sockets that try_again() has closed, since the last
    // StatePusher::count_retransmissions(). Empty: there was no open socket since then.
    std::optional<std::uint64_t> uncounted_retransmissions{};
    std::optional<Reply> ended;  // the last frame or the end of the connection, until take_events() returns it

    void drop_queue() {
      pending.clear();
      sent = 0;
      slow = false;
    }
  };
  void push();
  bool append(ControlConnection& connection);
  bool send(std::uint32_t peer);
  bool open(std::uint32_t peer);
  void note_failure(std::uint32_t peer, int error);
  bool try_again(std::uint32_t peer, int error);
  bool flush_locked();
  void flush_with_limit(std::int64_t limit_ns, std::int32_t culprit);
  std::int64_t leave_limit_ns() const;

  const Preamble mine_;
  const std::vector<std::optional<PeerAddress>> addresses_;
  TcpEndpoint& endpoint_;
  EpollDoorbell& doorbell_;
  Clock& clock_;
  mutable std::mutex mutex_;  // guards all members below
  std::vector<ControlConnection> connections_;
  StateRecord record_;
  CallTag call_;
  bool inside_ = false;              // this rank has entered call_ and has not left it
  bool state_sent_ = false;          // the state was queued for the peers since this rank entered call_
  std::int64_t waits_since_ns_ = 0;  // time of the first push_if_late() in call_; 0: there was none yet
};

// The state of one peer, as the frames and messages of the peer have reported it. Belongs to the thread that drives
// progress.
class PeerBoard {
 public:
  void accept(TcpStream socket) {
    socket_ = std::move(socket);
    have_ = 0;  // the previous connection may have ended in the middle of a frame
  }
  bool connected() const { return socket_.is_open(); }
  TcpStream& socket() { return socket_; }
  // Reads the data that has arrived. Returns true if it contained the state of the peer. Sets `end` to kEnded if the
  // connection has ended, and to kInvalid if this function has closed it because of invalid data.
  bool receive(Reply& end);
  void note_call(const CallTag& tag);
  void note_progress(std::uint64_t entered, std::uint64_t left);
  void note_failure(std::uint64_t sequence, const CallFailure& failure) {
    failures_[sequence % kFailures] = {.sequence = sequence, .failure = failure};
  }
  const PeerStatus& status() const { return status_; }
  void set_left() { status_.life = status_.life == PeerLife::kAborted ? PeerLife::kAborted : PeerLife::kLeft; }
  std::optional<CallTag> call(std::uint64_t sequence) const;
  std::optional<CallFailure> failure(std::uint64_t sequence) const;

 private:
  static constexpr std::size_t kFrameBytes = kHeaderBytes + sizeof(StateRecord);
  // Number of calls for which tags are remembered. It is the same as kCallRecords, the number for boards in shared
  // memory.
  static constexpr std::size_t kCalls = 2 * kMailboxes;
  static constexpr std::size_t kFailures = 8;
  struct Failure {
    std::uint64_t sequence = 0;
    CallFailure failure;
  };
  bool take(const FrameHeader& header, const StateRecord& record);

  TcpStream socket_;
  std::array<std::byte, 16 * kFrameBytes> bytes_{};
  std::size_t have_ = 0;
  PeerStatus status_{.is_sent = true};
  std::array<CallTag, kCalls> calls_{};        // indexed by sequence number modulo the array size
  std::array<Failure, kFailures> failures_{};  // indexed by sequence number modulo the array size
};

}  // namespace tutti

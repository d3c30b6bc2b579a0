// The status boards over TCP. There is no memory that all can see, so a rank tells its peers of itself, on control
// connections that are opened when there is something to tell: at once when it fails a call or aborts, and once when a
// call has lasted for kLateNs. Calls that go well say nothing. A rank that waits for a peer to which it has no
// connection opens one as well, because only a connection shows that the peer's process has ended.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transports/tcp/endpoint.h"
#include "transports/tcp/epoll_doorbell.h"
#include "transports/tcp/wire.h"
#include "transports/transport.h"

namespace tutti {

// This rank's own state, and the control connections to its peers. Thread-safe.
class StatePusher {
 public:
  struct News {
    std::uint32_t peer;
    Reply reply;
  };

  // `mine`: what all preambles of this rank have in common. Addresses by rank; nothing for those not reached by TCP.
  StatePusher(const Preamble& mine, std::vector<std::optional<PeerAddress>> addresses, TcpEndpoint& endpoint,
              EpollDoorbell& bell, Clock& clock);
  void enter(const CallTag& tag);
  void leave(const CallTag& tag, const std::optional<CallFailure>& failure);
  void abort();
  void goodbye();            // on the connections that exist; before the end
  void push_if_late();       // the call's state, once, when it has lasted for long
  void push_now();           // the call's state, unless it was told already
  bool flush();              // true when nothing is queued any more
  std::vector<News> news();  // what peers said or did on our connections since the last time
  StateRecord record() const;
  std::string trouble() const;  // why a peer could not be told; empty: all could
  // Opens the control connection to `peer` if there was none yet. Its end then shows that the peer's process has ended.
  void connect(std::uint32_t peer);

 private:
  struct Line {  // to one peer
    TcpStream socket;
    ReplyReader replies;
    std::vector<std::byte> pending;
    std::size_t sent = 0;        // of `pending`
    bool begun = false;          // the peer may have got something on this connection
    bool owes = false;           // the peer is to be told the state, once there is a connection
    std::int64_t again_ns = 0;   // no other try before this time
    bool closed = false;         // the connection has ended, or nobody listens there: never tried again
    std::string trouble{};       // why there was no connection at the last try; empty: there was
    std::optional<Reply> ended;  // for news()
  };
  void push();
  void append(Line& line);
  bool send(std::uint32_t peer);
  bool open(std::uint32_t peer);
  void note_failure(std::uint32_t peer, int error);
  bool try_again(std::uint32_t peer, int error);
  bool flush_locked();
  void settle();

  const Preamble mine_;
  const std::vector<std::optional<PeerAddress>> addresses_;
  TcpEndpoint& endpoint_;
  EpollDoorbell& bell_;
  Clock& clock_;
  mutable std::mutex mutex_;  // guards all below
  std::vector<Line> lines_;
  StateRecord record_;
  CallTag call_;
  bool inside_ = false;              // of call_
  bool told_ = false;                // ... whose state the peers have been told
  std::int64_t waits_since_ns_ = 0;  // when push_if_late() first saw call_; 0: not yet
};

// What one peer has told of itself. Belongs to the thread that drives progress.
class PeerBoard {
 public:
  void accept(TcpStream socket) { socket_ = std::move(socket); }
  bool connected() const { return socket_.is_open(); }
  TcpStream& socket() { return socket_; }
  // Reads what has come. True if that was anything. `ended` is set when the connection is over.
  bool receive(bool& ended);
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
  static constexpr std::size_t kCalls = 2 * kMailboxes;  // remembered, as on the boards in shared memory
  static constexpr std::size_t kFailures = 8;
  struct Failure {
    std::uint64_t sequence = 0;
    CallFailure failure;
  };
  bool take(const FrameHeader& header, const StateRecord& record);

  TcpStream socket_;
  std::array<std::byte, 16 * kFrameBytes> bytes_{};
  std::size_t have_ = 0;
  PeerStatus status_;
  std::array<CallTag, kCalls> calls_{};        // by sequence number modulo their count
  std::array<Failure, kFailures> failures_{};  // likewise
};

}  // namespace tutti

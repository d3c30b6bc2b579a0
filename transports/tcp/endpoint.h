// TcpEndpoint: a TCP listener. Several ranks (threads) and communicators of one process can share it.
//
// It has no thread of its own. A rank that waits calls service(), which accepts connections and reads their preambles.
// An accepted connection is put into the mailbox (TcpMailbox) of the communicator and rank that its preamble names. If
// that mailbox is one of the last kMaxClosedMailboxes (endpoint.cc) that were detached, the connection gets a close
// frame and is closed. If that mailbox is neither attached nor one of these, the connection is parked until the mailbox
// is attached.
//
// A connection is refused, for example, if its preamble does not prove that the sender has the key of the job, or if it
// is a copy of an earlier connection; Refusal (wire.h) lists the reasons. Refusals are counted (see refusals()), and do
// not delay any rank. The numbers of connections with an incomplete preamble and of parked connections are limited: see
// the constants in endpoint.cc and TcpEndpointOptions.
//
// Thread-safe. Sleeping ranks watch wait_fd(). It normally becomes readable when a new connection, or data of a
// preamble or of a handshake, has arrived, and stays readable until service() has handled it. While accepting is
// paused, new connections do not make it readable.
//
// TcpEndpoint has more than 40 methods and members, because a new connection passes through all its queues (preamble,
// handshake, mailbox or parked) under one mutex.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/crypto/hmac.h"
#include "base/wait.h"
#include "transports/tcp/stream.h"
#include "transports/tcp/wire.h"

namespace tutti {

struct TcpEndpointOptions {
  std::string address;  // numeric IPv4 or IPv6 address that peers can reach; not a wildcard
  // The endpoint listens on the first free port from first_port to last_port. If both are 0, it listens on any free
  // port.
  std::uint16_t first_port = 0;
  std::uint16_t last_port = 0;
  Key key{};               // known only to the ranks of the job; must not be all zeros
  Clock* clock = nullptr;  // null: the clock of the system
  // A new connection is refused if its preamble has not arrived after this time, which begins again if service() was
  // not called for half of this time. It can be refused earlier if too many others arrive.
  std::int64_t preamble_timeout_ns = 5'000'000'000;
  // A connection is refused if its TLS handshake is not complete after this time, which, too, begins again if service()
  // was not called for half of preamble_timeout_ns. The time is long, because a rank continues its handshakes only
  // while it is in a call, and may do something else between two calls.
  std::int64_t handshake_timeout_ns = 600'000'000'000;
  // Maximum number of connections with an incomplete preamble or TLS handshake. If it is reached, no connections are
  // accepted until there are fewer.
  std::uint32_t most_handshakes = 4096;
  // Maximum number of connections for communicators that do not exist in this process yet.
  std::uint32_t most_parked = 4096;
  bool encrypt = false;  // encrypt all connections with TLS; must be the same on all ranks
};

// A connection and its preamble. The preamble was accepted, except if the connection is about to be refused.
struct AcceptedLink {
  Preamble preamble;
  // With TLS: the handshake is complete, or it has failed and socket.over() is true. Exceptions are the elements of
  // TcpEndpoint::handshakes_, and connections that are about to be refused.
  TcpStream socket;
};

// Accepted connections for one rank of one communicator that the rank has not taken yet. The mutex of the endpoint
// guards `links`.
struct TcpMailbox {
  TcpMailbox(std::uint64_t id, std::uint32_t owner, Doorbell& doorbell)
      : communicator(id), rank(owner), owner_doorbell(doorbell) {}
  const std::uint64_t communicator;
  const std::uint32_t rank;
  Doorbell& owner_doorbell;  // the doorbell of the rank; rung when a connection is added
  std::vector<AcceptedLink> links;
  std::atomic<bool> filled = false;  // true if there may be links, so that checking an empty mailbox needs no lock
};

class TcpEndpoint {
 public:
  // Errors: kConfig (the address is invalid or a wildcard, the range of ports is empty, or there is no TLS library),
  // kSystem (this machine does not have the address, no port of the range is free, or a system call failed, for example
  // for lack of descriptors).
  static Result<std::shared_ptr<TcpEndpoint>> listen(const TcpEndpointOptions& options);
  ~TcpEndpoint();
  TcpEndpoint(const TcpEndpoint&) = delete;
  TcpEndpoint& operator=(const TcpEndpoint&) = delete;

  // For PeerAddress::parse() of the peers; shorter than 128 bytes.
  std::string address() const { return address_.text(); }

  // Creates the mailbox of a rank; call it once for each (communicator, rank). Connections that were parked for it
  // are put into the mailbox at once. `owner_doorbell` must outlive the mailbox.
  std::shared_ptr<TcpMailbox> attach(std::uint64_t communicator, std::uint32_t rank, Doorbell& owner_doorbell);
  // Removes the mailbox when the rank closes its communicator. Connections for it that arrive later, or that the rank
  // has not taken, receive `close_frame`. The endpoint keeps the close frames of the last kMaxClosedMailboxes
  // mailboxes.
  void detach(const TcpMailbox& mailbox, const FrameHeader& close_frame);
  // Removes and returns the connections in the mailbox.
  std::vector<AcceptedLink> take(TcpMailbox& mailbox);

  // Fills in the fields that prove the identity of this endpoint, so that the receiver accepts the preamble, but only
  // once. All other fields must be set before, including the nonce of the receiver, because the proof covers them.
  void sign(Preamble& preamble);
  bool encrypts() const { return options_.encrypt; }
  // Returns the stream of a new connection for which sign() has completed `preamble`. Without TLS, the caller must
  // send the preamble first; with TLS, the stream sends it. Errors: kSystem if the TLS library cannot create a
  // session.
  Result<TcpStream> begin(Socket socket, const Preamble& preamble) const;

  void service();  // accepts connections, reads the preambles and handshakes that have arrived; does not wait for data
  int wait_fd() const { return epoll_.get(); }
  // Sends `refusal` to the other end, counts it, and closes the connection.
  void refuse(AcceptedLink link, Refusal refusal);

  struct Refusals {
    std::uint64_t count = 0;
    std::string last;     // the last refusal, for example "10.0.0.7:4711: it speaks another protocol"; empty: none
    std::string trouble;  // why the last accept() failed for lack of a resource; empty after one that has succeeded
  };
  Refusals refusals();

 private:
  using MailboxKey = std::pair<std::uint64_t, std::uint32_t>;  // (communicator, rank)
  struct PendingPreamble {  // a new connection until its preamble has arrived completely
    Socket socket;
    std::array<std::byte, sizeof(Preamble)> bytes{};
    std::size_t have = 0;
    std::int64_t since_ns = 0;
  };
  struct PendingHandshake {  // a connection with a valid preamble until its TLS handshake is complete
    AcceptedLink link;
    std::int64_t since_ns = 0;
  };
  // A mailbox that was detached, and the close frame for peers that connect to it later.
  struct ClosedMailbox {
    MailboxKey key;
    FrameHeader close_frame;
  };

  // Records the serial numbers of the connections that have arrived from one endpoint, to detect copies. Connections
  // may arrive in any order, so it remembers which of the kWindow numbers up to the highest one were seen. An older
  // number counts as a copy.
  struct SeenSerials {
    static constexpr std::size_t kWindow = 1024;
    std::uint64_t highest = 0;
    std::bitset<kWindow> seen;  // indexed by serial modulo kWindow
    bool first_time(std::uint64_t serial);
  };

  explicit TcpEndpoint(const TcpEndpointOptions& options);
  Status watch(int fd);
  void accept_some(std::int64_t now_ns);
  void poll_unwatched();
  void read_preamble(int fd);
  Refusal check_preamble(const Preamble& preamble);
  bool evict_oldest(std::int64_t now_ns);
  void pause_accepting(std::int64_t now_ns);
  void evict(std::int64_t now_ns);
  void evict_handshakes(std::int64_t now_ns);
  void route(AcceptedLink link);
  void park(AcceptedLink link);
  void refuse_locked(AcceptedLink link, Refusal refusal);
  void handle_authenticated(const Preamble& preamble, Socket socket);
  void advance_handshake(int fd);
  const ClosedMailbox* closed_mailbox_of(const Preamble& preamble) const;
  void answer(const Preamble& preamble, const Socket& socket, const FrameHeader& frame) const;

  TcpEndpointOptions options_;
  SteadyClock system_clock_;
  Clock& clock_;
  PeerAddress address_;
  Socket epoll_;  // watches the listener, the pending preambles and the handshakes
  Socket listener_;
  mutable std::mutex mutex_;  // guards the members below, up to seen_serials_
  std::map<int, PendingPreamble> pending_preambles_;
  std::map<int, PendingHandshake> handshakes_;
  std::vector<int> unwatched_;  // descriptors that epoll_ctl() refused to watch; some may have left the two maps above
  std::map<MailboxKey, std::weak_ptr<TcpMailbox>> mailboxes_;
  std::deque<AcceptedLink> parked_;
  std::deque<ClosedMailbox> closed_mailboxes_;
  std::int64_t serviced_ns_ = 0;      // time of the last call of service()
  std::int64_t accept_again_ns_ = 0;  // 0: connections are accepted; otherwise the time at which accepting resumes
  Refusals refusals_;
  // Indexed by Preamble::source; has elements only for senders with the key.
  std::map<std::uint64_t, SeenSerials> seen_serials_;
  std::uint64_t source_ = 0;  // random number that identifies this endpoint
  std::mutex signing_;        // guards serials_; never held together with mutex_
  // For each listener, by its nonce: serial number of the last connection to it.
  std::map<WireNonce, std::uint64_t> serials_;
};

}  // namespace tutti

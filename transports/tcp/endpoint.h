// TcpEndpoint: the one TCP listener of a process, shared by all its ranks (threads) and communicators.
//
// It has no thread of its own: whoever waits for a connection calls service(), which admits what has arrived. Admitted
// connections lie in the mailbox of their communicator and rank, or are parked until that mailbox is attached.
// Who does not show that it has the job's key is refused, counted and remembered (refusals()), and costs nobody a wait;
// so is a copy of an earlier connection. Everything is bounded, see the constants.
//
// Thread-safe. Ranks that sleep watch wait_fd(), which stays readable until somebody has called service().
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
#include "base/hmac.h"
#include "base/wait.h"
#include "transports/tcp/stream.h"
#include "transports/tcp/wire.h"

namespace tutti {

struct TcpEndpointOptions {
  std::string address;           // numeric IPv4 or IPv6, one that peers can reach: no wildcard
  std::uint16_t first_port = 0;  // 0, 0: any free port; else the first free one of first_port..last_port
  std::uint16_t last_port = 0;
  Key key{};                                 // all ranks of the job have it, and nobody else; not all zeros
  Clock* clock = nullptr;                    // null: the system's
  std::int64_t patience_ns = 5'000'000'000;  // for a connection that has not said yet who it is
  std::uint32_t most_parked = 4096;          // connections to communicators that do not exist here yet
  bool encrypt = false;                      // all connections, by TLS; on all ranks or on none
};

struct AcceptedLink {
  Preamble preamble;
  TcpStream socket;  // by TLS: its session is set up, or has failed, which the stream tells
};

// Connections to one rank of one communicator that it has not taken yet. The endpoint's mutex guards `links`.
struct TcpMailbox {
  TcpMailbox(std::uint64_t id, std::uint32_t owner, Doorbell& doorbell)
      : communicator(id), rank(owner), bell(doorbell) {}
  const std::uint64_t communicator;
  const std::uint32_t rank;
  Doorbell& bell;  // rung when something was put in
  std::vector<AcceptedLink> links;
  std::atomic<bool> filled = false;  // a hint that spares an empty mailbox the lock
};

class TcpEndpoint {
 public:
  // Errors: kConfig (address, no TLS library), kSystem (no free port in the range, no descriptors).
  static Result<std::shared_ptr<TcpEndpoint>> listen(const TcpEndpointOptions& options);
  ~TcpEndpoint();
  TcpEndpoint(const TcpEndpoint&) = delete;
  TcpEndpoint& operator=(const TcpEndpoint&) = delete;

  std::string address() const { return address_.text(); }  // for the peers: opaque, printable, under 128 bytes

  // Once per (communicator, rank). What was parked for it is in the mailbox at once.
  std::shared_ptr<TcpMailbox> attach(std::uint64_t communicator, std::uint32_t rank, Doorbell& bell);
  // The rank destroys its communicator: who connects later is told so, by that frame.
  void detach(const TcpMailbox& mailbox, const FrameHeader& goodbye);
  std::vector<AcceptedLink> take(TcpMailbox& mailbox);

  // Makes the preamble of a new connection from here one that its receiver, whose nonce it has, lets in, once.
  void sign(Preamble& preamble);
  bool encrypts() const { return options_.encrypt; }
  // A new connection from here, with a signed preamble, which in clear the caller sends first; by TLS it is inside.
  // kSystem where the TLS library makes no connection.
  Result<TcpStream> begin(Socket socket, const Preamble& preamble) const;

  void service();  // admits what has arrived; never blocks
  int wait_fd() const { return epoll_.get(); }
  void refuse(AcceptedLink link, Refusal refusal);  // tells the other end why, counts it, closes

  struct Refusals {
    std::uint64_t count = 0;
    std::string last;     // "10.0.0.7:4711: it speaks another protocol"; empty: none
    std::string trouble;  // why connections cannot be accepted at the moment; empty: they can
  };
  Refusals refusals();

 private:
  using Place = std::pair<std::uint64_t, std::uint32_t>;  // communicator, rank
  struct Greeting {                                       // a connection whose preamble is not complete
    Socket socket;
    std::array<std::byte, sizeof(Preamble)> bytes{};
    std::size_t have = 0;
    std::int64_t since_ns = 0;
  };
  struct Departure {
    Place key;
    FrameHeader goodbye;
  };

  // Which of an endpoint's connections have come, of the last kWindow that it has made. They may come in any order.
  struct Come {
    static constexpr std::size_t kWindow = 1024;
    std::uint64_t highest = 0;
    std::bitset<kWindow> seen;  // by serial modulo kWindow
    bool first_time(std::uint64_t serial);
  };

  explicit TcpEndpoint(const TcpEndpointOptions& options);
  Status watch(int fd);
  void accept_some(std::int64_t now_ns);
  void look_at_unwatched();
  void greet(int fd);
  Refusal fault_of(const Preamble& preamble);
  bool evict_oldest(std::int64_t now_ns);
  void pause_accepting(std::int64_t now_ns);
  void evict(std::int64_t now_ns);
  void route(AcceptedLink link);
  void park(AcceptedLink link);
  void refuse_locked(AcceptedLink link, Refusal refusal);
  void welcome(const Preamble& preamble, Socket socket);
  void shake(int fd);
  const Departure* departure_of(const Preamble& preamble) const;
  void answer(const Preamble& preamble, const Socket& socket, const FrameHeader& frame) const;

  TcpEndpointOptions options_;
  SteadyClock system_clock_;
  Clock& clock_;
  PeerAddress address_;
  Socket epoll_;  // watches the listener and the greetings
  Socket listener_;
  mutable std::mutex mutex_;  // guards all below
  std::map<int, Greeting> greetings_;
  std::map<int, AcceptedLink> shaking_;  // who has shown the key, and whose TLS session is not set up yet
  std::vector<int> unwatched_;           // of both, those that epoll_ctl() refused
  std::map<Place, std::weak_ptr<TcpMailbox>> mailboxes_;
  std::deque<AcceptedLink> parked_;
  std::deque<Departure> departures_;
  std::int64_t serviced_ns_ = 0;      // when service() was called last
  std::int64_t accept_again_ns_ = 0;  // 0: accepting; else the time until which the listener is left alone
  Refusals refusals_;
  std::map<std::uint64_t, Come> come_;          // by source; only who has the key adds one
  std::uint64_t source_ = 0;                    // random: this endpoint
  std::mutex signing_;                          // guards the following; never held with mutex_
  std::map<WireNonce, std::uint64_t> serials_;  // of the last connection to each listener
};

}  // namespace tutti

// RendezvousServer: where all ranks of one communicator meet during set-up. It listens, lets in who has the job's key
// (bootstrap_wire.h), and relays the rounds of Bootstrap::all_gather until every rank has left. It is no rank itself:
// rank 0's process runs it, or the one that made a unique id.
//
// Strangers, ranks of other jobs, keys, protocols or versions and second copies of a rank are refused with a reason
// while the wait for the real ones goes on. Before it has proved that it has the key, a connection gets some hundred
// bytes of memory, `hello_patience_ms`, and one of kMaxStrangers places: where all are taken, the oldest makes room, so
// that silent connections in any number keep nobody out. A rank that has joined and whose connection ends, or that
// gives up, ends the set-up: all others are told who at once.
//
// A server has one thread, which owns all of its state; start(), detach() and the destructor may be called by any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/job_key.h"
#include "tutti/result.h"

namespace tutti {

// A listening TCP socket; closed when it goes.
class Listener {
 public:
  // The first of `ports` that is free on the numeric `address`; port 0: any. Errors: kConfig (no address, or the
  // wildcard), kSystem.
  static Result<Listener> open(const std::string& address, std::span<const std::uint16_t> ports);
  // An own copy of the descriptor of a TCP socket that is bound to `port` (0: to any); it listens from now on.
  // Errors: kConfig.
  static Result<Listener> inherit(int fd, std::uint16_t port = 0);
  // One listener for each of the numeric `addresses` that can be listened on, all on the same port: the first of
  // `ports` that is free on all of these addresses, or else on most of them. Errors: that of the first address, if
  // there is none to listen on.
  static Result<std::vector<Listener>> open_all(const std::vector<std::string>& addresses,
                                                std::span<const std::uint16_t> ports);
  // The inherited socket or, if a program between the launcher and this one has closed it, one that open() makes. That
  // works although the launcher still holds the port, because its socket is bound but does not listen. A socket with
  // another port than `port` is one that the program has opened under the same number. Errors: those of open() and of
  // inherit(), in one message.
  static Result<Listener> inherit_or_open(int fd, std::uint16_t port, const std::string& address,
                                          std::span<const std::uint16_t> ports);

  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&& other) noexcept;
  ~Listener();

  const std::string& address() const { return address_; }  // numeric; loopback where it listens on all
  std::uint16_t port() const { return port_; }
  bool is_v6() const { return is_v6_; }
  int release();  // the descriptor is the caller's from now on

 private:
  explicit Listener(int fd) : fd_(fd) {}
  Status find_address();

  int fd_;
  bool is_v6_ = false;
  std::uint16_t port_ = 0;
  std::string address_;
};

struct RendezvousServerOptions {
  std::string job_id;
  JobKey key;
  std::optional<std::int32_t> size;       // nothing: what the first rank says
  std::int64_t first_patience_ms = 0;     // how long to wait for a first rank; from then on, for its own deadline
  std::int64_t hello_patience_ms = 3000;  // for the whole handshake
};

class RendezvousServer {
 public:
  // With at least one listener. Errors: kSystem.
  static Result<std::unique_ptr<RendezvousServer>> start(std::vector<Listener> listeners,
                                                         const RendezvousServerOptions& options);
  static Result<std::unique_ptr<RendezvousServer>> start(Listener listener, const RendezvousServerOptions& options);
  // Ends the server. Ranks that are still connected get at most 2 s to take what was sent to them. The destructor waits
  // for that, because the process may end soon. After set_succeeded() it waits for 0.1 s and leaves the rest to the
  // server's thread, so that a slow rank does not hold up the owner, unless the set-up has failed for another rank.
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  // Lets the server run on by itself: its thread ends after the set-up, after a failed one, or when the patience is
  // over.
  static void detach(std::unique_ptr<RendezvousServer> server);

  // The owner's set-up has succeeded.
  void set_succeeded();

  // Why the server cannot accept connections at the moment, as an errno: no descriptor is free, for example. 0: it can.
  int shortage() const;

 private:
  class Core;
  explicit RendezvousServer(std::shared_ptr<Core> core);  // without a thread
  std::shared_ptr<Core> core_;                            // shared with the thread, which may outlive a detached server
  std::thread thread_;
};

}  // namespace tutti

// RendezvousServer: all ranks of one communicator meet at this server during set-up. It listens, admits ranks that
// have the job's key (bootstrap_wire.h), and relays the rounds of Bootstrap::all_gather() until every rank has
// left. The server is not a rank. It runs in the process of rank 0, or in the process that made a unique id.
//
// Unrelated clients, ranks of other jobs, wrong keys, protocols or versions, and second copies of a rank are
// refused with a reason, while the server keeps waiting for the real ranks. A connection that has not yet proved
// that it has the key gets some hundred bytes of memory, `handshake_wait_ms`, and one of kMaxUnauthenticated
// places. If all places are taken, the oldest such connection is closed, so that any number of silent connections
// cannot keep the ranks out. If a rank has joined and then its connection ends or it gives up, the set-up fails,
// and all other ranks are notified at once which rank it was.
//
// A server has one thread, which owns all of its state. Any thread may call start(), detach() and the destructor.
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

// A listening TCP socket. The destructor closes it.
class Listener {
 public:
  // Listens on the numeric `address` and the first of `ports` that is free. Port 0 stands for any port. Errors:
  // kConfig (not an address, or a wildcard address), kSystem.
  static Result<Listener> open(const std::string& address, std::span<const std::uint16_t> ports);
  // Duplicates the descriptor of a TCP socket that is bound to `port` (0: to any port), and makes it listen.
  // Errors: kConfig.
  static Result<Listener> inherit(int fd, std::uint16_t port = 0);
  // Creates one listener for each of the numeric `addresses` that belongs to this machine. All use the same port:
  // the first of `ports` that is free on all of these addresses, or else the port that is free on the most of them.
  // If no listener can be created, returns the error of the first address.
  static Result<std::vector<Listener>> open_all(const std::vector<std::string>& addresses,
                                                std::span<const std::uint16_t> ports);
  // Uses the inherited socket or, if a program between the launcher and this one has closed it, a socket that
  // open() creates. That works although the launcher still holds the port, because the launcher's socket is bound
  // but does not listen. If the descriptor is bound to another port than `port`, the program has opened another
  // socket under the same number. Errors: those of open() and inherit(), in one message.
  static Result<Listener> inherit_or_open(int fd, std::uint16_t port, const std::string& address,
                                          std::span<const std::uint16_t> ports);

  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&& other) noexcept;
  ~Listener();

  const std::string& address() const { return address_; }  // numeric; loopback if it listens on all addresses
  std::uint16_t port() const { return port_; }
  bool is_v6() const { return is_v6_; }
  int release();  // the caller owns the descriptor from now on

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
  std::optional<std::int32_t> size;  // if empty, the size that the first rank reports
  // How long to wait for the first rank. After that, the deadline of the first rank applies.
  std::int64_t first_wait_ms = 0;
  // Time limit for the whole handshake with one rank.
  std::int64_t handshake_wait_ms = 3000;
};

class RendezvousServer {
 public:
  // Needs at least one listener. Errors: kSystem.
  static Result<std::unique_ptr<RendezvousServer>> start(std::vector<Listener> listeners,
                                                         const RendezvousServerOptions& options);
  static Result<std::unique_ptr<RendezvousServer>> start(Listener listener, const RendezvousServerOptions& options);
  // Stops the server. Ranks that are still connected get at most 2 s to receive the data that was sent to them. The
  // destructor waits for that, because the process may exit soon. After set_succeeded() it waits only 0.1 s and
  // leaves the rest to the server's thread, so that a slow rank does not hold up the owner. If the set-up has
  // failed for another rank, it waits for the full time.
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  // Lets the server run without an owner. Its thread ends after the set-up, after a failed set-up, or when the
  // timeout for the first rank is over.
  static void detach(std::unique_ptr<RendezvousServer> server);

  // Call this when the owner's set-up has succeeded.
  void set_succeeded();

  // Returns the reason why the server cannot accept connections at the moment, as an errno value, for example if no
  // descriptor is free. Returns 0 if it can accept.
  int shortage() const;

 private:
  class Core;
  explicit RendezvousServer(std::shared_ptr<Core> core);  // does not start the thread
  // Shared with the thread, which may outlive a detached server.
  std::shared_ptr<Core> core_;
  std::thread thread_;
};

}  // namespace tutti

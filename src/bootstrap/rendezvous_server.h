// RendezvousServer: all ranks of one communicator meet at this server during set-up. It listens, admits ranks that
// have the job's key (bootstrap_wire.h), and relays the rounds of Bootstrap::all_gather() until every rank has
// left or the set-up has failed. The server is not a rank. It runs in the process of rank 0, or in the process that
// made a unique id.
//
// Unrelated clients, ranks of other jobs, wrong keys, protocols or versions, and second copies of a rank are refused,
// normally with a reason, while the server keeps waiting for the real ranks. (After a failure, some are refused without
// a reason, see AdmissionHost::has_failed().) A connection that has not yet proved that it has the key occupies a few
// kilobytes of memory for little longer than `handshake_wait_ms` at most, and one of kMaxUnauthenticated (admission.cc)
// places. If all places are taken, the oldest of these connections is closed, so that clients that connect and send
// nothing do not keep the ranks out. If a rank gives up after it has joined, or its connection ends before its set-up
// has succeeded, the set-up fails, and the server at once sends all other ranks that have joined an error whose message
// names that rank.
//
// A server has one thread, which owns its state. Any thread may call start(), detach() and the destructor.
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
  // Listens on the numeric `address` and the first of `ports` that is free. Port 0 stands for any free port.
  // Errors: kConfig (not an address, or a wildcard address such as 0.0.0.0), kSystem (no port is free, or another
  // error of the system).
  static Result<Listener> open(const std::string& address, std::span<const std::uint16_t> ports);
  // Duplicates `fd`, the descriptor of a TCP socket that is bound to `port` (0: to any port), and makes the socket
  // listen if it does not yet. Errors: kConfig (`fd` is not such a socket, or cannot listen), kSystem (no file
  // descriptor is free).
  static Result<Listener> inherit(int fd, std::uint16_t port = 0);
  // Creates one listener for each of the numeric `addresses` that belongs to this machine. All listeners use the
  // same port: the first of `ports` that is free on all of these addresses. If there is no such port, the one that
  // is free on the most of them is used, and the other addresses get no listener. If no listener can be created,
  // returns the error of the first address.
  static Result<std::vector<Listener>> open_all(const std::vector<std::string>& addresses,
                                                std::span<const std::uint16_t> ports);
  // Uses the inherited socket `fd` or, if inherit() fails, a socket that open() creates. inherit() fails, for example,
  // if a program between the launcher and this one has closed the descriptor, or has since opened another file or
  // socket under the same number, which is then not bound to `port`. open() can succeed although the launcher still has
  // the port, because the launcher's socket is bound but does not listen. Errors: the code of open(), and a message
  // that states both reasons.
  static Result<Listener> inherit_or_open(int fd, std::uint16_t port, const std::string& address,
                                          std::span<const std::uint16_t> ports);

  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&& other) noexcept;
  ~Listener();

  // The numeric address on which the socket listens, or the loopback address if an inherited socket listens on all
  // addresses.
  const std::string& address() const { return address_; }
  std::uint16_t port() const { return port_; }
  bool is_v6() const { return is_v6_; }
  int release();  // returns the descriptor, which the caller owns from now on

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
  std::optional<std::int32_t> size;  // number of ranks; if empty, as reported by the first rank
  // If `size` is set: time limit for the whole set-up, counted from the start of the server. If `size` is empty:
  // how long to wait for the first rank. When that rank joins, its own set-up timeout starts and is the limit from
  // then on. The limit is at least 1 ms and at most kMaxTimeoutMs (rendezvous_server.cc).
  std::int64_t first_wait_ms = 0;
  // Time limit for the whole handshake with one client.
  std::int64_t handshake_wait_ms = 3000;
};

class RendezvousServer {
 public:
  // Starts the server in a thread of its own. Needs at least one listener. Errors: kSystem (for example, no thread,
  // memory or file descriptor is available).
  static Result<std::unique_ptr<RendezvousServer>> start(std::vector<Listener> listeners,
                                                         const RendezvousServerOptions& options);
  static Result<std::unique_ptr<RendezvousServer>> start(Listener listener, const RendezvousServerOptions& options);
  // Stops the server, if its thread still runs (it ends kFlushTimeout after a failure at the latest). Ranks that are
  // still connected get kFlushTimeout (rendezvous_server.cc) to receive the data that the server has sent to them. The
  // destructor waits until they have disconnected or that time is over, because the process may exit soon after. If
  // set_succeeded() was called and the set-up has not failed, the destructor waits for at most kOwnerTimeout and leaves
  // the rest to the server's thread, so that a slow rank does not delay the owner. If the set-up has failed while ranks
  // are missing, the server first keeps listening for kLateJoinTime.
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  // Lets the server run without an owner. Its thread ends by itself: when all ranks have left, at the latest
  // kFlushTimeout after a failure, or if no rank joins within first_wait_ms.
  static void detach(std::unique_ptr<RendezvousServer> server);

  // The owner calls this, before the destructor, if its own set-up has succeeded. It shortens the wait of the
  // destructor.
  void set_succeeded();

  // Returns the errno value with which the server's last attempt to accept a connection failed, for example EMFILE
  // if no file descriptor is free. Returns 0 if the last attempt succeeded or there was none. Any thread may call it.
  int shortage() const;

 private:
  class Core;
  // Does not start the thread. start() does.
  explicit RendezvousServer(std::shared_ptr<Core> core);
  // Shared with the server's thread, which continues after this object was destroyed if the thread was detached.
  std::shared_ptr<Core> core_;
  std::thread thread_;
};

}  // namespace tutti

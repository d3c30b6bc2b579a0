// ListeningSockets: the sockets on which a RendezvousServer accepts connections, one for each of its addresses.
// They are open from the constructor to close(), all of them. While the server runs, only its thread uses the object,
// except for accept_error().
#pragma once

// clang-format off
#include <utility>  // needed because the Asio of Boost 1.74 does not include it
// clang-format on

#include <atomic>
#include <boost/asio.hpp>
#include <deque>
#include <functional>
#include <vector>

#include "bootstrap/rendezvous_server.h"

namespace tutti::detail {

class ListeningSockets {
 public:
  // `Accepted` is called with each new connection. `Failed` is called when an accept fails, with the errno value.
  using Accepted = std::function<void(boost::asio::ip::tcp::socket)>;
  using Failed = std::function<void(int error)>;

  // Takes the descriptors of the listeners, of which there must be at least one.
  ListeningSockets(boost::asio::io_context& io, std::vector<Listener> listeners);

  // Accepts connections from now on. If an accept fails, for example because no file descriptor is free, the listening
  // socket tries again after kAcceptRetryPause, because the process may close some descriptors soon.
  void start(Accepted accepted, Failed failed);
  void close();
  bool open() const { return sockets_.front().acceptor.is_open(); }
  // The errno value with which the last accept failed, or 0 if it succeeded or there was none. Any thread may call this
  // function.
  int accept_error() const { return accept_error_; }

 private:
  struct Socket {
    explicit Socket(boost::asio::io_context& io) : acceptor(io), retry(io) {}
    boost::asio::ip::tcp::acceptor acceptor;
    boost::asio::steady_timer retry;
  };
  void accept_next(Socket& socket);

  std::deque<Socket> sockets_;  // one for each listener, at least one
  Accepted accepted_;
  Failed failed_;
  std::atomic<int> accept_error_ = 0;
};

}  // namespace tutti::detail

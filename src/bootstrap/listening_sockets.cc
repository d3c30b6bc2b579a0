#include "bootstrap/listening_sockets.h"

#include <chrono>

namespace tutti::detail {
namespace {

constexpr std::chrono::milliseconds kAcceptRetryPause{50};

}  // namespace

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

ListeningSockets::ListeningSockets(asio::io_context& io, std::vector<Listener> listeners) {
  for (Listener& listener : listeners) {
    const auto family = listener.is_v6() ? tcp::v6() : tcp::v4();
    sockets_.emplace_back(io).acceptor.assign(family, listener.release());
  }
}

void ListeningSockets::start(Accepted accepted, Failed failed) {
  accepted_ = std::move(accepted);
  failed_ = std::move(failed);
  for (Socket& socket : sockets_) accept_next(socket);
}

void ListeningSockets::close() {
  error_code ignored;
  for (Socket& socket : sockets_) socket.acceptor.close(ignored);
}

void ListeningSockets::accept_next(Socket& socket) {
  // The completion of an accept or of a timer may still be in the queue of the event loop when close() is called.
  if (!socket.acceptor.is_open()) return;
  socket.acceptor.async_accept([this, &socket](error_code error, tcp::socket connection) {
    if (error == asio::error::operation_aborted) return;
    accept_error_ = error.value();
    if (!error) {
      accepted_(std::move(connection));
      return accept_next(socket);
    }
    failed_(error.value());
    socket.retry.expires_after(kAcceptRetryPause);
    socket.retry.async_wait([this, &socket](error_code cancelled) {
      if (!cancelled) accept_next(socket);
    });
  });
}

}  // namespace tutti::detail

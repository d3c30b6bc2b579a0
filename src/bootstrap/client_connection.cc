#include "bootstrap/client_connection.h"

#include <poll.h>

#include <algorithm>

#include "bootstrap/bootstrap_wire.h"

namespace tutti::detail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

// Interval at which a waiting operation checks whether another thread has set `*stop`.
constexpr std::chrono::milliseconds kStopLook{50};
// Number of times that an operation whose deadline has passed, or that was stopped by `*stop`, is cancelled before the
// socket is closed instead. See run_to_end().
constexpr int kMostLateParts = 16;
// Maximum number of bytes that are read over TLS between two checks of the deadline.
constexpr std::size_t kMostAtOnce = 1 << 20;

}  // namespace

bool ClientConnection::over(TimePoint deadline) const {
  return Clock::now() >= deadline || (stop_ != nullptr && stop_->load());
}

// Starts one asynchronous operation and runs the event loop until the operation has completed. If the deadline
// passes or another thread sets `*stop`, the operation is cancelled, even if the other end sends so fast that there is
// always data to read.
error_code ClientConnection::run_to_end(const std::function<void(Done)>& start, TimePoint deadline) {
  std::optional<error_code> result;
  start([&](error_code error) { result = error; });
  while (!result) {
    io_.restart();
    const TimePoint until = stop_ == nullptr ? deadline : std::min(deadline, Clock::now() + kStopLook);
    if (io_.run_one_until(until) != 0 && result) break;
    if (!over(deadline)) continue;
    // Asio splits a long read into several receives. A receive that has completed cannot be cancelled, and its
    // handler starts the next one. So cancel several times, and then close the socket.
    for (int part = 0; !result; ++part) {
      error_code ignored;
      if (part < kMostLateParts) {
        socket_.cancel(ignored);
      } else {
        socket_.close(ignored);
      }
      io_.restart();
      io_.run_one();
    }
    if (*result == asio::error::operation_aborted) return asio::error::timed_out;
  }
  return *result;
}

// If an exception is thrown during an operation, the event loop still refers to that operation, but its buffers no
// longer exist. Therefore no other operation is started on this connection, because running the event loop would
// continue the old operation as well.
error_code ClientConnection::run(const std::function<void(Done)>& start, TimePoint deadline) {
  if (unfinished_) return asio::error::shut_down;
  unfinished_ = true;
  const error_code error = run_to_end(start, deadline);
  unfinished_ = false;
  return error;
}

error_code ClientConnection::connect(const tcp::endpoint& where, TimePoint deadline) {
  const error_code error = run([&](const Done& done) { socket_.async_connect(where, done); }, deadline);
  error_code ignored;
  if (!error) socket_.set_option(tcp::no_delay(true), ignored);
  return error;
}

Status ClientConnection::encrypt(const Key& key) {
  auto session = TlsSession::create({.end = TlsSession::End::kClient, .key = key});
  if (!session) return session.error();
  error_code error;
  socket_.native_non_blocking(true, error);
  if (error) return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1, "set-up failed: " + error.message()};
  tls_ = std::move(*session);
  tls_->begin(socket_.native_handle());
  return {};
}

bool ClientConnection::wait(tcp::socket::wait_type what, TimePoint deadline) {
  return !run([&](const Done& done) { socket_.async_wait(what, done); }, deadline);
}

bool ClientConnection::write(const std::string& body, TimePoint deadline) {
  if (!torn_) torn_ = !write_whole(body, deadline);
  return !torn_;
}

bool ClientConnection::write_whole(const std::string& body, TimePoint deadline) {
  std::string bytes = wire::frame(body);
  if (tls_ == nullptr) {
    const auto start = [&](const Done& done) {
      asio::async_write(socket_, asio::buffer(bytes), [done](error_code error, std::size_t) { done(error); });
    };
    return !run(start, deadline);
  }
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    iovec part{.iov_base = bytes.data() + sent, .iov_len = bytes.size() - sent};
    const Moved moved = tls_->send(socket_.native_handle(), {&part, 1});
    if (moved.ended) return false;
    sent += moved.bytes;
    if (moved.bytes > 0) continue;
    // True if the TLS handshake has to continue with a message from the server.
    const bool hears = !tls_->established() && !tls_->unsent();
    if (!wait(hears ? tcp::socket::wait_read : tcp::socket::wait_write, deadline)) return false;
  }
  return true;
}

// Reads data that is available now over TLS, at most kMostAtOnce bytes, to `into` after the first `have` bytes, and
// adds the number of bytes to `have`. Returns false if the connection has ended.
bool ClientConnection::receive(std::span<char> into, std::size_t& have) {
  iovec part{.iov_base = into.data() + have, .iov_len = std::min(into.size() - have, kMostAtOnce)};
  const Moved moved = tls_->receive(socket_.native_handle(), {&part, 1});
  have += moved.bytes;
  if (moved.ended) altered_ = is_tampering(moved.error);
  return !moved.ended;
}

bool ClientConnection::read_whole(std::span<char> into, std::size_t& have, TimePoint deadline) {
  if (tls_ == nullptr) {
    const asio::mutable_buffer rest = asio::buffer(into.data(), into.size()) + have;
    const auto start = [&](const Done& done) {
      asio::async_read(socket_, rest, [done](error_code error, std::size_t) { done(error); });
    };
    if (run(start, deadline)) return false;
    have = into.size();
    return true;
  }
  while (have < into.size()) {
    const std::size_t had = have;
    if (!receive(into, have)) return false;
    if (have == had && !wait(tls_->unsent() ? tcp::socket::wait_write : tcp::socket::wait_read, deadline)) return false;
    if (have < into.size() && over(deadline)) return false;
  }
  return true;
}

std::optional<std::string> ClientConnection::read(std::size_t longest, TimePoint deadline) {
  if (!read_whole(header_, have_, deadline)) return {};
  have_ = 0;
  const std::size_t length = wire::frame_length(header_);
  if (length > longest) return {};
  std::string body(length, '\0');
  std::size_t have = 0;
  if (!read_whole(body, have, deadline)) return {};
  return body;
}

bool ClientConnection::wait_readable(TimePoint deadline) {
  if (tls_ == nullptr) return wait(tcp::socket::wait_read, deadline);
  while (have_ == 0 && receive(header_, have_)) {
    if (have_ == 0 && !wait(tcp::socket::wait_read, deadline)) return false;
  }
  return true;
}

bool ClientConnection::readable() {
  if (tls_ != nullptr) return have_ > 0 || !receive(header_, have_) || have_ > 0;
  pollfd socket{.fd = socket_.native_handle(), .events = POLLIN, .revents = 0};
  return poll(&socket, 1, 0) > 0;
}

}  // namespace tutti::detail

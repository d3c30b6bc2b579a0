#include "bootstrap/server_connection.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace tutti::detail {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Wraps `done` so that it is not called after close(). This is necessary because the callback of a completed
// operation may still be in the queue of the event loop when another callback closes the connection.
std::function<void(error_code, std::size_t)> ServerConnection::call_if_open(Done done) {
  return [self = shared_from_this(), done = std::move(done)](error_code error, std::size_t) {
    if (self->socket.is_open()) done(error);
  };
}

void ServerConnection::read(asio::mutable_buffer into, Done done) {
  if (!socket.is_open()) return;
  if (tls_ == nullptr) return asio::async_read(socket, into, call_if_open(std::move(done)));
  into_ = into;
  reading_ = {.moved = 0, .done = std::move(done)};
  pump();
}

void ServerConnection::write(Done done) {
  if (!socket.is_open()) return;
  if (tls_ == nullptr) return asio::async_write(socket, next_bytes(), call_if_open(std::move(done)));
  writing_ = {.moved = 0, .done = std::move(done)};
  pump();
}

bool ServerConnection::encrypt(const Key& key) {
  auto session = TlsSession::create({.end = TlsSession::End::kServer, .key = key});
  error_code error;
  socket.native_non_blocking(true, error);
  if (!session || error) return false;
  tls_ = std::move(*session);
  return true;
}

void ServerConnection::close() {
  error_code ignored;
  socket.close(ignored);
  reading_ = {};
  writing_ = {};
  when_sent_ = {};
}

void ServerConnection::read_frame(std::size_t longest, Done done) {
  read(asio::buffer(header), [this, longest, done = std::move(done)](error_code error) {
    if (error) return done(error);
    const std::size_t length = wire::frame_length(header);
    body.assign(length > longest ? 0 : length, '\0');
    if (length > longest) return done(asio::error::message_size);
    read(asio::buffer(body), done);
  });
}

void ServerConnection::send(std::shared_ptr<const Body> frame) {
  push(std::move(frame));
  if (outbox.size() == 1) write_next();
}

void ServerConnection::write_next() {
  write([this](error_code error) {
    outbox.pop_front();
    // The other frames cannot be sent either. The owner of the connection gets the error from the read in progress,
    // or from the callback of when_sent().
    if (error) outbox.clear();
    if (!outbox.empty()) return write_next();
    if (const Done done = std::exchange(when_sent_, {})) done(error);
  });
}

void ServerConnection::finish(Pending& pending, error_code error) {
  asio::post(socket.get_executor(), [self = shared_from_this(), done = std::move(pending.done), error] {
    if (self->socket.is_open()) done(error);
  });
  pending = {};
}

void ServerConnection::pump_read() {
  if (!reading_.done) return;
  const asio::mutable_buffer rest = into_ + reading_.moved;
  iovec part{.iov_base = rest.data(), .iov_len = rest.size()};
  const Moved moved = rest.size() > 0 ? tls_->receive(socket.native_handle(), {&part, 1}) : Moved{};
  reading_.moved += moved.bytes;
  if (moved.ended) altered_ = is_tampering(moved.error);
  if (moved.ended || reading_.moved == into_.size()) finish(reading_, moved.ended ? asio::error::eof : error_code());
}

void ServerConnection::pump_write() {
  while (writing_.done) {
    std::vector<iovec> parts;
    std::size_t skip = writing_.moved;
    for (const asio::const_buffer& buffer : next_bytes()) {
      const std::size_t skipped = std::min(skip, buffer.size());
      skip -= skipped;
      const asio::const_buffer rest = buffer + skipped;
      if (rest.size() > 0) parts.push_back({.iov_base = const_cast<void*>(rest.data()), .iov_len = rest.size()});
    }
    if (parts.empty()) return finish(writing_, {});
    const Moved moved = tls_->send(socket.native_handle(), parts);
    if (moved.ended) return finish(writing_, asio::error::eof);
    if (moved.bytes == 0) return;
    writing_.moved += moved.bytes;
  }
}

// With TLS: reads and writes as much as is possible now, and then waits until the socket is ready for the rest.
// Reading and writing are tried twice in turn, because each can enable the other: TLS may read data from the socket
// while it writes (in the handshake), and a received message may permit the next write. Reading comes last: data
// that TLS has already taken from the socket does not make the socket readable again, so no later event would
// deliver that data.
void ServerConnection::pump() {
  if (!socket.is_open()) return;
  for (int turn = 0; turn < 2; ++turn) {
    pump_read();
    pump_write();
  }
  pump_read();
  // Read again: the end of the connection may follow the data directly.
  if (tls_->over()) pump_read();
  if (tls_->unsent()) tls_->advance(socket.native_handle());
  const bool handshake = writing_.done && !tls_->established();
  if (reading_.done || handshake) wait(tcp::socket::wait_read, waits_to_read_);
  if (tls_->unsent() || (writing_.done && !handshake)) wait(tcp::socket::wait_write, waits_to_write_);
}

void ServerConnection::wait(tcp::socket::wait_type what, bool& waits) {
  if (std::exchange(waits, true)) return;
  socket.async_wait(what, [self = shared_from_this(), &waits](error_code error) {
    waits = false;
    if (!error) self->pump();
  });
}

}  // namespace tutti::detail

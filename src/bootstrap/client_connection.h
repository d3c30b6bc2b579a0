// ClientConnection: a rank's connection to a RendezvousServer. It reads and writes whole frames. An operation with a
// deadline blocks until it is done, but not much longer than until the deadline. After encrypt() the data is sent over
// TLS. Only one thread at a time may use the object.
#pragma once

// clang-format off
#include <utility>  // needed because the Asio of Boost 1.74 does not include it
// clang-format on

#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "transports/tcp/tls.h"
#include "tutti/result.h"

namespace tutti::detail {

class ClientConnection {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // If `*stop` becomes true, operations soon end as if their deadline had passed. `stop` may be null, and then only the
  // deadline can end them early.
  ClientConnection(boost::asio::io_context& io, const std::atomic<bool>* stop) : io_(io), socket_(io), stop_(stop) {}

  // Returns an empty error code if the connection was made.
  boost::system::error_code connect(const boost::asio::ip::tcp::endpoint& where, TimePoint deadline);
  // Switches to TLS for all data from now on. This end is the TLS client. `key` is the pre-shared key
  // (wire::tls_key()). Errors: kSystem, and those of TlsLibrary::open().
  Status encrypt(const Key& key);
  // Writes `body` as one frame. Returns false if the frame could not be written completely by the deadline, or if
  // the connection has ended. After that, every write() returns false.
  bool write(const std::string& body, TimePoint deadline);
  // Reads one frame and returns its body. Returns nothing if the deadline passes, the connection has ended, or the
  // body is longer than `longest` bytes. After a deadline, read() may be called again only if no byte of the frame had
  // arrived.
  std::optional<std::string> read(std::size_t longest, TimePoint deadline);
  // Waits until data can be read or the connection has ended, and then returns true. Returns false, for example, if the
  // deadline has passed, `*stop` is true, the socket was closed after an earlier deadline, or an exception has
  // interrupted an earlier operation.
  bool wait_readable(TimePoint deadline);
  // Whether data can be read now, or the connection has ended. Does not wait.
  bool readable();
  // True if TLS has detected that a third party altered the received data.
  bool altered() const { return altered_; }
  boost::asio::ip::tcp::socket& socket() { return socket_; }

 private:
  using Done = std::function<void(boost::system::error_code)>;
  // True if the deadline has passed or another thread has set `*stop`.
  bool over(TimePoint deadline) const;
  boost::system::error_code run(const std::function<void(Done)>& start, TimePoint deadline);
  boost::system::error_code run_to_end(const std::function<void(Done)>& start, TimePoint deadline);
  bool wait(boost::asio::ip::tcp::socket::wait_type what, TimePoint deadline);
  bool write_whole(const std::string& body, TimePoint deadline);
  bool read_whole(std::span<char> into, std::size_t& have, TimePoint deadline);
  bool receive(std::span<char> into, std::size_t& have);

  boost::asio::io_context& io_;
  boost::asio::ip::tcp::socket socket_;
  const std::atomic<bool>* stop_;
  std::unique_ptr<TlsSession> tls_;
  std::array<char, 4> header_{};  // the length in front of the next frame
  std::size_t have_ = 0;          // number of bytes of header_ that have been read
  bool torn_ = false;             // a write has failed, so no more frames can be written
  bool unfinished_ = false;       // an operation is in progress, or an exception has interrupted it
  // The result of altered().
  bool altered_ = false;
};

}  // namespace tutti::detail

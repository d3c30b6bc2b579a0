// ClientConnection: a rank's connection to a RendezvousServer. It reads and writes whole frames, and every
// operation ends at a deadline. After encrypt() the data is sent over TLS. Only one thread at a time may use it.
#pragma once

// clang-format off
#include <utility>  // needed because Asio before 1.74 does not include it
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
  // `stop` may be null. If it becomes true, waits end as if their deadline had passed.
  ClientConnection(boost::asio::io_context& io, const std::atomic<bool>* stop) : io_(io), socket_(io), stop_(stop) {}

  // Returns an empty error code if the connection was made.
  boost::system::error_code connect(const boost::asio::ip::tcp::endpoint& where, TimePoint deadline);
  // Switches to TLS for everything that is read and written from now on. This end is the TLS client. Errors:
  // kSystem, and those of TlsLibrary::open().
  Status encrypt(const Key& key);
  // Returns false if not all of the frame could be written by the deadline, or if the connection has ended. After
  // that, nothing more can be written.
  bool write(const std::string& body, TimePoint deadline);
  // Returns nothing if the deadline passes or the connection has ended. If no byte had arrived at the deadline, the
  // connection can still be used.
  std::optional<std::string> read(std::size_t longest, TimePoint deadline);
  // Waits until data can be read or the connection has ended. Returns false if the deadline has passed.
  bool wait_readable(TimePoint deadline);
  // True if TLS has detected that a third party altered the received data.
  bool altered() const { return altered_; }
  boost::asio::ip::tcp::socket& socket() { return socket_; }

 private:
  using Done = std::function<void(boost::system::error_code)>;
  bool over(TimePoint deadline) const;  // true if the deadline has passed or another thread has ended the wait
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
  std::array<char, 4> header_{};  // header of the next frame
  std::size_t have_ = 0;          // number of its bytes that have been read
  bool torn_ = false;             // a frame was not, or only partly, written
  bool unfinished_ = false;       // an operation is in progress, or an exception has ended one
  bool altered_ = false;
};

}  // namespace tutti::detail

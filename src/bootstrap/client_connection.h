// ClientConnection: a rank's connection to a RendezvousServer, with whole-frame operations that end at a deadline; by
// TLS from encrypt() on. One thread at a time.
#pragma once

// clang-format off
#include <utility>  // before Asio 1.74, which forgets it
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
  // `stop`, if any, ends waits as a deadline does.
  ClientConnection(boost::asio::io_context& io, const std::atomic<bool>* stop) : io_(io), socket_(io), stop_(stop) {}

  // Empty: connected.
  boost::system::error_code connect(const boost::asio::ip::tcp::endpoint& where, TimePoint deadline);
  // What is said from now on, and heard, goes by TLS, of which this is the client. Errors: kSystem, those of
  // TlsLibrary::open().
  Status encrypt(const Key& key);
  // False: not all of it by the deadline, or the line has ended; nothing can be written from then on.
  bool write(const std::string& body, TimePoint deadline);
  // Nothing at the deadline (the line stays usable if no byte had come), or when the line has ended.
  std::optional<std::string> read(std::size_t longest, TimePoint deadline);
  // Waits until something can be read, the end included. False: the deadline has passed.
  bool wait_readable(TimePoint deadline);
  // By whoever sits between: what has come did not come from the server.
  bool altered() const { return altered_; }
  boost::asio::ip::tcp::socket& socket() { return socket_; }

 private:
  using Done = std::function<void(boost::system::error_code)>;
  bool over(TimePoint deadline) const;  // the deadline has passed, or another thread has ended the wait
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
  std::array<char, 4> header_{};  // of the next frame
  std::size_t have_ = 0;          // bytes of it
  bool torn_ = false;             // a frame went out in part, or not at all
  bool unfinished_ = false;       // an operation is under way, or an exception has ended it
  bool altered_ = false;
};

}  // namespace tutti::detail

// ServerConnection: one connection of a RendezvousServer, and what waits to be sent on it; by TLS from encrypt() on.
// The server's thread.
#pragma once

// clang-format off
#include <utility>  // before Asio 1.74, which forgets it
// clang-format on

#include <array>
#include <boost/asio.hpp>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/hmac.h"
#include "bootstrap/bootstrap_wire.h"
#include "transports/tcp/tls.h"

namespace tutti::detail {

struct ServerConnection : std::enable_shared_from_this<ServerConnection> {
  // Called from the io_context's loop, with an error where the line has ended; never once it is closed.
  using Done = std::function<void(boost::system::error_code)>;
  // A body that many ranks may get, and the SHA-256 of it, by which each one's seal is made.
  struct Body {
    explicit Body(std::string given) : text(std::move(given)), digest(sha256({text})) {}
    std::string text;
    Digest digest;
  };
  struct Parcel {
    std::shared_ptr<const Body> body;  // shared by the lines that it goes out on
    std::array<char, 4> header{};
    Tag seal{};
    std::size_t seal_bytes = 0;
  };

  ServerConnection(boost::asio::io_context& io, boost::asio::ip::tcp::socket given)
      : socket(std::move(given)), patience(io) {}

  // All of `into`, or of the first parcel; one of each at a time. Nothing, once the line is closed.
  void read(boost::asio::mutable_buffer into, Done done);
  void write(Done done);
  // What is read and written from now on goes by TLS, of which this is the server. Not while something is being written
  // or read. False: there is no library or no memory.
  bool encrypt(const Key& key);
  bool encrypted() const { return tls_ != nullptr; }
  // By whoever sits between: what has come did not come from the rank.
  bool altered() const { return altered_; }
  void close();

  // Sealed, once the line has seals.
  void push(std::shared_ptr<const Body> what) {
    Parcel parcel{.body = std::move(what)};
    if (to_rank) {
      parcel.seal = to_rank->next(parcel.body->digest);
      parcel.seal_bytes = sizeof(parcel.seal);
    }
    const auto length = static_cast<std::uint32_t>(parcel.body->text.size() + parcel.seal_bytes);
    std::memcpy(parcel.header.data(), &length, sizeof(length));
    outbox.push_back(std::move(parcel));
  }
  // Of the first parcel, where it lies.
  std::array<boost::asio::const_buffer, 3> next_bytes() const {
    const Parcel& parcel = outbox.front();
    return {boost::asio::buffer(parcel.header), boost::asio::buffer(parcel.body->text),
            boost::asio::buffer(parcel.seal.data(), parcel.seal_bytes)};
  }

  boost::asio::ip::tcp::socket socket;
  boost::asio::steady_timer patience;
  std::uint64_t number = 0;  // in the order of coming
  wire::Hello hello;
  wire::Nonce nonce{};                           // what it is challenged with
  std::optional<wire::Seal> to_server, to_rank;  // once it has proved that it has the key
  std::int32_t rank = -1;                        // until it is admitted
  std::optional<wire::Introduction> proved;      // of a rank that waits for TLS to begin
  bool comes_from_here = false;                  // from this machine
  bool has_quit = false;
  bool refused = false;
  std::optional<std::string> blob;  // of the present round
  std::array<char, 4> header{};
  std::string body;
  std::deque<Parcel> outbox;  // at most: challenge, welcome, a result, a failure

 private:
  struct Pending {
    std::size_t moved = 0;  // bytes of it
    Done done;              // empty: nothing is pending
  };
  std::function<void(boost::system::error_code, std::size_t)> told_while_open(Done done);
  void pump();
  void pump_read();
  void pump_write();
  void wait(boost::asio::ip::tcp::socket::wait_type what, bool& waits);
  void finish(Pending& pending, boost::system::error_code error);

  std::unique_ptr<TlsSession> tls_;
  boost::asio::mutable_buffer into_;
  Pending reading_, writing_;                            // by TLS
  bool waits_to_read_ = false, waits_to_write_ = false;  // for the system
  bool altered_ = false;
};

}  // namespace tutti::detail

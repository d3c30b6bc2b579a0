// ServerConnection: one connection of a RendezvousServer: it reads and sends frames, and has the queue of frames to be
// sent. After encrypt() the data is sent over TLS. RankConnection: a ServerConnection, and the server's knowledge about
// the rank at its other end. Only the server's thread uses them.
#pragma once

// clang-format off
#include <utility>  // needed because Asio before 1.74 does not include it
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

#include "base/crypto/hmac.h"
#include "bootstrap/bootstrap_wire.h"
#include "transports/tcp/tls.h"

namespace tutti::detail {

struct ServerConnection : std::enable_shared_from_this<ServerConnection> {
  // Called from the loop of the io_context, with an error if the connection has ended. Never called after close().
  using Done = std::function<void(boost::system::error_code)>;
  // A frame body, which may be sent to many ranks, and its SHA-256, from which the seal of each connection is
  // computed.
  struct Body {
    explicit Body(std::string given) : text(std::move(given)), digest(sha256({text})) {}
    std::string text;
    Digest digest;
  };
  struct OutgoingFrame {
    std::shared_ptr<const Body> body;  // shared by the connections on which it is sent
    std::array<char, 4> header{};
    Tag seal{};
    std::size_t seal_bytes = 0;
  };

  ServerConnection(boost::asio::io_context& io, boost::asio::ip::tcp::socket given)
      : socket(std::move(given)), timer(io) {}

  // Reads until `into` is full, or writes the first frame of the queue completely. Only one read and one write may
  // be in progress. They have no effect after close().
  void read(boost::asio::mutable_buffer into, Done done);
  void write(Done done);
  // Switches to TLS for everything that is read and written from now on. This end is the TLS server. Must not be
  // called while a read or write is in progress. Returns false if the library is missing or there is no memory.
  bool encrypt(const Key& key);
  bool encrypted() const { return tls_ != nullptr; }
  // True if TLS has detected that a third party altered the received data.
  bool altered() const { return altered_; }
  void close();

  // Reads the next frame, of at most `longest` bytes, into `body`. If it is longer, `done` gets message_size, `body` is
  // empty, and no further frame can be read.
  void read_frame(std::size_t longest, Done done);
  // Puts a frame into the queue and sends the queue. If a write fails, the queue is dropped.
  void send(std::shared_ptr<const Body> frame);
  void send(std::string text) { send(std::make_shared<const Body>(std::move(text))); }
  // Calls `done` once, when the queue becomes empty the next time, with the error of the last write. Call it before
  // send().
  void when_sent(Done done) { when_sent_ = std::move(done); }

  // Appends a frame to the queue. The frame is sealed if the handshake has created the seals.
  void push(std::shared_ptr<const Body> what) {
    OutgoingFrame frame{.body = std::move(what)};
    if (to_rank) {
      frame.seal = to_rank->next(frame.body->digest);
      frame.seal_bytes = sizeof(frame.seal);
    }
    const auto length = static_cast<std::uint32_t>(frame.body->text.size() + frame.seal_bytes);
    std::memcpy(frame.header.data(), &length, sizeof(length));
    outbox.push_back(std::move(frame));
  }
  // The bytes of the first frame in the queue. They are not copied.
  std::array<boost::asio::const_buffer, 3> next_bytes() const {
    const OutgoingFrame& frame = outbox.front();
    return {boost::asio::buffer(frame.header), boost::asio::buffer(frame.body->text),
            boost::asio::buffer(frame.seal.data(), frame.seal_bytes)};
  }

  boost::asio::ip::tcp::socket socket;
  boost::asio::steady_timer timer;
  std::optional<wire::Seal> to_server, to_rank;  // set when the rank has proved that it has the key
  std::array<char, 4> header{};                  // length of the frame that is being read
  std::string body;                              // the frame that was read last
  std::deque<OutgoingFrame> outbox;              // at most: challenge, welcome, a result, a failure

 private:
  struct Pending {
    std::size_t moved = 0;  // number of bytes that are done
    Done done;              // empty if nothing is pending
  };
  std::function<void(boost::system::error_code, std::size_t)> call_if_open(Done done);
  void pump();
  void pump_read();
  void pump_write();
  void wait(boost::asio::ip::tcp::socket::wait_type what, bool& waits);
  void finish(Pending& pending, boost::system::error_code error);
  void write_next();

  std::unique_ptr<TlsSession> tls_;
  boost::asio::mutable_buffer into_;
  Pending reading_, writing_;  // used only with TLS
  // True while the connection waits for the socket to become readable or writable.
  bool waits_to_read_ = false, waits_to_write_ = false;
  bool altered_ = false;
  Done when_sent_;
};

struct RankConnection : ServerConnection {
  using ServerConnection::ServerConnection;

  std::uint64_t number = 0;  // numbers the connections in the order of their arrival
  wire::Hello hello;
  wire::Nonce nonce{};              // the nonce of the challenge
  std::int32_t rank = -1;           // -1 until the rank is admitted
  bool same_machine = false;        // the rank is on this machine
  bool has_quit = false;            // the rank has announced that it leaves the set-up
  std::optional<std::string> blob;  // its contribution to the current round
};

}  // namespace tutti::detail

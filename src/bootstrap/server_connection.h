// ServerConnection: one connection of a RendezvousServer to a client. It reads frames, and sends the frames of its
// queue. After encrypt() the data is sent over TLS. RankConnection: a ServerConnection, together with the server's
// knowledge about the rank at the other end. No operation blocks. While the server runs, only its thread uses these
// classes.
#pragma once

// clang-format off
#include <utility>  // needed because the Asio of Boost 1.74 does not include it
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
  // A callback for the end of an operation. It is called from the event loop (io_context), with an error if the
  // operation failed, for example because the connection has ended. It is never called after close().
  using Done = std::function<void(boost::system::error_code)>;
  // The body of a frame, which may be sent to many ranks, and its SHA-256. Each connection computes its own seal
  // from that hash, so that the body is hashed only once.
  struct Body {
    explicit Body(std::string given) : text(std::move(given)), digest(sha256({text})) {}
    std::string text;
    Digest digest;
  };
  struct OutgoingFrame {
    std::shared_ptr<const Body> body;  // shared by the connections on which it is sent
    std::array<char, 4> header{};
    Tag seal{};
    // Length of `seal`; 0 for the frames of the handshake that have no seal.
    std::size_t seal_bytes = 0;
  };

  ServerConnection(boost::asio::io_context& io, boost::asio::ip::tcp::socket given)
      : socket(std::move(given)), timer(io) {}

  // read() reads until `into` is full. write() writes the first frame of the queue completely. Both call `done` when
  // that is done or has failed. Only one read and one write may be in progress at the same time. After close() both do
  // nothing.
  void read(boost::asio::mutable_buffer into, Done done);
  void write(Done done);
  // Switches to TLS for all data from now on. This end is the TLS server. `key` is the pre-shared key
  // (wire::tls_key()). Must not be called while a read or write is in progress. Returns false if this fails, for
  // example because the TLS library is missing or there is no memory.
  bool encrypt(const Key& key);
  bool encrypted() const { return tls_ != nullptr; }
  // True if TLS has detected that a third party altered the received data.
  bool altered() const { return altered_; }
  // Closes the socket and drops the callbacks of all operations in progress.
  void close();

  // Reads the next frame into `body`. If the frame is longer than `longest` bytes, `done` gets the error
  // message_size, `body` is empty, and no further frame can be read, because the rest of that frame is not skipped.
  void read_frame(std::size_t longest, Done done);
  // Appends a frame to the queue, and starts to send the queue if no write is in progress. If a write fails, all
  // frames in the queue are dropped.
  void send(std::shared_ptr<const Body> frame);
  void send(std::string text) { send(std::make_shared<const Body>(std::move(text))); }
  // Arranges that `done` is called once, when the queue becomes empty the next time, with the error of the last
  // write. Call when_sent() before send().
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
  // Refers to the bytes of the first frame in the queue (length, body, seal), without copying them.
  std::array<boost::asio::const_buffer, 3> next_bytes() const {
    const OutgoingFrame& frame = outbox.front();
    return {boost::asio::buffer(frame.header), boost::asio::buffer(frame.body->text),
            boost::asio::buffer(frame.seal.data(), frame.seal_bytes)};
  }

  boost::asio::ip::tcp::socket socket;
  boost::asio::steady_timer timer;
  std::optional<wire::Seal> to_server, to_rank;  // compute the seals; empty until the rank has proved the key
  std::array<char, 4> header{};                  // the length in front of the frame that is being read
  std::string body;                              // the body of the frame that was read last
  std::deque<OutgoingFrame> outbox;              // frames that have not been written completely, in order

 private:
  struct Pending {
    std::size_t moved = 0;  // number of bytes that have been read or written
    Done done;              // empty if no operation is in progress
  };
  std::function<void(boost::system::error_code, std::size_t)> call_if_open(Done done);
  void pump();
  void pump_read();
  void pump_write();
  void wait(boost::asio::ip::tcp::socket::wait_type what, bool& waits);
  void finish(Pending& pending, boost::system::error_code error);
  void write_next();

  std::unique_ptr<TlsSession> tls_;
  // With TLS: the memory into which the read in progress reads.
  boost::asio::mutable_buffer into_;
  Pending reading_, writing_;  // the read and the write in progress; used only with TLS
  // True while the connection waits for the socket to become readable or writable, respectively.
  bool waits_to_read_ = false, waits_to_write_ = false;
  bool altered_ = false;
  Done when_sent_;
};

struct RankConnection : ServerConnection {
  using ServerConnection::ServerConnection;

  std::uint64_t number = 0;  // connections are numbered from 1 in the order of arrival
  wire::Hello hello;
  wire::Nonce nonce{};              // the nonce of the server's Challenge
  std::int32_t rank = -1;           // -1 until the rank is admitted
  bool same_machine = false;        // the client's address is loopback or equal to the address of this end
  bool has_quit = false;            // the rank has announced that it leaves the set-up
  std::optional<std::string> blob;  // the rank's contribution to the current round; empty until it arrives
};

}  // namespace tutti::detail

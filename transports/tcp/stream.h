// TcpStream: what goes over one connection, in clear or by TLS, and the few calls on it that the transport makes. In
// clear they are those of socket.h, behind one branch. By TLS (tls.h) they never block either; the handshake goes on
// inside them, and nothing of the caller's moves before it is through.
//
// Who was connected to may say no, or goodbye, before there is a TLS session: to one who connects too late, or is not
// let in. That frame goes in clear with a proof behind it, by the connection's key; a refusal is believed without, as
// it may be the key that is wrong.
//
// One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "transports/tcp/socket.h"
#include "transports/tcp/tls.h"
#include "transports/tcp/wire.h"

namespace tutti {

class TcpStream {
 public:
  TcpStream() = default;
  explicit TcpStream(Socket socket) : socket_(std::move(socket)) {}
  // By TLS. `key`: of this connection. `greeting` goes out first, in clear.
  static Result<TcpStream> encrypted(Socket socket, TlsSession::End end, const Key& key,
                                     std::span<const std::byte> greeting = {});

  int get() const { return socket_.get(); }
  bool is_open() const { return socket_.is_open(); }
  // Tells the peer that it is the end, forgets what is unread, closes.
  void end();
  void close() { socket_.close(); }

  // As send_some() and receive_some(). What was offered and not sent must be offered again, first.
  Moved send(std::span<iovec> parts) {
    return secret_ == nullptr ? send_some(socket_.get(), parts) : send_secret(parts);
  }
  Moved receive(std::span<iovec> parts) {
    return secret_ == nullptr ? receive_some(socket_.get(), parts) : receive_secret(parts);
  }
  Moved receive(std::byte* data, std::size_t bytes) {
    if (secret_ == nullptr) return receive_some(socket_.get(), data, bytes);
    iovec part{.iov_base = data, .iov_len = bytes};
    return receive_secret({&part, 1});
  }
  Moved say(FrameHeader frame) {  // as send()
    iovec part{.iov_base = &frame, .iov_len = sizeof(frame)};
    return send({&part, 1});
  }

  // The handshake goes on, and what the system has not taken of it. Nothing in clear.
  void advance() {
    if (secret_ != nullptr) static_cast<void>(advance_secret());
  }
  // The same for a sender that has nothing to offer: whether it could.
  Moved finish();
  bool is_encrypted() const { return secret_ != nullptr; }
  bool ready() const { return secret_ == nullptr || secret_->tls->established(); }  // for the caller's bytes
  bool unsent() const { return secret_ != nullptr && secret_->tls->unsent(); }      // of TLS's own, and what it holds
  bool over() const { return secret_ != nullptr && (secret_->end.ended || secret_->tls->over()); }
  short wait_events() const;  // for poll(), until more can be sent

  // What a connection that may carry data to us ends with, though none of it has been read yet but `stashed`: kNothing
  // while it is open, else what its last frame is. Looks at all that is unread, so ask once after an answer.
  Reply last_words(std::span<const std::byte> stashed);

 private:
  static constexpr std::size_t kAnswerBytes = kHeaderBytes + sizeof(Tag);
  struct Secret {
    std::unique_ptr<TlsSession> tls;
    Key key{};
    bool listens_for_answer = false;  // in clear, in place of the peer's side of the handshake
    std::vector<std::byte> ahead;     // decrypted, or that answer; not received yet
    std::size_t ahead_begin = 0;
    Moved end;  // once all has come that is to come
  };
  Moved send_secret(std::span<iovec> parts);
  Moved receive_secret(std::span<iovec> parts);
  enum class Heard : std::uint8_t { kNothing, kTls, kAnswer };
  Heard hear_answer();
  bool advance_secret();
  void read_ahead();

  Socket socket_;
  std::unique_ptr<Secret> secret_;  // null: in clear
};

// The proof behind a frame in clear on a connection that has that key.
Tag answer_proof(const Key& key, const FrameHeader& frame);

// Collects a Reply from the way back of a connection, which may come in pieces.
class ReplyReader {
 public:
  Reply read(TcpStream& stream);

 private:
  std::array<std::byte, kHeaderBytes> bytes_{};
  std::size_t have_ = 0;
};

}  // namespace tutti

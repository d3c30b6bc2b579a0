// TcpStream: the data of one connection, either in clear or encrypted with TLS, and the operations that the transport
// needs.
//
// In clear, the operations are those of socket.h, plus one branch. With TLS (tls.h) they do not block either. They
// also continue the handshake, and no data of the caller is moved before the handshake is complete.
//
// The listening end may send a refusal or a close frame before there is a TLS session, if the other end connects too
// late or is not accepted. That frame is sent in clear. It is followed by a proof that is computed with the key of
// the connection. Only a refusal is accepted without a proof, because the reason for it may be that the keys differ.
//
// Only one thread at a time may use a stream.
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
  // Starts a stream with TLS. `key`: the key of this connection. `greeting` is sent first, in clear.
  static Result<TcpStream> encrypted(Socket socket, TlsSession::End end, const Key& key,
                                     std::span<const std::byte> greeting = {});

  int get() const { return socket_.get(); }
  bool is_open() const { return socket_.is_open(); }
  // Informs the peer that this is the end (only with TLS), discards unread data, and closes the socket.
  void end();
  void close() { socket_.close(); }

  // Like send_some() and receive_some(). If not everything was sent, the next send must begin with the rest.
  Moved send(std::span<iovec> parts) {
    return encryption_ == nullptr ? send_some(socket_.get(), parts) : send_encrypted(parts);
  }
  Moved receive(std::span<iovec> parts) {
    return encryption_ == nullptr ? receive_some(socket_.get(), parts) : receive_encrypted(parts);
  }
  Moved receive(std::byte* data, std::size_t bytes) {
    if (encryption_ == nullptr) return receive_some(socket_.get(), data, bytes);
    iovec part{.iov_base = data, .iov_len = bytes};
    return receive_encrypted({&part, 1});
  }
  Moved send_frame(FrameHeader frame) {  // like send()
    iovec part{.iov_base = &frame, .iov_len = sizeof(frame)};
    return send({&part, 1});
  }

  // Continues the handshake, and sends the part of it that the system has not taken yet. No effect without TLS.
  void advance() {
    if (encryption_ != nullptr) static_cast<void>(advance_handshake());
  }
  // The same for a sender that has no data. The result tells whether it could send data.
  Moved finish();
  bool is_encrypted() const { return encryption_ != nullptr; }
  // Whether data of the caller can be moved.
  bool ready() const { return encryption_ == nullptr || encryption_->tls->established(); }
  // Whether encrypted data is waiting to be sent.
  bool unsent() const { return encryption_ != nullptr && encryption_->tls->unsent(); }
  bool over() const { return encryption_ != nullptr && (encryption_->end.ended || encryption_->tls->over()); }
  short wait_events() const;  // the events for poll() until more can be sent

  // Returns how a connection on which data can arrive has ended: kNothing while it is open, otherwise the meaning of
  // its last frame. It does not consume data. `stashed`: data that the caller has already read. It inspects all
  // unread data, which is slow, so call it only once after the connection has ended.
  Reply final_reply(std::span<const std::byte> stashed);

 private:
  static constexpr std::size_t kAnswerBytes = kHeaderBytes + sizeof(Tag);
  struct Encryption {
    std::unique_ptr<TlsSession> tls;
    Key key{};
    bool awaits_answer = false;    // the other end may answer in clear, instead of its part of the handshake
    std::vector<std::byte> ahead;  // data that was decrypted but not received yet, or the answer in clear
    std::size_t ahead_begin = 0;
    Moved end;  // set once everything that can arrive has arrived
  };
  Moved send_encrypted(std::span<iovec> parts);
  Moved receive_encrypted(std::span<iovec> parts);
  enum class AnswerState : std::uint8_t { kNothing, kTls, kAnswer };
  AnswerState peek_answer();
  bool advance_handshake();
  void read_ahead();

  Socket socket_;
  std::unique_ptr<Encryption> encryption_;  // null: in clear
};

// Returns the proof behind a frame that is sent in clear on a connection with this key.
Tag answer_proof(const Key& key, const FrameHeader& frame);

// Collects a Reply from a connection on which only one frame can arrive. The frame may arrive in several parts.
class ReplyReader {
 public:
  Reply read(TcpStream& stream);

 private:
  std::array<std::byte, kHeaderBytes> bytes_{};
  std::size_t have_ = 0;
};

}  // namespace tutti

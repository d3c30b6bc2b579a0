// TcpStream: the data of one connection, either in clear or encrypted with TLS, and the operations that the transport
// needs.
//
// In clear, sending and receiving only call the functions of socket.h. With TLS (tls.h) they do not block either. They
// also continue the handshake, and no data of the caller is sent or decrypted before the handshake is complete.
//
// The listening end may send a refusal or a close frame before there is a TLS session: a refusal if it does not
// accept the connection, a close frame if its communicator was closed before the connection arrived. That frame is
// sent in clear. A close frame is followed by a proof that is computed with the key of the connection. A refusal is
// accepted without a proof, because the reason for it may be that the keys differ.
//
// Only one thread at a time may use a stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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
  // Makes a stream that encrypts with TLS. Sends nothing yet. `key`: the pre-shared key of TLS for this connection.
  // `greeting`: bytes that are sent in clear before the TLS handshake begins; may be empty.
  static Result<TcpStream> encrypted(Socket socket, TlsSession::End end, const Key& key,
                                     std::span<const std::byte> greeting = {});

  int get() const { return socket_.get(); }
  bool is_open() const { return socket_.is_open(); }
  // Sends the close notification of TLS (only with TLS), discards unread data, and closes the socket.
  void end();
  void close() { socket_.close(); }

  // Like send_some() and receive_some() of socket.h. If send() has not sent everything, the next send() must begin
  // with the rest.
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
  // Sends a close frame, which must be the last data on this stream. Returns false if the system has not taken all of
  // it; call the function again then, with the same frame. Returns true if nothing is left to do, because the frame
  // was sent or the connection has ended.
  bool send_close_frame(FrameHeader frame);

  // Continues the handshake of TLS, and sends encrypted data that the system has not taken yet. No effect without
  // TLS.
  void advance() {
    if (encryption_ != nullptr) static_cast<void>(advance_handshake());
  }
  // Like advance(), for a sender that has no more data. With TLS, Moved::ended is true if nothing can be sent any more.
  Moved finish();
  bool is_encrypted() const { return encryption_ != nullptr; }
  // Whether data of the caller can be moved: always without TLS, and with TLS once the handshake is complete.
  bool ready() const { return encryption_ == nullptr || encryption_->tls->established(); }
  // Only with TLS: whether the system has taken any bytes, for example of the greeting.
  bool tls_has_sent() const { return encryption_ != nullptr && encryption_->tls->has_sent(); }
  // Only with TLS: whether bytes of the greeting, the handshake or encrypted data wait to be sent.
  bool unsent() const { return encryption_ != nullptr && encryption_->tls->unsent(); }
  bool over() const { return encryption_ != nullptr && (encryption_->end.ended || encryption_->tls->over()); }
  short wait_events() const;  // the events for which a caller of poll() must wait until more can be sent

  // If the stream is open, adds to `total` (empty: 0) the number of segments that the kernel has sent again since the
  // last call.
  void count_retransmissions(std::optional<std::uint64_t>& total);

  // Returns how a connection on which messages can arrive has ended: kNothing while it is open, kClose or kRefused if
  // the last bytes that arrived are such a frame, and otherwise kEnded. The data can still be read afterwards.
  // `stashed`: data that the caller has already read but not processed. When the connection has ended, the function
  // inspects the unread data, which is slow. So do not call it again after it has returned something other than
  // kNothing.
  Reply final_reply(std::span<const std::byte> stashed);

 private:
  static constexpr std::size_t kAnswerBytes = kHeaderBytes + sizeof(Tag);
  struct Encryption {
    std::unique_ptr<TlsSession> tls;
    Key key{};
    bool awaits_answer = false;  // the other end may still answer in clear, instead of with its part of the handshake
    // Data that the caller has not received yet: decrypted data, or the answer in clear.
    std::vector<std::byte> ahead;
    std::size_t ahead_begin = 0;
    Moved end;  // `ended` is set once nothing more can arrive from the system
  };
  Moved send_encrypted(std::span<iovec> parts);
  Moved receive_encrypted(std::span<iovec> parts);
  enum class AnswerState : std::uint8_t { kNothing, kTls, kAnswer };
  AnswerState peek_answer();
  bool advance_handshake();
  void read_ahead();

  Socket socket_;
  std::unique_ptr<Encryption> encryption_;     // null: in clear
  std::size_t close_frame_sent_ = 0;           // number of bytes of the close frame that were sent
  std::uint32_t counted_retransmissions_ = 0;  // the number that the last count_retransmissions() has seen
};

// Returns the proof that follows a close frame in clear, on a connection with this key.
Tag answer_proof(const Key& key, const FrameHeader& frame);

// Reads the single frame that can arrive on a connection, which may come in several parts. read() returns kNothing
// until the frame is complete, and then its meaning. It returns kEnded if the connection ends before.
class ReplyReader {
 public:
  Reply read(TcpStream& stream);

 private:
  std::array<std::byte, kHeaderBytes> bytes_{};
  std::size_t have_ = 0;
};

}  // namespace tutti

// TlsSession: TLS 1.3 on one connection, with a key that both ends already have.
//
// The key is used as an external pre-shared key (PSK) together with a Diffie-Hellman exchange. So recorded data cannot
// be decrypted even if the key becomes known later. There are no certificates, tickets or early data. The session reads
// and writes with the non-blocking functions of socket.h, on a socket that the caller passes and owns. The handshake
// continues inside send(), receive(), begin() and advance().
//
// Only one thread at a time may use a session. Its functions clear the error queue of OpenSSL for the calling thread.
//
// TlsSession has more than 40 methods and members. Four of the methods are callbacks of OpenSSL. Sending and receiving
// share one object of OpenSSL, and either can produce data for the other direction, so their buffers belong together.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/crypto/hmac.h"
#include "transports/tcp/socket.h"
#include "transports/tcp/tls_library.h"

namespace tutti {

class TlsSession {
 public:
  enum class End : std::uint8_t { kClient, kServer };
  struct Options {
    End end = End::kClient;
    Key key{};                              // must be different for each connection
    std::span<const std::byte> greeting{};  // sent in clear, before the handshake
    // The sending key is renewed each time after this number of records. TLS 1.3 permits 2^24.5 records for each key
    // with AES-GCM.
    std::uint64_t records_per_key = 1u << 23;
  };
  // Errors: those of TlsLibrary::open(), and kSystem.
  static Result<std::unique_ptr<TlsSession>> create(const Options& options);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Like send_some() in socket.h. Moved::bytes counts the bytes that were encrypted and taken by the system. If some
  // were not taken, the next call must begin with them, because part of them may already be encrypted. Before the
  // handshake is complete, nothing is moved.
  Moved send(int fd, std::span<iovec> parts);
  // Like receive_some() in socket.h. Returns only data that was authenticated. If the data is shorter than `parts`, the
  // system has no more data now, or the connection has ended.
  Moved receive(int fd, std::span<iovec> parts);
  // Sends the greeting and, at the client, the first message of the handshake; reads nothing from the socket.
  void begin(int fd);
  // Continues the handshake as far as possible now, and sends the rest of its messages.
  void advance(int fd);
  // Sends the close notification of TLS, if the system takes it. The notification proves to the peer that all data
  // has arrived.
  void send_close_notify(int fd);

  bool established() const { return established_; }
  bool over() const { return receive_end_.ended; }  // nothing more can arrive
  // `ended` is set once nothing more can be sent; `error` is the reason
  const Moved& send_end() const { return send_end_; }
  // Whether there is data (the greeting, the handshake or encrypted data) that the system has not taken.
  bool unsent() const { return out_begin_ < out_.size(); }
  // Whether the system has taken any bytes, so that the other end may have received them.
  bool has_sent() const { return produced_ > out_.size() - out_begin_; }

 private:
  // The length and the end of one TLS record. Kept until the operating system has taken all encrypted bytes of the
  // record; only then do the bytes of the caller in it count as sent.
  struct Record {
    std::size_t bytes;   // length of the data of the caller in the record
    std::uint64_t upto;  // the value of produced_ after the record was encrypted
  };
  struct EndSettings;  // settings of OpenSSL that all sessions of one End (client or server) share
  TlsSession(const TlsLibrary& tls, OpenSsl* ssl, const Options& options);
  static const EndSettings& settings_of(const TlsLibrary& tls, End end);
  static int use_session(OpenSsl*, const OpenSslDigest*, const unsigned char**, std::size_t*, OpenSslSession**);
  static int find_session(OpenSsl*, const unsigned char*, std::size_t, OpenSslSession**);
  static int write_out(OpenSslPipe*, const char* from, int bytes);
  static int read_in(OpenSslPipe*, char* to, int bytes);
  OpenSslSession* make_session() const;
  bool run_handshake(int fd);
  bool handshake_step(int fd);
  Moved send_sealed(int fd, std::span<iovec> parts);
  bool seal(std::span<iovec> parts);
  bool flush(int fd);
  bool fill(int fd);
  bool read_part(int fd, iovec part, Moved& moved);
  void fail(int fd);

  const TlsLibrary& tls_;
  OpenSsl* const ssl_;  // owned
  const Key key_;
  const std::uint64_t records_per_key_;
  bool established_ = false;
  bool dead_ = false;          // OpenSSL has reported an error, and must not be used for this session any more
  Moved receive_end_;          // `ended` is set once nothing more can arrive
  Moved send_end_;             // `ended` is set once nothing more can be sent
  std::vector<std::byte> in_;  // encrypted data from the peer; [in_begin_, in_end_) was not decrypted yet
  std::size_t in_begin_ = 0, in_end_ = 0;
  std::vector<std::byte> out_;  // greeting and encrypted data for the peer; the first out_begin_ bytes were taken
  std::size_t out_begin_ = 0;
  std::uint64_t produced_ = 0;  // number of bytes that were ever appended to out_
  std::deque<Record> records_;  // records that send() has not counted as sent
  std::size_t sealed_ = 0;      // total length of the data of the caller in records_
  std::uint64_t records_of_key_ = 0;
  std::vector<std::byte> gathered_;
};

// Values of Moved::error that a TlsSession or a TcpStream returns in addition to the errors of the system. The
// constants are errno values to which this file gives another meaning.
namespace tls_end {
// Before the end of the handshake: the other end has another key or is not a rank of Tutti, data was altered, or
// OpenSSL failed.
inline constexpr int kRefused = EKEYREJECTED;
inline constexpr int kAltered = EBADMSG;  // received data differs from the data that the peer sent; or OpenSSL failed
// The peer has sent an alert: it has found kAltered or a similar error.
inline constexpr int kPeerRefused = EREMOTEIO;
inline constexpr int kCut = ECONNABORTED;  // the connection ended without the close notification of TLS
}  // namespace tls_end

// Whether the error counts as tampering: a process between the two ends, or at one of them, has probably done something
// that a correct rank does not do. True for kRefused, kAltered and kPeerRefused.
bool is_tampering(int error);
// Describes how a connection ended: "end of file" for 0, a text for each constant of tls_end, and strerror() for any
// other errno.
std::string describe_end_error(int error);

}  // namespace tutti

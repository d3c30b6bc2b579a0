// TlsSession: TLS 1.3 on one connection, with a key that both ends already have.
//
// The key is used as an external PSK together with a Diffie-Hellman exchange. Even if the key becomes known later,
// recorded data can therefore not be decrypted. There are no certificates, tickets or early data. The session makes
// the same system calls as a plain connection, on a socket that its owner holds, and never blocks. The handshake
// continues inside send(), receive() and advance().
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
    Key key{};                              // must not be used for any other connection
    std::span<const std::byte> greeting{};  // sent in clear, before the handshake
    // The key is renewed after this number of records; TLS 1.3 permits 2^24.5 with AES-GCM.
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
  // Like receive_some(). Returns only data that was authenticated. If it is less than `parts` can hold, the system
  // has no more data now.
  Moved receive(int fd, std::span<iovec> parts);
  // Sends the first message of the handshake; reads nothing.
  void begin(int fd);
  // Continues the handshake as far as possible now, and sends the rest of its messages.
  void advance(int fd);
  // Sends the close notification of TLS, if the system takes it. It proves to the peer that all data has arrived.
  void send_close_notify(int fd);

  bool established() const { return established_; }
  bool over() const { return receive_end_.ended; }          // nothing more arrives from the system
  const Moved& send_end() const { return send_end_; }       // `ended` is set once the system takes nothing more
  bool unsent() const { return out_begin_ < out_.size(); }  // there is encrypted data that the system has not taken

 private:
  // A TLS record that the system has not taken completely.
  struct Record {
    std::size_t bytes;   // length of the caller's data
    std::uint64_t upto;  // end of the record, as a position in everything that was produced
  };
  struct EndSettings;  // settings that all sessions of one end share
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
  bool dead_ = false;          // the library must not be used any more
  Moved receive_end_;          // `ended` is set once nothing more can arrive
  Moved send_end_;             // `ended` is set once nothing more can be sent
  std::vector<std::byte> in_;  // encrypted data, as it arrived
  std::size_t in_begin_ = 0, in_end_ = 0;
  std::vector<std::byte> out_;  // encrypted data to be sent
  std::size_t out_begin_ = 0;
  std::uint64_t produced_ = 0;  // total number of encrypted bytes
  std::deque<Record> records_;  // records that the system has not taken completely
  std::size_t sealed_ = 0;      // bytes of the caller's data in records_
  std::uint64_t records_of_key_ = 0;
  std::vector<std::byte> gathered_;
};

// Errors in the Moved of a TlsSession, in addition to those of the system. These constants are errno values with a
// meaning of their own.
namespace tls_end {
inline constexpr int kRefused = EKEYREJECTED;   // in the handshake: the other end has another key, or is not a rank
inline constexpr int kAltered = EBADMSG;        // received data differs from what the peer sent
inline constexpr int kPeerRefused = EREMOTEIO;  // the peer reports kAltered or a similar error
inline constexpr int kCut = ECONNABORTED;       // the connection ended without the close notification of TLS
}  // namespace tls_end

// Whether the error shows that a process between the ends, or at one of them, did something that a rank never does.
bool is_tampering(int error);
// "end of file", the text of strerror(), or a description of the errors above.
std::string describe_end_error(int error);

}  // namespace tutti

// TlsSession: TLS 1.3 on one connection, by a key that both ends have (an external PSK, with a Diffie-Hellman exchange
// of its own: who learns the key later reads nothing of what has passed). No certificates, tickets or early data. It
// makes the same system calls as a plain connection, on a socket that its owner holds, and never blocks: the handshake
// goes on inside send(), receive() and advance().
//
// One thread at a time. The library's list of errors of the calling thread is cleared.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/hmac.h"
#include "transports/tcp/socket.h"
#include "transports/tcp/tls_library.h"

namespace tutti {

class TlsSession {
 public:
  enum class End : std::uint8_t { kClient, kServer };
  struct Options {
    End end = End::kClient;
    Key key{};                                 // of this connection, and of no other
    std::span<const std::byte> greeting{};     // sent in clear, before the handshake
    std::uint64_t records_per_key = 1u << 23;  // then a new one is made; TLS 1.3 allows 2^24.5 with AES-GCM
  };
  // Errors: those of TlsLibrary::open(), kSystem.
  static Result<std::unique_ptr<TlsSession>> create(const Options& options);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // As the functions of socket.h. `moved` is what the system has taken, encrypted; what it has not must be offered
  // again, first: some of it may be encrypted already. Before the handshake is through nothing moves.
  Moved send(int fd, std::span<iovec> parts);
  // Gives what was checked, and nothing else. Where it comes to less than `parts` have room for, the system has no
  // more.
  Moved receive(int fd, std::span<iovec> parts);
  // The first words of the handshake; reads nothing.
  void begin(int fd);
  // The handshake, as far as it comes now, and what was left unsent of it.
  void advance(int fd);
  // Tells the peer that this is the end, if there is room for that: what it read until then is all.
  void say_end(int fd);

  bool established() const { return established_; }
  bool over() const { return receive_end_.ended; }          // nothing more comes from the system
  const Moved& send_end() const { return send_end_; }       // `ended` once the system takes nothing more
  bool unsent() const { return out_begin_ < out_.size(); }  // encrypted, and not with the system yet

 private:
  struct Record {
    std::size_t bytes;   // of the caller's
    std::uint64_t upto;  // of all that was produced, where it ends
  };
  struct Side;  // what all sessions of one end share
  TlsSession(const TlsLibrary& tls, OpenSsl* ssl, const Options& options);
  static const Side& side(const TlsLibrary& tls, End end);
  static int use_session(OpenSsl*, const OpenSslDigest*, const unsigned char**, std::size_t*, OpenSslSession**);
  static int find_session(OpenSsl*, const unsigned char*, std::size_t, OpenSslSession**);
  static int write_out(OpenSslPipe*, const char* from, int bytes);
  static int read_in(OpenSslPipe*, char* to, int bytes);
  OpenSslSession* make_session() const;
  bool shake(int fd);
  bool shake_once(int fd);
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
  bool dead_ = false;          // the library takes and gives nothing more
  Moved receive_end_;          // `ended` once nothing more can come
  Moved send_end_;             // ... or be sent
  std::vector<std::byte> in_;  // encrypted, as it came
  std::size_t in_begin_ = 0, in_end_ = 0;
  std::vector<std::byte> out_;  // encrypted, to be sent
  std::size_t out_begin_ = 0;
  std::uint64_t produced_ = 0;  // encrypted bytes, of all time
  std::deque<Record> records_;  // encrypted, not all of it with the system
  std::size_t sealed_ = 0;      // bytes of the caller's in them
  std::uint64_t records_of_key_ = 0;
  std::vector<std::byte> gathered_;
};

// What a Moved of a TlsSession ended with, beside the system's numbers, which these are borrowed from.
namespace tls_end {
inline constexpr int kRefused = EKEYREJECTED;   // the handshake: the other end has another key, or is no rank
inline constexpr int kAltered = EBADMSG;        // what came is not what the peer has sent
inline constexpr int kPeerRefused = EREMOTEIO;  // the peer says kAltered or the like
inline constexpr int kCut = ECONNABORTED;       // the end came without the peer's word for it
}  // namespace tls_end

// Whether somebody between the ends, or at one of them, has done what no rank does.
bool is_tampering(int error);
// "end of file", strerror()'s words, or those above in full.
std::string words_of_end(int error);

}  // namespace tutti

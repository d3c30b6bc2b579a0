#include "transports/tcp/tls.h"

#include <fmt/format.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/assert.h"

namespace tutti {
namespace {

constexpr std::size_t kRecordBytes = 16384;    // the longest data of a record that TLS 1.3 permits
constexpr std::size_t kReadBytes = 64 * 1024;  // maximum length of each read from the socket
// seal() stops if at least this number of encrypted bytes wait for the system to take them.
constexpr std::size_t kMostUnsent = 256 * 1024;
constexpr std::size_t kGatherBytes = kRecordBytes;  // shorter parts are gathered into one record of up to this length

// Constants of OpenSSL.
constexpr int kWantRead = 2, kZeroReturn = 6;
constexpr int kSetMode = 33, kSetSessionCache = 44, kSetGroups = 92, kSetLeastVersion = 123, kSetMostVersion = 124;
constexpr long kVersion13 = 0x0304, kPartialWrites = 1, kMovingBuffer = 2;
constexpr int kVerifyPeer = 1;
constexpr int kPipeType = 0x0400 | 120;  // BIO_TYPE_SOURCE_SINK and a number of our own
constexpr int kPipeFlush = 11;
constexpr int kShouldRetryRead = 0x01 | 0x08;
// An error code of kFirstAlertReason + n means that the peer has sent alert n.
constexpr unsigned long kFirstAlertReason = 1000;
constexpr unsigned char kIdentity[] = "tutti";  // name of the key; always the same, as each connection has only one key

// Whether this processor is known to have instructions for AES.
bool has_aes() {
#if defined(__x86_64__) || defined(__i386__)
  return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
  constexpr unsigned long kAes = 1u << 3;
  return (getauxval(AT_HWCAP) & kAes) != 0;
#else
  return false;
#endif
}

// The control function of our BIO: of all commands of OpenSSL, only a flush succeeds.
long answer_nothing(OpenSslPipe*, int command, long, void*) { return command == kPipeFlush ? 1 : 0; }

}  // namespace

struct TlsSession::EndSettings {
  OpenSslContext* context = nullptr;
  OpenSslPipeMethod* pipe = nullptr;
};

const TlsSession::EndSettings& TlsSession::settings_of(const TlsLibrary& tls, End end) {
  const auto make = [&tls](End which) {
    EndSettings made;
    made.context = tls.context_new(which == End::kClient ? tls.client_method() : tls.server_method());
    made.pipe = tls.meth_new(kPipeType, "tutti");
    if (made.context == nullptr || made.pipe == nullptr) return EndSettings();
    // No certificate is ever accepted: the client checks every certificate, and trusts none.
    if (which == End::kClient) tls.context_set_verify(made.context, kVerifyPeer, nullptr);
    char groups[] = "X25519:P-256";
    const char* const suites = has_aes() ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                         : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
    const bool ready = tls.context_ctrl(made.context, kSetLeastVersion, kVersion13, nullptr) == 1 &&
                       tls.context_ctrl(made.context, kSetMostVersion, kVersion13, nullptr) == 1 &&
                       tls.context_ctrl(made.context, kSetGroups, 0, groups) == 1 &&
                       tls.context_set_ciphersuites(made.context, suites) == 1 &&
                       tls.context_set_num_tickets(made.context, 0) == 1 &&
                       tls.meth_set_write(made.pipe, write_out) == 1 && tls.meth_set_read(made.pipe, read_in) == 1 &&
                       tls.meth_set_ctrl(made.pipe, answer_nothing) == 1;
    if (!ready) return EndSettings();
    tls.context_ctrl(made.context, kSetSessionCache, 0, nullptr);
    tls.context_ctrl(made.context, kSetMode, kPartialWrites | kMovingBuffer, nullptr);
    if (which == End::kClient) tls.context_set_psk_use_session_callback(made.context, use_session);
    if (which == End::kServer) tls.context_set_psk_find_session_callback(made.context, find_session);
    return made;
  };
  static const EndSettings client = make(End::kClient);  // for the whole process; never freed
  static const EndSettings server = make(End::kServer);
  return end == End::kClient ? client : server;
}

Result<std::unique_ptr<TlsSession>> TlsSession::create(const Options& options) {
  auto tls = TlsLibrary::open();
  if (!tls) return tls.error();
  const Error failed{ErrorCode::kSystem, ErrorScope::kCommunicator, -1,
                     "libssl.so.3 cannot create a TLS 1.3 connection: does its configuration forbid that?"};
  (*tls)->err_clear_error();
  const EndSettings& shared = settings_of(**tls, options.end);
  if (shared.context == nullptr) return failed;
  OpenSsl* const ssl = (*tls)->ssl_new(shared.context);
  OpenSslPipe* const pipe = ssl == nullptr ? nullptr : (*tls)->bio_new(shared.pipe);
  if (pipe == nullptr) {
    if (ssl != nullptr) (*tls)->ssl_free(ssl);
    return failed;
  }
  std::unique_ptr<TlsSession> made(new TlsSession(**tls, ssl, options));  // the constructor is private
  (*tls)->bio_set_data(pipe, made.get());
  (*tls)->bio_set_init(pipe, 1);
  (*tls)->set_bio(ssl, pipe, pipe);  // `ssl` owns the pipe now
  (*tls)->set_ex_data(ssl, 0, made.get());
  if (options.end == End::kClient) (*tls)->set_connect_state(ssl);
  if (options.end == End::kServer) (*tls)->set_accept_state(ssl);
  return made;
}

TlsSession::TlsSession(const TlsLibrary& tls, OpenSsl* ssl, const Options& options)
    : tls_(tls),
      ssl_(ssl),
      key_(options.key),
      records_per_key_(options.records_per_key),
      in_(kReadBytes),
      out_(options.greeting.begin(), options.greeting.end()),
      produced_(out_.size()) {}

TlsSession::~TlsSession() { tls_.ssl_free(ssl_); }

OpenSslSession* TlsSession::make_session() const {
  // Only the hash of the cipher suite matters here, which is the same for both suites.
  constexpr unsigned char kSuite[2] = {0x13, 0x01};
  OpenSslSession* const session = tls_.session_new();
  if (session == nullptr) return nullptr;
  const OpenSslCipher* const cipher = tls_.cipher_find(ssl_, kSuite);
  if (cipher != nullptr && tls_.session_set1_master_key(session, key_.data(), key_.size()) == 1 &&
      tls_.session_set_cipher(session, cipher) == 1 &&
      tls_.session_set_protocol_version(session, static_cast<int>(kVersion13)) == 1) {
    return session;
  }
  tls_.session_free(session);
  return nullptr;
}

int TlsSession::use_session(OpenSsl* ssl, const OpenSslDigest*, const unsigned char** identity, std::size_t* bytes,
                            OpenSslSession** session) {
  const TlsLibrary& tls = **TlsLibrary::open();
  *identity = kIdentity;
  *bytes = sizeof(kIdentity);
  *session = static_cast<TlsSession*>(tls.get_ex_data(ssl, 0))->make_session();
  return *session == nullptr ? 0 : 1;
}

int TlsSession::find_session(OpenSsl* ssl, const unsigned char* identity, std::size_t bytes, OpenSslSession** session) {
  const TlsLibrary& tls = **TlsLibrary::open();
  *session = nullptr;
  // 1 without a session means that this end knows no key with that name, so the handshake fails.
  if (bytes != sizeof(kIdentity) || std::memcmp(identity, kIdentity, bytes) != 0) return 1;
  *session = static_cast<TlsSession*>(tls.get_ex_data(ssl, 0))->make_session();
  return *session == nullptr ? 0 : 1;
}

int TlsSession::write_out(OpenSslPipe* pipe, const char* from, int bytes) {
  auto* const self = static_cast<TlsSession*>((*TlsLibrary::open())->bio_get_data(pipe));
  const auto* const begin = reinterpret_cast<const std::byte*>(from);
  self->out_.insert(self->out_.end(), begin, begin + bytes);
  self->produced_ += static_cast<std::size_t>(bytes);
  return bytes;
}

int TlsSession::read_in(OpenSslPipe* pipe, char* to, int bytes) {
  const TlsLibrary& tls = **TlsLibrary::open();
  auto* const self = static_cast<TlsSession*>(tls.bio_get_data(pipe));
  tls.bio_clear_flags(pipe, kShouldRetryRead);
  const std::size_t count = std::min(static_cast<std::size_t>(bytes), self->in_end_ - self->in_begin_);
  if (count == 0) {
    tls.bio_set_flags(pipe, kShouldRetryRead);
    return -1;
  }
  std::memcpy(to, self->in_.data() + self->in_begin_, count);
  self->in_begin_ += count;
  return static_cast<int>(count);
}

// Passes the data in out_ to the system. Returns false if the system did not take all of it.
bool TlsSession::flush(int fd) {
  while (unsent() && !send_end_.ended) {
    iovec part{.iov_base = out_.data() + out_begin_, .iov_len = out_.size() - out_begin_};
    const Moved moved = send_some(fd, {&part, 1});
    if (moved.ended) send_end_ = moved;
    if (moved.bytes == 0) return false;
    out_begin_ += moved.bytes;
    if (out_begin_ < kMostUnsent) continue;
    out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(out_begin_));
    out_begin_ = 0;
  }
  if (unsent()) return false;
  out_.clear();
  out_begin_ = 0;
  return true;
}

// Reads more encrypted data into in_ with one system call. All previous data must have been used. Returns false if
// there is no data now, or if the connection has ended.
bool TlsSession::fill(int fd) {
  if (receive_end_.ended) return false;
  TUTTI_ASSERT(in_begin_ == in_end_);
  const Moved moved = receive_some(fd, in_.data(), in_.size());
  in_begin_ = 0;
  in_end_ = moved.bytes;
  if (moved.ended) {
    const int why = moved.error != 0 ? moved.error : send_end_.error;
    receive_end_ = {.ended = true, .error = why != 0 ? why : tls_end::kCut};
  }
  return moved.bytes > 0;
}

// Handles an error of OpenSSL. After that, nothing more is read or sent on this connection, except for the alert that
// tells the peer the reason and is already in out_.
void TlsSession::fail(int fd) {
  const unsigned long reason = tls_.err_get_error() & 0x7fffff;
  const bool of_peer = reason >= kFirstAlertReason && reason < kFirstAlertReason + 256;
  tls_.err_clear_error();
  const int error = !established_ ? tls_end::kRefused : of_peer ? tls_end::kPeerRefused : tls_end::kAltered;
  flush(fd);
  shutdown(fd, SHUT_WR);  // makes remote_has_closed() true at the peer, which then reads the alert
  dead_ = true;
  receive_end_ = send_end_ = {.ended = true, .error = error};
}

// Executes one step of the handshake. Returns true if it needs more data from the peer.
bool TlsSession::handshake_step(int fd) {
  tls_.err_clear_error();
  const int result = tls_.do_handshake(ssl_);
  if (result != 1 && tls_.get_error(ssl_, result) == kWantRead) return true;
  // Without the key, the peer could only have presented a certificate, and no certificate is trusted.
  // session_reused() makes sure once more that the key was used.
  established_ = result == 1 && tls_.session_reused(ssl_) == 1;
  if (!established_) fail(fd);
  return false;
}

bool TlsSession::run_handshake(int fd) {
  while (!established_ && !receive_end_.ended && handshake_step(fd)) {
    flush(fd);
    if (!fill(fd)) break;
  }
  return established_;
}

void TlsSession::begin(int fd) {
  if (!established_ && !receive_end_.ended) handshake_step(fd);
  flush(fd);
}

void TlsSession::advance(int fd) {
  if (!established_) run_handshake(fd);
  flush(fd);
}

// Encrypts `parts` into out_, as long as there is space. Skips the first sealed_ bytes of `parts`, which an earlier
// call has already encrypted. Returns true if all of `parts` is encrypted, and false if there is not enough space or
// OpenSSL has failed.
bool TlsSession::seal(std::span<iovec> parts) {
  std::size_t skip = sealed_;
  gathered_.clear();
  const auto put = [this](const std::byte* from, std::size_t bytes) {
    if (++records_of_key_ % records_per_key_ == 0) tls_.key_update(ssl_, 0);
    tls_.err_clear_error();
    std::size_t written = 0;
    if (tls_.write_ex(ssl_, from, bytes, &written) != 1 || written != bytes) {
      send_end_ = {.ended = true, .error = tls_end::kAltered};
      return false;
    }
    records_.push_back({.bytes = bytes, .upto = produced_});
    sealed_ += bytes;
    return true;
  };
  const auto put_gathered = [&] {
    if (gathered_.empty()) return true;
    const bool put_all = put(gathered_.data(), gathered_.size());
    gathered_.clear();
    return put_all;
  };
  for (const iovec& part : parts) {
    const std::size_t skipped = std::min(skip, part.iov_len);
    skip -= skipped;
    const auto* at = static_cast<const std::byte*>(part.iov_base) + skipped;
    std::size_t left = part.iov_len - skipped;
    while (left > 0) {
      if (out_.size() - out_begin_ >= kMostUnsent) return put_gathered() && false;
      const std::size_t bytes = std::min(left, kGatherBytes - gathered_.size());
      if (gathered_.empty() && bytes == kRecordBytes) {
        if (!put(at, bytes)) return false;
      } else {
        gathered_.insert(gathered_.end(), at, at + bytes);
        if (gathered_.size() == kGatherBytes && !put_gathered()) return false;
      }
      at += bytes;
      left -= bytes;
    }
  }
  TUTTI_ASSERT(skip == 0, "the caller must offer the {} bytes again that were not sent", skip);
  return put_gathered();
}

// Sends `parts` by send_sealed(). After an exception it is unknown how much of them was sent, so nothing more can be
// sent on this connection.
Moved TlsSession::send(int fd, std::span<iovec> parts) {
  try {
    return send_sealed(fd, parts);
  } catch (...) {
    send_end_ = {.ended = true, .error = ENOMEM};
    throw;
  }
}

Moved TlsSession::send_sealed(int fd, std::span<iovec> parts) {
  if (!established_ && !run_handshake(fd)) flush(fd);
  Moved moved;
  while (established_ && !send_end_.ended) {
    const bool all = seal(parts);
    const bool flushed = flush(fd);
    const std::uint64_t sent = produced_ - (out_.size() - out_begin_);
    std::size_t gone = 0;
    while (!records_.empty() && records_.front().upto <= sent) {
      gone += records_.front().bytes;
      records_.pop_front();
    }
    sealed_ -= gone;
    moved.bytes += gone;
    if (all || !flushed) break;
    // Removes the part that was sent from `parts`, because the next call of seal() skips only the data that is still
    // in records_.
    for (iovec& part : parts) {
      const std::size_t bytes = std::min(gone, part.iov_len);
      part = {.iov_base = static_cast<std::byte*>(part.iov_base) + bytes, .iov_len = part.iov_len - bytes};
      gone -= bytes;
    }
  }
  if (moved.bytes > 0) return moved;
  if (send_end_.ended) return send_end_;
  if (!established_ && receive_end_.ended) return receive_end_;
  return moved;
}

// Fills `part` with decrypted data. Returns false if there is not enough data now, or if the connection has ended.
bool TlsSession::read_part(int fd, iovec part, Moved& moved) {
  std::size_t have = 0;
  while (have < part.iov_len) {
    std::size_t read = 0;
    tls_.err_clear_error();
    const int result = tls_.read_ex(ssl_, static_cast<std::byte*>(part.iov_base) + have, part.iov_len - have, &read);
    if (result == 1) {
      have += read;
      moved.bytes += read;
      continue;
    }
    const int why = tls_.get_error(ssl_, result);
    if (why == kWantRead) {
      if (unsent()) flush(fd);
      if (!fill(fd)) return false;
    } else if (why == kZeroReturn) {
      receive_end_ = {.ended = true};
      return false;
    } else {
      fail(fd);
      return false;
    }
  }
  return true;
}

Moved TlsSession::receive(int fd, std::span<iovec> parts) {
  Moved moved;
  if (!established_) advance(fd);
  if (established_) {
    for (const iovec& part : parts) {
      if (dead_ || !read_part(fd, part, moved)) break;
    }
  }
  if (moved.bytes > 0 || !receive_end_.ended) return moved;
  return receive_end_;
}

void TlsSession::send_close_notify(int fd) {
  if (!established_ || send_end_.ended) return;
  tls_.err_clear_error();
  tls_.shutdown(ssl_);
  flush(fd);
}

bool is_tampering(int error) {
  return error == tls_end::kRefused || error == tls_end::kAltered || error == tls_end::kPeerRefused;
}

std::string describe_end_error(int error) {
  if (error == 0) return "end of file";
  if (error == tls_end::kRefused)
    return "TLS: the other end does not have this connection's key, or data was altered in transit";
  if (error == tls_end::kAltered) return "TLS: received data was altered in transit";
  if (error == tls_end::kPeerRefused) return "TLS: the other end reports that data was altered in transit";
  if (error == tls_end::kCut) return "TLS: end of file without a close notification";
  return std::strerror(error);
}

}  // namespace tutti

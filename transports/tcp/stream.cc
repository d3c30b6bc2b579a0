#include "transports/tcp/stream.h"

#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>

namespace tutti {
namespace {

constexpr std::size_t kMaxUnreadBytes = 64 * 1024 * 1024;  // in which a goodbye is looked for; more than kernels hold
constexpr std::size_t kAheadBytes = 64 * 1024;             // decrypted at once

// Of all that has come and will: the last frame's, or how it ended.
Reply reply_at_end(std::span<const std::byte> all, int error) {
  const Reply ended{.kind = Reply::Kind::kEnded, .error = error};
  if (all.size() < kHeaderBytes) return ended;
  FrameHeader frame;
  std::memcpy(&frame, all.data() + all.size() - kHeaderBytes, sizeof(frame));
  const bool answer = frame.kind == FrameKind::kGoodbye || frame.kind == FrameKind::kRefusal;
  return frame.magic == kFrameMagic && answer && frame.bytes == 0 ? reply_of(frame) : ended;
}

}  // namespace

Tag answer_proof(const Key& key, const FrameHeader& frame) {
  return tag_of(hmac_sha256(bytes_of(key), {"tutti answer in clear", bytes_of(frame)}));
}

Result<TcpStream> TcpStream::encrypted(Socket socket, TlsSession::End end, const Key& key,
                                       std::span<const std::byte> greeting) {
  auto tls = TlsSession::create({.end = end, .key = key, .greeting = greeting});
  if (!tls) return tls.error();
  TcpStream stream(std::move(socket));
  stream.secret_ = std::make_unique<Secret>();
  stream.secret_->tls = std::move(*tls);
  stream.secret_->key = key;
  stream.secret_->listens_for_answer = end == TlsSession::End::kClient;
  return stream;
}

void TcpStream::end() {
  if (!socket_.is_open()) return;
  if (secret_ != nullptr) secret_->tls->say_end(socket_.get());
  discard_unread(socket_.get());
  socket_.close();
}

short TcpStream::wait_events() const { return ready() || unsent() ? POLLOUT : POLLIN; }

Moved TcpStream::send_secret(std::span<iovec> parts) {
  if (!advance_secret()) return {};
  return secret_->end.ended ? secret_->end : secret_->tls->send(socket_.get(), parts);
}

Moved TcpStream::finish() {
  if (secret_ == nullptr || !advance_secret()) return {};
  return secret_->end.ended ? secret_->end : secret_->tls->send_end();
}

Moved TcpStream::receive_secret(std::span<iovec> parts) {
  Secret& secret = *secret_;
  if (!advance_secret()) return {};
  Moved moved;
  for (iovec& part : parts) {
    const std::size_t bytes = std::min(part.iov_len, secret.ahead.size() - secret.ahead_begin);
    if (bytes > 0) std::memcpy(part.iov_base, secret.ahead.data() + secret.ahead_begin, bytes);
    secret.ahead_begin += bytes;
    moved.bytes += bytes;
    part = {.iov_base = static_cast<std::byte*>(part.iov_base) + bytes, .iov_len = part.iov_len - bytes};
    if (part.iov_len > 0) break;
  }
  if (secret.ahead_begin < secret.ahead.size()) return moved;
  secret.ahead.clear();
  secret.ahead_begin = 0;
  if (secret.end.ended) return moved.bytes > 0 ? moved : secret.end;
  const Moved more = secret.tls->receive(socket_.get(), parts);
  if (more.ended) secret.end = more;
  if (moved.bytes == 0) return more;
  moved.bytes += more.bytes;
  return moved;
}

// False: nothing of the caller's can move yet.
bool TcpStream::advance_secret() {
  if (secret_->end.ended) return true;
  if (secret_->listens_for_answer) {
    const Heard heard = hear_answer();
    if (heard == Heard::kNothing) secret_->tls->begin(socket_.get());
    if (heard != Heard::kTls) return secret_->end.ended;
  }
  if (!ready() || unsent()) secret_->tls->advance(socket_.get());
  return true;
}

// What the one that was connected to says first; nothing is taken from the system.
TcpStream::Heard TcpStream::hear_answer() {
  Secret& secret = *secret_;
  std::array<std::byte, kAnswerBytes> bytes{};
  const Moved moved = peek_some(socket_.get(), bytes.data(), bytes.size());
  if (moved.ended) {
    const int why = moved.error != 0 ? moved.error : secret.tls->send_end().error;
    secret.end = {.ended = true, .error = why != 0 ? why : tls_end::kCut};
  }
  if (moved.bytes == 0) return moved.ended ? Heard::kAnswer : Heard::kNothing;
  if (std::memcmp(bytes.data(), &kFrameMagic, std::min(moved.bytes, sizeof(kFrameMagic))) != 0) {
    secret.listens_for_answer = false;
    return Heard::kTls;
  }
  FrameHeader frame;
  std::memcpy(&frame, bytes.data(), sizeof(frame));
  const bool refusal = moved.bytes >= kHeaderBytes && frame.kind == FrameKind::kRefusal;
  if (!refusal && moved.bytes < kAnswerBytes) {
    if (remote_has_closed(socket_.get())) secret.end = {.ended = true, .error = tls_end::kCut};
    return Heard::kAnswer;
  }
  Tag proof{};
  std::memcpy(&proof, bytes.data() + kHeaderBytes, sizeof(proof));
  const bool proved = equal_in_constant_time(bytes_of(proof), bytes_of(answer_proof(secret.key, frame)));
  if (refusal || proved) secret.ahead.assign(bytes.data(), bytes.data() + kHeaderBytes);
  secret.end = {.ended = true, .error = refusal || proved ? 0 : tls_end::kRefused};
  return Heard::kAnswer;
}

void TcpStream::read_ahead() {
  Secret& secret = *secret_;
  secret.ahead.erase(secret.ahead.begin(), secret.ahead.begin() + static_cast<std::ptrdiff_t>(secret.ahead_begin));
  secret.ahead_begin = 0;
  while (!secret.end.ended && secret.ahead.size() < kMaxUnreadBytes) {
    const std::size_t had = secret.ahead.size();
    secret.ahead.resize(had + kAheadBytes);
    iovec part{.iov_base = secret.ahead.data() + had, .iov_len = kAheadBytes};
    const Moved moved = secret.tls->receive(socket_.get(), {&part, 1});
    secret.ahead.resize(had + moved.bytes);
    if (moved.ended) secret.end = moved;
    if (moved.bytes == 0) break;
  }
}

Reply TcpStream::last_words(std::span<const std::byte> stashed) {
  if (secret_ != nullptr) {
    advance();
    if (!over() && !remote_has_closed(socket_.get())) return {};
    read_ahead();
    std::vector<std::byte> all(stashed.begin(), stashed.end());
    const auto unread = std::span(secret_->ahead).subspan(secret_->ahead_begin);
    all.insert(all.end(), unread.begin(), unread.end());
    return reply_at_end(all, secret_->end.error);
  }
  const int fd = socket_.get();
  if (!remote_has_closed(fd)) return {};
  int unread_bytes = 0;
  if (ioctl(fd, FIONREAD, &unread_bytes) != 0 || unread_bytes < 0) unread_bytes = 0;
  std::vector<std::byte> all(stashed.begin(), stashed.end());
  // One byte more than there is, so that a connection that has ended by an error says by which.
  all.resize(stashed.size() + std::min(static_cast<std::size_t>(unread_bytes), kMaxUnreadBytes) + 1);
  const Moved moved = peek_some(fd, all.data() + stashed.size(), all.size() - stashed.size());
  all.resize(stashed.size() + moved.bytes);
  return reply_at_end(all, moved.error);
}

Reply ReplyReader::read(TcpStream& stream) {
  while (have_ < bytes_.size()) {
    const Moved moved = stream.receive(bytes_.data() + have_, bytes_.size() - have_);
    if (moved.ended) return {.kind = Reply::Kind::kEnded, .error = moved.error};
    if (moved.bytes == 0) return {};
    have_ += moved.bytes;
  }
  FrameHeader frame;
  std::memcpy(&frame, bytes_.data(), sizeof(frame));
  return reply_of(frame);
}

}  // namespace tutti

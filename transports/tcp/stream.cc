#include "transports/tcp/stream.h"

#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>

namespace tutti {
namespace {

// About the maximum amount of unread data that is read to find out whether it ends with a close frame or a refusal. It
// is more than a kernel usually buffers.
constexpr std::size_t kMaxUnreadBytes = 64 * 1024 * 1024;
constexpr std::size_t kAheadBytes = 64 * 1024;  // maximum length of each read in read_ahead()

// Returns the meaning of the last frame of `all`, which must end with the last bytes that arrive on the connection. If
// `all` does not end with a close frame or a refusal, returns kEnded with `error`.
Reply reply_at_end(std::span<const std::byte> all, int error) {
  const Reply ended{.kind = Reply::Kind::kEnded, .error = error};
  if (all.size() < kHeaderBytes) return ended;
  FrameHeader frame;
  std::memcpy(&frame, all.data() + all.size() - kHeaderBytes, sizeof(frame));
  const bool answer = frame.kind == FrameKind::kClose || frame.kind == FrameKind::kRefusal;
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
  stream.encryption_ = std::make_unique<Encryption>();
  stream.encryption_->tls = std::move(*tls);
  stream.encryption_->key = key;
  stream.encryption_->awaits_answer = end == TlsSession::End::kClient;
  return stream;
}

void TcpStream::end() {
  if (!socket_.is_open()) return;
  if (encryption_ != nullptr) encryption_->tls->send_close_notify(socket_.get());
  discard_unread(socket_.get());
  socket_.close();
}

bool TcpStream::send_close_frame(FrameHeader frame) {
  while (close_frame_sent_ < sizeof(frame)) {
    iovec part{.iov_base = reinterpret_cast<std::byte*>(&frame) + close_frame_sent_,
               .iov_len = sizeof(frame) - close_frame_sent_};
    const Moved moved = send({&part, 1});
    if (moved.ended) return true;
    if (moved.bytes == 0) return false;
    close_frame_sent_ += moved.bytes;
  }
  return true;
}

void TcpStream::count_retransmissions(std::optional<std::uint64_t>& total) {
  if (!is_open()) return;
  const std::optional<std::uint32_t> now = retransmitted_segments(get());
  if (!now) return;
  total = total.value_or(0) + static_cast<std::uint32_t>(*now - counted_retransmissions_);
  counted_retransmissions_ = *now;
}

short TcpStream::wait_events() const { return ready() || unsent() ? POLLOUT : POLLIN; }

Moved TcpStream::send_encrypted(std::span<iovec> parts) {
  if (!advance_handshake()) return {};
  return encryption_->end.ended ? encryption_->end : encryption_->tls->send(socket_.get(), parts);
}

Moved TcpStream::finish() {
  if (encryption_ == nullptr || !advance_handshake()) return {};
  return encryption_->end.ended ? encryption_->end : encryption_->tls->send_end();
}

Moved TcpStream::receive_encrypted(std::span<iovec> parts) {
  Encryption& encryption = *encryption_;
  if (!advance_handshake()) return {};
  Moved moved;
  for (iovec& part : parts) {
    const std::size_t bytes = std::min(part.iov_len, encryption.ahead.size() - encryption.ahead_begin);
    if (bytes > 0) std::memcpy(part.iov_base, encryption.ahead.data() + encryption.ahead_begin, bytes);
    encryption.ahead_begin += bytes;
    moved.bytes += bytes;
    part = {.iov_base = static_cast<std::byte*>(part.iov_base) + bytes, .iov_len = part.iov_len - bytes};
    if (part.iov_len > 0) break;
  }
  if (encryption.ahead_begin < encryption.ahead.size()) return moved;
  encryption.ahead.clear();
  encryption.ahead_begin = 0;
  if (encryption.end.ended) return moved.bytes > 0 ? moved : encryption.end;
  const Moved more = encryption.tls->receive(socket_.get(), parts);
  if (more.ended) encryption.end = more;
  if (moved.bytes == 0) return more;
  moved.bytes += more.bytes;
  return moved;
}

// Continues the handshake. Returns false while this end, as the client, waits for the first bytes of the other end,
// which may be an answer in clear, or for the rest of such an answer. In that case no data of the caller can be moved.
// Otherwise returns true, also if the connection has ended.
bool TcpStream::advance_handshake() {
  if (encryption_->end.ended) return true;
  if (encryption_->awaits_answer) {
    const AnswerState answer_state = peek_answer();
    if (answer_state == AnswerState::kNothing) encryption_->tls->begin(socket_.get());
    if (answer_state != AnswerState::kTls) return encryption_->end.ended;
  }
  if (!ready() || unsent()) encryption_->tls->advance(socket_.get());
  return true;
}

// Checks whether the first bytes from the other end are an answer in clear (kAnswer), TLS (kTls), or have not arrived
// (kNothing). kAnswer also means that the answer in clear is incomplete, or that the connection has ended without any
// bytes. Reads with peek_some(), so that the data stays in the socket for TLS.
TcpStream::AnswerState TcpStream::peek_answer() {
  Encryption& encryption = *encryption_;
  std::array<std::byte, kAnswerBytes> bytes{};
  const Moved moved = peek_some(socket_.get(), bytes.data(), bytes.size());
  if (moved.ended) {
    const int why = moved.error != 0 ? moved.error : encryption.tls->send_end().error;
    encryption.end = {.ended = true, .error = why != 0 ? why : tls_end::kCut};
  }
  if (moved.bytes == 0) return moved.ended ? AnswerState::kAnswer : AnswerState::kNothing;
  if (std::memcmp(bytes.data(), &kFrameMagic, std::min(moved.bytes, sizeof(kFrameMagic))) != 0) {
    encryption.awaits_answer = false;
    return AnswerState::kTls;
  }
  FrameHeader frame;
  std::memcpy(&frame, bytes.data(), sizeof(frame));
  const bool refusal = moved.bytes >= kHeaderBytes && frame.kind == FrameKind::kRefusal;
  if (!refusal && moved.bytes < kAnswerBytes) {
    if (remote_has_closed(socket_.get())) encryption.end = {.ended = true, .error = tls_end::kCut};
    return AnswerState::kAnswer;
  }
  Tag proof{};
  std::memcpy(&proof, bytes.data() + kHeaderBytes, sizeof(proof));
  const bool proved = equal_in_constant_time(bytes_of(proof), bytes_of(answer_proof(encryption.key, frame)));
  if (refusal || proved) encryption.ahead.assign(bytes.data(), bytes.data() + kHeaderBytes);
  encryption.end = {.ended = true, .error = refusal || proved ? 0 : tls_end::kRefused};
  return AnswerState::kAnswer;
}

// Decrypts everything that has arrived into `ahead`, up to about kMaxUnreadBytes.
void TcpStream::read_ahead() {
  Encryption& encryption = *encryption_;
  encryption.ahead.erase(encryption.ahead.begin(),
                         encryption.ahead.begin() + static_cast<std::ptrdiff_t>(encryption.ahead_begin));
  encryption.ahead_begin = 0;
  while (!encryption.end.ended && encryption.ahead.size() < kMaxUnreadBytes) {
    const std::size_t had = encryption.ahead.size();
    encryption.ahead.resize(had + kAheadBytes);
    iovec part{.iov_base = encryption.ahead.data() + had, .iov_len = kAheadBytes};
    const Moved moved = encryption.tls->receive(socket_.get(), {&part, 1});
    encryption.ahead.resize(had + moved.bytes);
    if (moved.ended) encryption.end = moved;
    if (moved.bytes == 0) break;
  }
}

Reply TcpStream::final_reply(std::span<const std::byte> stashed) {
  if (encryption_ != nullptr) {
    advance();
    if (!over() && !remote_has_closed(socket_.get())) return {};
    read_ahead();
    std::vector<std::byte> all(stashed.begin(), stashed.end());
    const auto unread = std::span(encryption_->ahead).subspan(encryption_->ahead_begin);
    all.insert(all.end(), unread.begin(), unread.end());
    return reply_at_end(all, encryption_->end.error);
  }
  const int fd = socket_.get();
  if (!remote_has_closed(fd)) return {};
  int unread_bytes = 0;
  if (ioctl(fd, FIONREAD, &unread_bytes) != 0 || unread_bytes < 0) unread_bytes = 0;
  std::vector<std::byte> all(stashed.begin(), stashed.end());
  // One byte more than there is: if nothing is unread, the read then returns the error with which the connection
  // ended.
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

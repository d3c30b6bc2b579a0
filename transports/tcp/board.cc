#include "transports/tcp/board.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/exceptions.h"

namespace tutti {
namespace {

// A rank that is still in a call this long after its first wait in that call sends its state to the peers, unless it
// has done so already in that call.
constexpr std::int64_t kLateNs = 50'000'000;
// How long leave() and abort() wait, at most, for a failure or an abort to be sent. An encrypted connection can send
// only after the peer's process has answered its handshake, and on a busy machine that process may not run for a while.
// So, with encryption, leave() waits for kEncryptedFlushLimitNs, but for the rank that caused the failure only for
// kFlushLimitNs. abort() waits only for kFlushLimitNs, because its caller wants to continue. But if another thread is
// in leave(), abort() first waits for that thread.
constexpr std::int64_t kFlushLimitNs = 100'000'000;
constexpr std::int64_t kEncryptedFlushLimitNs = 1'000'000'000;
constexpr std::int64_t kRetryIntervalNs = 100'000'000;  // shortest time between two attempts to connect to a peer
// If more bytes than this are queued for a peer, the state is not queued until the operating system has taken all of
// them. States in between are skipped, so that a peer that does not read costs little memory.
constexpr std::size_t kMaxPendingBytes = 16384;

template <class T>
void put(std::vector<std::byte>& to, const T& value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof(value));
}

}  // namespace

StatePusher::StatePusher(const Preamble& mine, std::vector<std::optional<PeerAddress>> addresses, TcpEndpoint& endpoint,
                         EpollDoorbell& doorbell, Clock& clock)
    : mine_(mine),
      addresses_(std::move(addresses)),
      endpoint_(endpoint),
      doorbell_(doorbell),
      clock_(clock),
      connections_(addresses_.size()) {
  record_.life = static_cast<std::uint32_t>(PeerLife::kLive);
}

void StatePusher::enter(const CallTag& tag) {
  const std::scoped_lock lock(mutex_);
  call_ = tag;
  record_.entered = tag.sequence;
  inside_ = true;
  state_sent_ = false;
  waits_since_ns_ = 0;
}

void StatePusher::leave(const CallTag& tag, const std::optional<CallFailure>& failure) {
  const std::scoped_lock lock(mutex_);
  record_.left = std::max(record_.left, tag.sequence);
  inside_ = false;
  if (failure) {
    record_.failed = tag.sequence;
    record_.code = static_cast<std::uint32_t>(failure->code);
    record_.culprit = failure->culprit;
    record_.argument = static_cast<std::uint32_t>(failure->argument);
    push();
    flush_with_limit(leave_limit_ns(), failure->culprit);
  } else if (state_sent_) {
    push();  // the state was sent to the peers during this call, so they also get the end of the call
  }
}

void StatePusher::abort() {
  const std::scoped_lock lock(mutex_);
  if (record_.life == static_cast<std::uint32_t>(PeerLife::kAborted)) return;
  record_.life = static_cast<std::uint32_t>(PeerLife::kAborted);
  push();
  flush_with_limit(kFlushLimitNs, -1);
}

void StatePusher::send_close() {
  const std::scoped_lock lock(mutex_);
  if (record_.life == static_cast<std::uint32_t>(PeerLife::kLive)) {
    record_.life = static_cast<std::uint32_t>(PeerLife::kLeft);
  }
  for (ControlConnection& connection : connections_) {
    if (connection.socket.is_open() && !connection.closed) runs_through([&] { static_cast<void>(append(connection)); });
  }
  runs_through([this] { flush_locked(); });
}

void StatePusher::push_if_late() {
  const std::scoped_lock lock(mutex_);
  if (!inside_ || state_sent_) return;
  const std::int64_t now_ns = clock_.now_ns();
  if (waits_since_ns_ == 0) waits_since_ns_ = now_ns;
  if (now_ns - waits_since_ns_ >= kLateNs) push();
}

void StatePusher::push_now() {
  const std::scoped_lock lock(mutex_);
  if (inside_ && !state_sent_) push();
}

void StatePusher::connect(std::uint32_t peer) {
  const std::scoped_lock lock(mutex_);
  if (addresses_[peer] && open(peer)) flush_locked();
}

bool StatePusher::flush() {
  const std::scoped_lock lock(mutex_);
  return flush_locked();
}

StateRecord StatePusher::record() const {
  const std::scoped_lock lock(mutex_);
  return record_;
}

std::string StatePusher::trouble() const {
  const std::scoped_lock lock(mutex_);
  for (const ControlConnection& connection : connections_) {
    if (!connection.trouble.empty()) return connection.trouble;
  }
  return {};
}

void StatePusher::push() {
  state_sent_ = true;
  for (std::uint32_t peer = 0; peer < connections_.size(); ++peer)
    connections_[peer].state_due = addresses_[peer].has_value();
  flush_locked();
}

bool StatePusher::open(std::uint32_t peer) {
  ControlConnection& connection = connections_[peer];
  if (connection.closed || connection.socket.is_open()) return !connection.closed;
  const std::int64_t now_ns = clock_.now_ns();
  if (now_ns < connection.retry_ns) return false;
  connection.retry_ns = now_ns + kRetryIntervalNs;
  int error = 0;
  Socket socket = try_to_connect(addresses_[peer]->socket, error);
  if (error != 0) {
    note_failure(peer, error);
    return false;
  }
  tune(socket.get(), 0);
  doorbell_.watch(socket.get());
  Preamble preamble = mine_;
  preamble.kind = TcpLinkKind::kControl;
  preamble.nonce = addresses_[peer]->nonce;
  preamble.receiver = peer;
  endpoint_.sign(preamble);
  auto stream = endpoint_.begin(std::move(socket), preamble);
  if (!stream) {
    connection.trouble = stream.error().message;
    return false;
  }
  connection.socket = std::move(*stream);
  connection.begun = false;
  // An encrypted stream sends the preamble by itself, as soon as the connection is established.
  if (!connection.socket.is_encrypted()) put(connection.pending, preamble);
  return true;
}

// Records that no connection to `peer` could be made, because of `error`. If the operating system of the peer has
// refused the connection, the process of the peer counts as exited, and the connection is never tried again. Two other
// kinds of errors do not prove that the process has exited: an error of the network or a firewall (is_network_error()),
// or a lack of descriptors, memory or ports in this system. These errors may disappear, so open() tries again later.
void StatePusher::note_failure(std::uint32_t peer, int error) {
  ControlConnection& connection = connections_[peer];
  const Error failure = connect_error(addresses_[peer]->socket, error, static_cast<std::int32_t>(peer));
  connection.trouble = failure.message;
  connection.closed = failure.code == ErrorCode::kPeerLost && !is_network_error(error);
  if (connection.closed) connection.ended = Reply{.kind = Reply::Kind::kEnded, .error = error};
}

// Resets the connection to `peer` and returns true if it failed because of the network before any bytes were sent on
// it. open() makes a new connection later.
bool StatePusher::try_again(std::uint32_t peer, int error) {
  ControlConnection& connection = connections_[peer];
  if (connection.begun || connection.socket.tls_has_sent() || !is_network_error(error)) return false;
  connection.socket.count_retransmissions(connection.uncounted_retransmissions);
  connection.socket.close();
  connection.replies = ReplyReader();
  connection.drop_queue();
  connection.state_due = true;
  note_failure(peer, error);
  return true;
}

// Queues the current state of this rank for one connection. Returns false, and queues nothing, if the queue is too
// long. Its length includes bytes that were sent already, because the queue is only emptied as a whole.
bool StatePusher::append(ControlConnection& connection) {
  if (connection.pending.size() > kMaxPendingBytes) return false;
  put(connection.pending, FrameHeader{.kind = FrameKind::kState, .bytes = sizeof(StateRecord), .tag = call_});
  put(connection.pending, record_);
  return true;
}

// Sends the queued bytes to `peer`. Returns true if no queued bytes are left, because all were sent or the connection
// has ended. Returns false if the rest cannot be sent yet: the socket is full, or the connection is not established
// yet.
bool StatePusher::send(std::uint32_t peer) {
  ControlConnection& connection = connections_[peer];
  while (!connection.closed && connection.sent < connection.pending.size()) {
    iovec part{.iov_base = connection.pending.data() + connection.sent,
               .iov_len = connection.pending.size() - connection.sent};
    const Moved moved = connection.socket.send({&part, 1});
    if (moved.ended) {
      // The peer may have sent a close frame or a refusal before the connection ended.
      const Reply reply = connection.replies.read(connection.socket);
      const bool said = reply.kind == Reply::Kind::kClose || reply.kind == Reply::Kind::kRefused;
      if (!said && try_again(peer, moved.error)) return true;
      connection.ended = said ? reply : Reply{.kind = Reply::Kind::kEnded, .error = moved.error};
      connection.closed = true;
    } else if (moved.bytes == 0) {
      return false;
    } else {
      connection.begun = true;
      connection.trouble.clear();
    }
    connection.sent += moved.bytes;
  }
  connection.drop_queue();
  return true;
}

bool StatePusher::flush_locked() {
  bool empty = true;
  for (std::uint32_t peer = 0; peer < connections_.size(); ++peer) {
    ControlConnection& connection = connections_[peer];
    if (connection.state_due && open(peer)) connection.state_due = !append(connection);
    if (!connection.pending.empty()) empty &= send(peer);
    // The queue was too long to add the state, and the operating system has taken all of it just now. Or try_again()
    // has reset the connection.
    if (connection.state_due && connection.pending.empty() && open(peer)) {
      connection.state_due = !append(connection);
      empty &= send(peer);
    }
  }
  return empty;
}

// Waits until the queued states have been sent, at most for limit_ns, and for rank `culprit` (-1: none) at most for
// kFlushLimitNs, because its process may be stopped or its machine switched off. The wait is necessary because a new
// connection can only send after the peer has answered, and perhaps no thread drives this rank any more once its call
// has failed. If the wait for a peer was as long as leave() permits, later calls do not wait for that peer again before
// its queue is empty. So several failed calls need no more time.
void StatePusher::flush_with_limit(std::int64_t limit_ns, std::int32_t culprit) {
  const bool encrypts = endpoint_.encrypts();
  const std::int64_t begin_ns = clock_.now_ns();
  std::vector<pollfd> waiting;
  while (true) {
    flush_locked();
    const std::int64_t waited_ns = clock_.now_ns() - begin_ns;
    waiting.clear();
    for (std::size_t peer = 0; peer < connections_.size(); ++peer) {
      ControlConnection& connection = connections_[peer];
      if (connection.pending.empty() || connection.slow) continue;
      const bool is_culprit = static_cast<std::int64_t>(peer) == culprit;
      if (waited_ns >= (is_culprit ? kFlushLimitNs : limit_ns)) {
        connection.slow = is_culprit || limit_ns == leave_limit_ns();
        continue;
      }
      waiting.push_back({.fd = connection.socket.get(), .events = connection.socket.wait_events(), .revents = 0});
    }
    if (waiting.empty()) break;
    // Peers may wait in the same loop until this rank continues their TLS handshakes.
    if (encrypts) endpoint_.service();
    poll(waiting.data(), waiting.size(), encrypts ? 1 : 10);
  }
}

std::int64_t StatePusher::leave_limit_ns() const {
  return endpoint_.encrypts() ? kEncryptedFlushLimitNs : kFlushLimitNs;
}

void StatePusher::count_retransmissions(std::span<std::optional<std::uint64_t>> totals) {
  const std::scoped_lock lock(mutex_);
  for (std::size_t peer = 0; peer < connections_.size(); ++peer) {
    ControlConnection& connection = connections_[peer];
    connection.socket.count_retransmissions(connection.uncounted_retransmissions);
    const auto counted = std::exchange(connection.uncounted_retransmissions, std::nullopt);
    if (counted) totals[peer] = totals[peer].value_or(0) + *counted;
  }
}

std::vector<StatePusher::PeerEvent> StatePusher::take_events() {
  std::vector<PeerEvent> found;
  const std::scoped_lock lock(mutex_);
  for (std::uint32_t peer = 0; peer < connections_.size(); ++peer) {
    ControlConnection& connection = connections_[peer];
    if (connection.socket.is_open() && !connection.closed) {
      const Reply reply = connection.replies.read(connection.socket);
      const bool ended = reply.kind == Reply::Kind::kEnded;
      if (reply.kind != Reply::Kind::kNothing && !(ended && try_again(peer, reply.error))) {
        connection.ended = reply;
        connection.closed = true;
      }
    }
    if (!connection.ended) continue;
    found.push_back({.peer = peer, .reply = *connection.ended});
    connection.ended.reset();
    connection.drop_queue();
  }
  return found;
}

bool PeerBoard::receive(Reply& end) {
  bool heard = false;
  while (socket_.is_open()) {
    const Moved moved = socket_.receive(bytes_.data() + have_, bytes_.size() - have_);
    have_ += moved.bytes;
    std::size_t used = 0;
    bool sound = true;
    for (; sound && have_ - used >= kFrameBytes; used += kFrameBytes) {
      FrameHeader header;
      StateRecord record;
      std::memcpy(&header, bytes_.data() + used, sizeof(header));
      std::memcpy(&record, bytes_.data() + used + sizeof(header), sizeof(record));
      sound = take(header, record);
      heard |= sound;
    }
    std::memmove(bytes_.data(), bytes_.data() + used, have_ - used);
    have_ -= used;
    if (moved.ended || !sound) {
      end = {.kind = sound ? Reply::Kind::kEnded : Reply::Kind::kInvalid, .error = moved.error};
      socket_.close();
    } else if (moved.bytes == 0) {
      break;
    }
  }
  return heard;
}

bool PeerBoard::take(const FrameHeader& header, const StateRecord& record) {
  const bool sound = header.magic == kFrameMagic && header.kind == FrameKind::kState &&
                     header.bytes == sizeof(StateRecord) &&
                     record.life <= static_cast<std::uint32_t>(PeerLife::kAborted) &&
                     record.code <= static_cast<std::uint32_t>(kLastErrorCode) &&
                     record.argument <= static_cast<std::uint32_t>(kLastCallArgument);
  if (!sound) return false;
  if (header.tag.sequence != 0) note_call(header.tag);
  note_progress(record.entered, record.left);
  status_.reported = std::max(status_.reported, record.entered);
  const auto life = static_cast<PeerLife>(record.life);
  if (life == PeerLife::kAborted) status_.life = life;
  if (life == PeerLife::kLeft) set_left();
  if (record.failed != 0) {
    failures_[record.failed % kFailures] = {.sequence = record.failed,
                                            .failure = {.code = static_cast<ErrorCode>(record.code),
                                                        .culprit = record.culprit,
                                                        .argument = static_cast<CallArgument>(record.argument)}};
  }
  return true;
}

void PeerBoard::note_call(const CallTag& tag) {
  CallTag& known = calls_[tag.sequence % kCalls];
  if (known.sequence <= tag.sequence) known = tag;
  note_progress(tag.sequence, 0);
}

// A rank is in one call at a time. If the peer has entered a call, it has therefore left all earlier calls.
void PeerBoard::note_progress(std::uint64_t entered, std::uint64_t left) {
  status_.entered = std::max(status_.entered, entered);
  status_.left = std::max({status_.left, left, entered > 0 ? entered - 1 : 0});
}

std::optional<CallTag> PeerBoard::call(std::uint64_t sequence) const {
  const CallTag& known = calls_[sequence % kCalls];
  return sequence != 0 && known.sequence == sequence ? std::optional(known) : std::nullopt;
}

std::optional<CallFailure> PeerBoard::failure(std::uint64_t sequence) const {
  const Failure& known = failures_[sequence % kFailures];
  return sequence != 0 && known.sequence == sequence ? std::optional(known.failure) : std::nullopt;
}

}  // namespace tutti

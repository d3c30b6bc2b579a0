#include "transports/tcp/board.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/exceptions.h"

namespace tutti {
namespace {

constexpr std::int64_t kLateNs = 50'000'000;     // a call that lasts longer is told of
constexpr std::int64_t kSettleNs = 100'000'000;  // longest wait until a failure has left this process
constexpr std::int64_t kAgainNs = 100'000'000;   // between two tries to connect to a peer
constexpr std::size_t kMaxPendingBytes = 16384;  // per peer; what comes beyond is dropped: newer states follow

template <class T>
void put(std::vector<std::byte>& to, const T& value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof(value));
}

}  // namespace

StatePusher::StatePusher(const Preamble& mine, std::vector<std::optional<PeerAddress>> addresses, TcpEndpoint& endpoint,
                         EpollDoorbell& bell, Clock& clock)
    : mine_(mine),
      addresses_(std::move(addresses)),
      endpoint_(endpoint),
      bell_(bell),
      clock_(clock),
      lines_(addresses_.size()) {
  record_.life = static_cast<std::uint32_t>(PeerLife::kLive);
}

void StatePusher::enter(const CallTag& tag) {
  const std::scoped_lock lock(mutex_);
  call_ = tag;
  record_.entered = tag.sequence;
  inside_ = true;
  told_ = false;
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
    settle();
  } else if (told_) {
    push();  // peers that know us inside a long call also learn that we have finished it
  }
}

void StatePusher::abort() {
  const std::scoped_lock lock(mutex_);
  if (record_.life == static_cast<std::uint32_t>(PeerLife::kAborted)) return;
  record_.life = static_cast<std::uint32_t>(PeerLife::kAborted);
  push();
  settle();
}

void StatePusher::goodbye() {
  const std::scoped_lock lock(mutex_);
  if (record_.life == static_cast<std::uint32_t>(PeerLife::kLive)) {
    record_.life = static_cast<std::uint32_t>(PeerLife::kLeft);
  }
  for (Line& line : lines_) {
    if (line.socket.is_open() && !line.closed) runs_through([&] { append(line); });
  }
  runs_through([this] { flush_locked(); });
}

void StatePusher::push_if_late() {
  const std::scoped_lock lock(mutex_);
  if (!inside_ || told_) return;
  const std::int64_t now_ns = clock_.now_ns();
  if (waits_since_ns_ == 0) waits_since_ns_ = now_ns;
  if (now_ns - waits_since_ns_ >= kLateNs) push();
}

void StatePusher::push_now() {
  const std::scoped_lock lock(mutex_);
  if (inside_ && !told_) push();
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
  for (const Line& line : lines_) {
    if (!line.trouble.empty()) return line.trouble;
  }
  return {};
}

void StatePusher::push() {
  told_ = true;
  for (std::uint32_t peer = 0; peer < lines_.size(); ++peer) lines_[peer].owes = addresses_[peer].has_value();
  flush_locked();
}

bool StatePusher::open(std::uint32_t peer) {
  Line& line = lines_[peer];
  if (line.closed || line.socket.is_open()) return !line.closed;
  const std::int64_t now_ns = clock_.now_ns();
  if (now_ns < line.again_ns) return false;
  line.again_ns = now_ns + kAgainNs;
  int error = 0;
  Socket socket = try_to_connect(addresses_[peer]->socket, error);
  if (error != 0) {
    note_failure(peer, error);
    return false;
  }
  tune(socket.get(), 0);
  bell_.watch(socket.get());
  Preamble preamble = mine_;
  preamble.kind = TcpLinkKind::kControl;
  preamble.nonce = addresses_[peer]->nonce;
  preamble.receiver = peer;
  endpoint_.sign(preamble);
  auto stream = endpoint_.begin(std::move(socket), preamble);
  if (!stream) {
    line.trouble = stream.error().message;
    return false;
  }
  line.socket = std::move(*stream);
  line.begun = line.socket.is_encrypted();  // which sends by itself
  if (!line.begun) put(line.pending, preamble);
  return true;
}

// Only a peer's own system refuses a connection. A network that has no way to it, or a system here that is short of
// descriptors, does not prove that its process has ended, and may recover: then open() tries again.
void StatePusher::note_failure(std::uint32_t peer, int error) {
  Line& line = lines_[peer];
  const Error failure = connect_error(addresses_[peer]->socket, error, static_cast<std::int32_t>(peer));
  line.trouble = failure.message;
  line.closed = failure.code == ErrorCode::kPeerLost && !is_network_error(error);
  if (line.closed) line.ended = Reply{.kind = Reply::Kind::kEnded, .error = error};
}

// True if the connection failed before it was made, because of the network: then open() makes another one.
bool StatePusher::try_again(std::uint32_t peer, int error) {
  Line& line = lines_[peer];
  if (line.begun || !is_network_error(error)) return false;
  line.socket.close();
  line.replies = ReplyReader();
  line.pending.clear();
  line.sent = 0;
  line.owes = true;
  note_failure(peer, error);
  return true;
}

void StatePusher::append(Line& line) {
  if (line.pending.size() > kMaxPendingBytes) return;
  put(line.pending, FrameHeader{.kind = FrameKind::kState, .bytes = sizeof(StateRecord), .tag = call_});
  put(line.pending, record_);
}

// True when there is nothing more to send to `peer` on the connection that there is.
bool StatePusher::send(std::uint32_t peer) {
  Line& line = lines_[peer];
  while (!line.closed && line.sent < line.pending.size()) {
    iovec part{.iov_base = line.pending.data() + line.sent, .iov_len = line.pending.size() - line.sent};
    const Moved moved = line.socket.send({&part, 1});
    if (moved.ended) {
      const Reply reply = line.replies.read(line.socket);  // it may have said why
      const bool said = reply.kind == Reply::Kind::kGoodbye || reply.kind == Reply::Kind::kRefused;
      if (!said && try_again(peer, moved.error)) return true;
      line.ended = said ? reply : Reply{.kind = Reply::Kind::kEnded, .error = moved.error};
      line.closed = true;
    } else if (moved.bytes == 0) {
      return false;
    } else {
      line.begun = true;
      line.trouble.clear();
    }
    line.sent += moved.bytes;
  }
  line.pending.clear();
  line.sent = 0;
  return true;
}

bool StatePusher::flush_locked() {
  bool empty = true;
  for (std::uint32_t peer = 0; peer < lines_.size(); ++peer) {
    Line& line = lines_[peer];
    if (line.owes && open(peer)) {
      append(line);
      line.owes = false;
    }
    if (!line.pending.empty()) empty &= send(peer);
  }
  return empty;
}

// Connections that were opened just now send nothing before the peer's machine has answered, and nobody may drive this
// rank once its call has failed: so this waits, within a bound.
void StatePusher::settle() {
  const std::int64_t latest_ns = clock_.now_ns() + kSettleNs;
  std::vector<pollfd> waiting;
  while (!flush_locked() && clock_.now_ns() < latest_ns) {
    if (endpoint_.encrypts()) endpoint_.service();  // peers may wait for us likewise
    waiting.clear();
    for (const Line& line : lines_) {
      if (!line.pending.empty()) {
        waiting.push_back({.fd = line.socket.get(), .events = line.socket.wait_events(), .revents = 0});
      }
    }
    poll(waiting.data(), waiting.size(), endpoint_.encrypts() ? 1 : 10);
  }
}

std::vector<StatePusher::News> StatePusher::news() {
  std::vector<News> found;
  const std::scoped_lock lock(mutex_);
  for (std::uint32_t peer = 0; peer < lines_.size(); ++peer) {
    Line& line = lines_[peer];
    if (line.socket.is_open() && !line.closed) {
      const Reply reply = line.replies.read(line.socket);
      const bool ended = reply.kind == Reply::Kind::kEnded;
      if (reply.kind != Reply::Kind::kNothing && !(ended && try_again(peer, reply.error))) {
        line.ended = reply;
        line.closed = true;
      }
    }
    if (!line.ended) continue;
    found.push_back({.peer = peer, .reply = *line.ended});
    line.ended.reset();
    line.pending.clear();
    line.sent = 0;
  }
  return found;
}

bool PeerBoard::receive(bool& ended) {
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
      ended = true;
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

// A rank is in one call at a time, so who has entered one has left all before it.
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

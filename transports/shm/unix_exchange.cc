#include "transports/shm/unix_exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/system/system_calls.h"
#include "base/system_error.h"
#include "transports/inherited.h"
#include "transports/shm/unix_greetings.h"

namespace tutti {
namespace {

constexpr std::size_t kMaxMappingsPerPeer = 1 << 16;
constexpr std::size_t kMaxFilesPerPeer = 256;
// A number of packets without a datagram that always fits into an empty socket. The kernel counts 768 bytes for each
// packet, and the smallest buffer has 4,608 bytes. (Measured: a buffer of the usual size takes 279 packets.)
constexpr std::uint32_t kAlwaysFits = 4;
// Limit for connections without a first packet, in addition to two for each rank.
constexpr std::size_t kMaxPending = 64;
constexpr std::int64_t kPollIntervalMs = 100;

}  // namespace

class UnixExchange::UnixWakeReceiver final : public WakeReceiver {
 public:
  UnixWakeReceiver(UnixExchange& exchange, std::uint32_t segment, int event)
      : exchange_(exchange), segment_(segment), event_(event) {}
  ~UnixWakeReceiver() override { exchange_.wake_table_.close(segment_); }
  std::vector<int> descriptors() const override { return {event_, exchange_.socket_events_}; }
  void drain() override {
    exchange_.receive_ready();
    clear_event(event_);
  }

 private:
  UnixExchange& exchange_;
  std::uint32_t segment_;
  int event_;
};

UnixExchange::UnixExchange(std::uint32_t rank, std::uint32_t ranks) : process_(getpid()), rank_(rank), peers_(ranks) {}

Result<std::unique_ptr<UnixExchange>> UnixExchange::listen(std::uint32_t rank, std::uint32_t ranks) {
  TUTTI_ASSERT(rank < ranks);
  std::unique_ptr<UnixExchange> exchange(new UnixExchange(rank, ranks));  // the constructor is private
  auto address = UnixAddress::random();
  if (!address) return address.error();
  // The queue must hold a probe and a connection of each rank, and some unrelated connections.
  auto listener = listen_at(*address, 2 * ranks + 16);
  if (!listener) return listener.error();
  exchange->address_ = std::move(*address);
  exchange->listener_ = *listener;
  close_in_children(*listener);
  return exchange;
}

UnixExchange::File::~File() { close(fd); }

int UnixExchange::QueuedPacket::fd() const {
  if (mapping != nullptr) return mapping->fd();
  return file == nullptr ? -1 : file->fd;
}

UnixExchange::~UnixExchange() {
  forget_in_children(listener_);
  forget_in_children(socket_events_);
  for (const Peer& peer : peers_) forget_in_children(peer.socket);
  if (listener_ >= 0) close(listener_);
  if (socket_events_ >= 0) close(socket_events_);
  for (const Peer& peer : peers_) {
    if (peer.socket >= 0) close(peer.socket);
  }
}

// Does not wait if the queue of a listener is full: no rank accepts connections before all ranks have probed, so the
// queue would stay full. It can be full, for example, if the kernel limits it (net.core.somaxconn) to fewer connections
// than there are ranks.
Result<std::vector<Reach>> UnixExchange::probe(const std::vector<std::string>& addresses) const {
  std::vector<Reach> reaches;
  for (std::uint32_t peer = 0; peer < addresses.size(); ++peer) {
    reaches.push_back(peer == rank_ ? Reach::kReached : Reach::kNotTried);
    if (peer == rank_ || addresses[peer].empty()) continue;
    const std::optional<UnixAddress> address = UnixAddress::parse(addresses[peer]);
    const DialResult dialled = address ? dial(*address) : DialResult{};
    // Sends nothing: the listener drops a connection that is closed without a packet.
    if (dialled.fd >= 0) close(dialled.fd);
    reaches.back() = dialled.error == EAGAIN ? Reach::kReached : dialled.reach;
    errno = dialled.error;
    if (reaches.back() == Reach::kFailed && is_shortage(errno)) return unix_socket_error("connecting");
  }
  return reaches;
}

Status UnixExchange::connect_to(std::uint32_t peer, const std::string& text, Clock& clock, std::int64_t deadline_ns,
                                const std::function<bool()>& has_failed) {
  const auto rank = static_cast<std::int32_t>(peer);
  const std::optional<UnixAddress> address = UnixAddress::parse(text);
  if (!address) {
    return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, rank,
                 fmt::format("rank {} published an address that cannot be read", peer)};
  }
  const UnixPacket hello{.operation = UnixOperation::kHello, .id = rank_, .nonce = address->nonce};
  DialResult dialled = wait_and_dial(*address, clock, deadline_ns, has_failed);
  // The listener may drop a connection that has not sent its hello yet, for example because it needs the descriptor
  // (UnixGreetings). So connect again.
  while (dialled.reach == Reach::kReached && send(dialled.fd, &hello, sizeof(hello), MSG_NOSIGNAL) < 0) {
    const bool dropped = errno == EPIPE || errno == ECONNRESET;
    const Error error = unix_socket_error("send", rank);
    close(dialled.fd);
    if (!dropped || clock.now_ns() >= deadline_ns) return error;
    dialled = wait_and_dial(*address, clock, deadline_ns, has_failed);
  }
  if (dialled.error == EAGAIN && has_failed && has_failed()) return set_up_has_failed(rank);
  if (dialled.reach != Reach::kReached) return unreachable(peer, dialled);
  const std::scoped_lock lock(mutex_);
  peers_[peer].socket = dialled.fd;
  close_in_children(dialled.fd);
  peers_[peer].watch = ProcessWatch(dialled.process);
  return {};
}

// Handles the first packet of a connection. Returns false if it is not the hello of an expected peer.
bool UnixExchange::admit(int fd, pid_t process, std::span<const std::byte> packet) {
  UnixPacket hello;
  if (packet.size() != sizeof(hello)) return false;
  std::memcpy(&hello, packet.data(), sizeof(hello));
  const std::scoped_lock lock(mutex_);
  if (hello.magic != UnixPacket::kMagic || hello.operation != UnixOperation::kHello || hello.nonce != address_.nonce ||
      hello.id >= peers_.size() || !peers_[hello.id].awaited) {
    return false;
  }
  Peer& peer = peers_[hello.id];
  peer.socket = fd;
  close_in_children(fd);
  peer.watch = ProcessWatch(process);
  peer.awaited = false;
  return true;
}

Status UnixExchange::accept_awaited(Clock& clock, std::int64_t deadline_ns, const std::function<bool()>& has_failed) {
  UnixGreetings greetings(
      listener_, 2 * peers_.size() + kMaxPending, sizeof(UnixPacket),
      [this](int fd, pid_t process, std::span<const std::byte> packet) { return admit(fd, process, packet); });
  while (true) {
    TUTTI_TRY(greetings.accept_some());
    greetings.receive_packets();
    const std::vector<std::uint32_t> missing = awaited();
    if (missing.empty()) return {};
    if (has_failed && has_failed()) return set_up_has_failed(static_cast<std::int32_t>(missing.front()));
    const std::int64_t left_ns = deadline_ns - clock.now_ns();
    if (left_ns <= 0) {
      return Error{
          ErrorCode::kTimeout, ErrorScope::kCommunicator, static_cast<std::int32_t>(missing.front()),
          fmt::format("set-up deadline passed: rank(s) {} did not connect on this machine", fmt::join(missing, ", "))};
    }
    greetings.wait(static_cast<int>(std::min<std::int64_t>(left_ns / 1'000'000 + 1, kPollIntervalMs)));
  }
}

std::vector<std::uint32_t> UnixExchange::awaited() const {
  std::vector<std::uint32_t> missing;
  for (std::uint32_t peer = 0; peer < peers_.size(); ++peer)
    if (peers_[peer].awaited) missing.push_back(peer);
  return missing;
}

Status UnixExchange::connect(const std::vector<std::string>& addresses, const std::vector<std::uint32_t>& group,
                             Clock& clock, std::int64_t deadline_ns, const std::function<bool()>& has_failed) {
  TUTTI_ASSERT(addresses.size() == peers_.size());
  for (const std::uint32_t peer : group) peers_.at(peer).awaited = peer > rank_;
  for (const std::uint32_t peer : group) {
    if (peer < rank_) TUTTI_TRY(connect_to(peer, addresses[peer], clock, deadline_ns, has_failed));
  }
  TUTTI_TRY(accept_awaited(clock, deadline_ns, has_failed));
  forget_in_children(listener_);
  close(listener_);
  listener_ = -1;
  return {};
}

void UnixExchange::queue(const QueuedPacket& queued, std::span<const std::uint32_t> audience) {
  const auto enqueue = [&](Peer& peer) {
    if (peer.socket < 0 || peer.gone) return;
    peer.outbox.push_back(queued);
    send_pending(peer);
  };
  if (audience.empty()) {
    for (Peer& peer : peers_) enqueue(peer);
  } else {
    for (const std::uint32_t peer : audience) enqueue(peers_.at(peer));
  }
}

std::uint32_t UnixExchange::share(const std::shared_ptr<Mapping>& mapping, std::span<const std::uint32_t> audience) {
  const std::scoped_lock lock(mutex_);
  const std::uint32_t id = ++last_id_;
  TUTTI_ASSERT(id != 0, "all numbers of mappings are used up");
  if (getpid() != process_) return id;
  shared_[id] = {.mapping = mapping, .audience = {audience.begin(), audience.end()}};
  queue({.operation = UnixOperation::kShare, .id = id, .mapping = mapping}, audience);
  return id;
}

std::uint32_t UnixExchange::share_file(int fd, std::span<const std::uint32_t> audience) {
  const auto file = std::make_shared<File>(fd);
  const std::scoped_lock lock(mutex_);
  const std::uint32_t id = ++last_id_;
  TUTTI_ASSERT(id != 0, "all numbers of mappings are used up");
  if (getpid() == process_) queue({.operation = UnixOperation::kShareFile, .id = id, .file = file}, audience);
  return id;
}

int UnixExchange::take_file(std::uint32_t peer, std::uint32_t id) {
  const std::scoped_lock lock(mutex_);
  Peer& from = peers_.at(peer);
  if (!from.files.contains(id) && from.socket >= 0) receive_pending(from);
  auto found = from.files.extract(id);
  return found.empty() ? -1 : found.mapped().release();
}

void UnixExchange::unshare(std::uint32_t id, std::span<const std::uint32_t> audience) {
  const std::scoped_lock lock(mutex_);
  if (getpid() != process_) return;
  shared_.erase(id);
  queue({.operation = UnixOperation::kUnshare, .id = id}, audience);
}

void UnixExchange::send_pending(Peer& peer) {
  while (!peer.gone && !peer.outbox.empty()) {
    const QueuedPacket& queued = peer.outbox.front();
    const UnixPacket packet{.operation = queued.operation, .id = queued.id, .channel = queued.channel};
    const UnixTransfer sent = send_packet(peer.socket, packet, queued.datagram, queued.fd());
    if (sent == UnixTransfer::kLater) return;  // a later call, for example of pump(), tries again
    if (sent == UnixTransfer::kEnd) {
      receive_pending(peer);  // receives the packets that the peer sent before it exited
      return mark_gone(peer);
    }
    peer.outbox.pop_front();
  }
}

void UnixExchange::record_loss(Peer& peer, std::uint32_t id, MemoryLoss why, bool can_ask) {
  if (peer.lost.size() >= kMaxMappingsPerPeer) return;
  LossRecord& lost = peer.lost[id];
  lost = {.why = std::move(why), .asked = false, .report = lost.asked || !can_ask};
}

// Maps the memory that arrived with a kShare packet. `fd` is not open if the descriptor was lost. Returns true,
// because sleepers that wait for this mapping must check again, also after a loss.
bool UnixExchange::receive_mapping(Peer& peer, std::uint32_t id, OwnedDescriptor fd) {
  if (!fd.is_open()) {
    record_loss(peer, id, lost_descriptor(spare_.restore()), true);
    return true;
  }
  if (peer.mappings.size() >= kMaxMappingsPerPeer) {
    record_loss(peer, id, {.why = fmt::format("it shares more than {} registrations", kMaxMappingsPerPeer)}, true);
    return true;
  }
  auto mapping = Mapping::map(fd.release());
  if (mapping) {
    peer.mappings[id] = std::move(*mapping);
    peer.lost.erase(id);
  } else {
    record_loss(peer, id, lost_mapping(mapping.error()), true);
  }
  return true;
}

bool UnixExchange::receive_file(Peer& peer, std::uint32_t id, OwnedDescriptor fd) {
  if (!fd.is_open()) {
    record_loss(peer, id, lost_descriptor(spare_.restore()), false);
  } else if (peer.files.size() >= kMaxFilesPerPeer) {
    record_loss(peer, id, {.why = fmt::format("{} of its files already wait to be taken", kMaxFilesPerPeer)}, false);
  } else {
    peer.files.try_emplace(id, std::move(fd));
  }
  return false;
}

// Shares mapping `id` of this rank again, because `peer` has asked for that, for example because the descriptor was
// lost on the way or the peer could not map the memory. Does nothing if a packet with that mapping is already queued,
// so that a peer cannot fill the queue. Also does nothing if this rank does not share the mapping with the peer, or
// not any more.
void UnixExchange::share_again(Peer& peer, std::uint32_t id) {
  const auto found = shared_.find(id);
  if (found == shared_.end()) return;
  const auto number = static_cast<std::uint32_t>(&peer - peers_.data());
  const std::vector<std::uint32_t>& audience = found->second.audience;
  const bool invited = audience.empty() || std::find(audience.begin(), audience.end(), number) != audience.end();
  const bool waits = std::any_of(peer.outbox.begin(), peer.outbox.end(), [&](const QueuedPacket& queued) {
    return queued.operation == UnixOperation::kShare && queued.id == id;
  });
  auto mapping = found->second.mapping.lock();
  if (!invited || waits || mapping == nullptr) return;
  queue({.operation = UnixOperation::kShare, .id = id, .mapping = std::move(mapping)}, std::span(&number, 1));
}

std::optional<MemoryLoss> UnixExchange::loss(std::uint32_t peer, std::uint32_t id) {
  const std::scoped_lock lock(mutex_);
  const auto& lost = peers_.at(peer).lost;
  const auto found = lost.find(id);
  return found == lost.end() ? std::nullopt : std::optional(found->second.why);
}

// A second attempt may succeed, because conditions may have changed since the loss. So the peer is asked to share the
// mapping again before the loss is reported.
std::optional<MemoryLoss> UnixExchange::take_loss(std::uint32_t peer, std::uint32_t id) {
  const std::scoped_lock lock(mutex_);
  auto& losses = peers_.at(peer).lost;
  const auto found = losses.find(id);
  if (found == losses.end()) return std::nullopt;
  LossRecord& lost = found->second;
  if (std::exchange(lost.report, false)) return lost.why;
  if (!std::exchange(lost.asked, true) && getpid() == process_) {
    queue({.operation = UnixOperation::kShareAgain, .id = id}, std::span(&peer, 1));
  }
  return std::nullopt;
}

// Handles one packet and takes ownership of its descriptor. Returns true if a mapping arrived or was lost, so that
// sleepers must check again.
bool UnixExchange::receive_one(Peer& peer, ReceivedPacket& received) {
  const std::uint32_t id = received.packet.id;
  OwnedDescriptor fd = std::move(received.fd);
  const bool has_file = fd.is_open() || received.fd_lost;
  switch (received.packet.operation) {
    case UnixOperation::kShare: return has_file && receive_mapping(peer, id, std::move(fd));
    case UnixOperation::kShareFile: return has_file && receive_file(peer, id, std::move(fd));
    default: break;
  }
  switch (received.packet.operation) {
    case UnixOperation::kUnshare:
      peer.mappings.erase(id);
      peer.lost.erase(id);
      peer.files.erase(id);
      break;
    case UnixOperation::kDatagram: peer.datagrams.put(received.packet.channel, std::move(received.datagram)); break;
    case UnixOperation::kWake: wake_table_.signal(id); break;
    case UnixOperation::kShareAgain: share_again(peer, id); break;
    default: break;  // a repeated hello or an unknown operation has no effect
  }
  return false;
}

void UnixExchange::receive_pending(Peer& peer) {
  std::uint32_t packets = 0;
  bool arrived = false;
  ReceivedPacket received;
  while (!peer.gone) {
    const UnixTransfer taken = receive_packet(peer.socket, spare_, received);
    if (taken == UnixTransfer::kLater) break;
    ++packets;
    if (taken == UnixTransfer::kEnd) {
      mark_gone(peer);
      break;
    }
    // A datagram can be larger than other packets, so a few of them can fill the socket. Therefore a single datagram
    // counts as more than kAlwaysFits packets, so that all sleepers are woken below.
    if (received.packet.operation == UnixOperation::kDatagram) packets += kAlwaysFits;
    const bool with_descriptor = received.fd.is_open() || received.fd_lost;
    arrived |= receive_one(peer, received);
    // receive_one() has usually closed the descriptor that arrived, so a number can be reserved again.
    if (with_descriptor) spare_.restore();
  }
  // Wakes all sleepers if a mapping has arrived, because they may wait for it. Also wakes them if the socket may have
  // been full, because a wake-up for one of them may then have been dropped (see wake_peer()).
  if (arrived || packets > kAlwaysFits) wake_table_.signal_all();
}

void UnixExchange::mark_gone(Peer& peer) {
  if (std::exchange(peer.gone, true)) return;
  peer.outbox.clear();
  if (socket_events_ >= 0) {  // the descriptors of a process that has exited stay readable for ever, so remove them
    epoll_ctl(socket_events_, EPOLL_CTL_DEL, peer.socket, nullptr);
    if (peer.watch.fd() >= 0) epoll_ctl(socket_events_, EPOLL_CTL_DEL, peer.watch.fd(), nullptr);
  }
  wake_table_.signal_all();
}

bool UnixExchange::pump() {
  const std::scoped_lock lock(mutex_);
  bool all_sent = true;
  for (Peer& peer : peers_) {
    if (peer.socket < 0) continue;
    send_pending(peer);
    receive_pending(peer);
    all_sent = all_sent && peer.outbox.empty();
  }
  return all_sent;
}

bool UnixExchange::all_sent_to(std::span<const std::uint32_t> peers) {
  const std::scoped_lock lock(mutex_);
  return std::all_of(peers.begin(), peers.end(), [this](std::uint32_t peer) { return peers_.at(peer).outbox.empty(); });
}

void UnixExchange::post(std::uint32_t peer, std::uint64_t channel, const std::string& datagram) {
  TUTTI_ASSERT(peer != rank_ && datagram.size() <= kMostDatagramBytes);
  const std::scoped_lock lock(mutex_);
  if (getpid() == process_)
    queue({.operation = UnixOperation::kDatagram, .id = 0, .channel = channel, .datagram = datagram},
          std::span(&peer, 1));
}

std::optional<std::string> UnixExchange::take_datagram(std::uint32_t peer, std::uint64_t channel) {
  const std::scoped_lock lock(mutex_);
  Peer& from = peers_.at(peer);
  if (from.socket >= 0) receive_pending(from);
  return from.datagrams.take(channel);
}

std::shared_ptr<Mapping> UnixExchange::find(std::uint32_t peer, std::uint32_t id) {
  const std::scoped_lock lock(mutex_);
  Peer& from = peers_.at(peer);
  if (!from.mappings.contains(id) && from.socket >= 0) receive_pending(from);
  const auto found = from.mappings.find(id);
  return found == from.mappings.end() ? nullptr : found->second;
}

bool UnixExchange::peer_gone(std::uint32_t peer) {
  const std::scoped_lock lock(mutex_);
  Peer& from = peers_.at(peer);
  // If the peer has forked a child that keeps copies of its sockets, the sockets stay open as long as the child runs.
  // So this function also checks the process of the peer itself.
  const bool ended = from.watch.has_ended();
  if (from.socket >= 0) receive_pending(from);  // receives the packets that the peer sent before it exited
  if (ended) mark_gone(from);
  return from.gone;
}

pid_t UnixExchange::process_of(std::uint32_t peer) {
  const std::scoped_lock lock(mutex_);
  return peer == rank_ ? process_ : peers_.at(peer).watch.process();
}

// Does not lock the mutex, because the caller must not wait while another thread maps memory. That is safe, because
// sockets do not change after set-up. A wake-up that does not fit into the socket is dropped. That is safe too: the
// thread of the peer that empties the full socket wakes all sleepers of the same exchange (receive_pending()).
void UnixExchange::wake_peer(std::uint32_t peer, std::uint32_t segment) {
  if (peer == rank_) return wake_table_.signal(segment);
  const UnixPacket packet{.operation = UnixOperation::kWake, .id = segment};
  [[maybe_unused]] const ssize_t sent = send(peers_[peer].socket, &packet, sizeof(packet), MSG_NOSIGNAL | MSG_DONTWAIT);
}

Status UnixExchange::watch_sockets() {
  const std::scoped_lock lock(mutex_);
  if (socket_events_ >= 0) return {};
  const int epoll = above_standard(epoll_create1(EPOLL_CLOEXEC));
  if (epoll < 0) return unix_socket_error("epoll_create1");
  for (std::uint32_t peer = 0; peer < peers_.size(); ++peer) {
    for (const int fd : {peers_[peer].socket, peers_[peer].watch.fd()}) {
      if (fd < 0 || peers_[peer].gone) continue;
      epoll_event event{.events = EPOLLIN, .data = {.u32 = peer}};
      if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) continue;
      Error error = unix_socket_error("epoll_ctl");
      close(epoll);
      return error;
    }
  }
  socket_events_ = epoll;
  // An epoll set is shared with forked children: if a child removed a descriptor from it, the descriptor would be
  // removed for this process as well. So a child must not keep its copy.
  close_in_children(socket_events_);
  return {};
}

void UnixExchange::receive_ready() {
  const std::scoped_lock lock(mutex_);
  std::array<epoll_event, 64> events{};  // a 65th event is not lost: a later call handles it
  const int count = epoll_wait(socket_events_, events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    Peer& peer = peers_[events[static_cast<std::size_t>(i)].data.u32];
    const bool ended = peer.watch.has_ended();
    receive_pending(peer);
    if (ended) mark_gone(peer);
  }
}

Result<std::unique_ptr<WakeReceiver>> UnixExchange::create_wake_receiver(std::uint32_t segment) {
  TUTTI_TRY(watch_sockets());
  auto event = wake_table_.open(segment);
  if (!event) return event.error();
  return std::unique_ptr<WakeReceiver>(std::make_unique<UnixWakeReceiver>(*this, segment, *event));
}

}  // namespace tutti

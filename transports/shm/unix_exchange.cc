#include "transports/shm/unix_exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>

#include "base/assert.h"

namespace tutti {
namespace {

constexpr std::uint32_t kMagic = 0x5455584d;
enum Operation : std::uint32_t { kHello = 1, kShare = 2, kUnshare = 3 };
constexpr std::size_t kMaxMappingsPerPeer = 1 << 16;

Error failed(const char* call, std::int32_t rank = -1) {
  return {ErrorCode::kSystem, ErrorScope::kCommunicator, rank,
          fmt::format("{} on a Unix socket failed: {}{}", call, std::strerror(errno),
                      errno == EMFILE || errno == ENFILE ? "; raise the limit of open files (ulimit -n)" : "")};
}

Status make_addressable(sockaddr_un& address, socklen_t& length, const std::string& name) {
  if (name.empty() || name.size() + 1 > sizeof(address.sun_path)) {
    return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, -1, "a peer's Unix socket address has a wrong length"};
  }
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return {};
}

// The kernel's word on who is at the other end; nothing if it is another user.
std::optional<pid_t> peer_process(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 || credentials.uid != geteuid()) {
    return std::nullopt;
  }
  return credentials.pid;
}

// A descriptor that becomes readable when the process ends; -1 where it cannot be had (another PID namespace, an old
// kernel).
int watch_process(pid_t process) {
  return process <= 0 ? -1 : above_standard(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
}

bool has_ended(int pidfd) {
  pollfd ended{.fd = pidfd, .events = POLLIN, .revents = 0};
  return pidfd >= 0 && poll(&ended, 1, 0) == 1;
}

}  // namespace

struct UnixExchange::Packet {
  std::uint32_t magic = kMagic;
  std::uint32_t operation = 0;
  std::uint32_t id = 0;  // of the mapping; in a hello the rank
  std::uint32_t reserved = 0;
  Nonce nonce{};  // in a hello only
};

Result<std::unique_ptr<UnixExchange>> UnixExchange::listen(std::uint32_t rank, std::uint32_t ranks) {
  std::unique_ptr<UnixExchange> exchange(new UnixExchange(rank, ranks));  // private constructor
  exchange->listener_ = above_standard(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (exchange->listener_ < 0) return failed("socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t length = sizeof(sa_family_t);  // the kernel picks a free abstract address
  if (bind(exchange->listener_, reinterpret_cast<sockaddr*>(&address), length) != 0) return failed("bind");
  length = sizeof(address);
  if (getsockname(exchange->listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return failed("getsockname");
  if (::listen(exchange->listener_, static_cast<int>(ranks) + 16) != 0) return failed("listen");
  exchange->name_.assign(address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
  if (getrandom(exchange->nonce_.data(), exchange->nonce_.size(), 0) != static_cast<ssize_t>(exchange->nonce_.size())) {
    return failed("getrandom");
  }
  return exchange;
}

UnixExchange::~UnixExchange() {
  if (listener_ >= 0) close(listener_);
  for (const Peer& peer : peers_) {
    if (peer.socket >= 0) close(peer.socket);
    if (peer.pidfd >= 0) close(peer.pidfd);
  }
}

std::string UnixExchange::address() const { return fmt::format("{:02x}:{}", fmt::join(nonce_, ""), name_); }

Status UnixExchange::connect_to(std::uint32_t peer, const std::string& address) {
  Packet hello{.operation = kHello, .id = rank_};
  const std::size_t hex = 2 * hello.nonce.size();
  if (address.size() < hex + 2 || address.size() > 127 || address[hex] != ':') {
    return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(peer),
                 fmt::format("rank {} published an address that cannot be read", peer)};
  }
  for (std::size_t i = 0; i < hello.nonce.size(); ++i) {
    hello.nonce[i] = static_cast<std::uint8_t>(std::strtoul(address.substr(2 * i, 2).c_str(), nullptr, 16));
  }
  sockaddr_un where{};
  socklen_t length = 0;
  TUTTI_TRY(make_addressable(where, length, address.substr(hex + 1)));
  const int fd = above_standard(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (fd < 0) return failed("socket", static_cast<std::int32_t>(peer));
  const std::scoped_lock lock(mutex_);
  peers_[peer].socket = fd;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&where), length) != 0) {
    return Error{
        ErrorCode::kPeerLost, ErrorScope::kCommunicator, static_cast<std::int32_t>(peer),
        fmt::format("rank {} on this machine cannot be reached ({}): has it ended, or is it in another network "
                    "namespace?",
                    peer, std::strerror(errno))};
  }
  const std::optional<pid_t> process = peer_process(fd);
  if (!process) {
    return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, static_cast<std::int32_t>(peer),
                 fmt::format("rank {} runs as another user; run all ranks as one user", peer)};
  }
  peers_[peer].pidfd = watch_process(*process);
  if (send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(hello))) return failed("send");
  return {};
}

// Admits one connection if it is one of ours; strangers are dropped and the wait goes on. accepted = rank_ when nobody
// came.
Status UnixExchange::accept_one(std::uint32_t& accepted) {
  accepted = rank_;
  const int fd = above_standard(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
  if (fd < 0) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? Status() : failed("accept");
  const timeval patience{.tv_sec = 1, .tv_usec = 0};  // the hello is sent right after the connect
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  Packet hello;
  const std::optional<pid_t> process = peer_process(fd);
  ssize_t received = -1;
  do {
    received = recv(fd, &hello, sizeof(hello), 0);
  } while (received < 0 && errno == EINTR);
  const bool whole = process && received == static_cast<ssize_t>(sizeof(hello));
  const std::scoped_lock lock(mutex_);
  if (!whole || hello.magic != kMagic || hello.operation != kHello || hello.nonce != nonce_ || hello.id <= rank_ ||
      hello.id >= peers_.size() || peers_[hello.id].socket >= 0) {
    close(fd);
    return {};
  }
  peers_[hello.id].socket = fd;
  peers_[hello.id].pidfd = watch_process(*process);
  accepted = hello.id;
  return {};
}

Status UnixExchange::wait_for_segments(Clock& clock, std::int64_t deadline_ns) {
  while (true) {
    std::vector<std::uint32_t> missing;
    for (std::uint32_t peer = 0; peer < peers_.size(); ++peer) {
      if (peer == rank_ || find(peer, 0) != nullptr) continue;
      if (peer_gone(peer)) {
        return Error{ErrorCode::kPeerLost, ErrorScope::kCommunicator, static_cast<std::int32_t>(peer),
                     fmt::format("rank {} ended during set-up", peer)};
      }
      missing.push_back(peer);
    }
    if (missing.empty()) return {};
    if (clock.now_ns() >= deadline_ns) {
      return Error{ErrorCode::kTimeout, ErrorScope::kCommunicator, static_cast<std::int32_t>(missing.front()),
                   fmt::format("set-up deadline passed: no shared memory from rank(s) {}", fmt::join(missing, ", "))};
    }
    pollfd waiting{.fd = peers_[missing.front()].socket, .events = POLLIN, .revents = 0};
    poll(&waiting, 1, 50);
  }
}

Status UnixExchange::connect(const std::vector<std::string>& addresses, const std::shared_ptr<Mapping>& segment,
                             Clock& clock, std::int64_t deadline_ns) {
  TUTTI_ASSERT(addresses.size() == peers_.size());
  for (std::uint32_t peer = 0; peer < rank_; ++peer) TUTTI_TRY(connect_to(peer, addresses[peer]));
  auto still_missing = static_cast<std::uint32_t>(peers_.size()) - rank_ - 1;
  while (still_missing > 0) {
    pollfd waiting{.fd = listener_, .events = POLLIN, .revents = 0};
    poll(&waiting, 1, 100);
    std::uint32_t accepted = rank_;
    TUTTI_TRY(accept_one(accepted));
    if (accepted != rank_) --still_missing;
    if (still_missing > 0 && clock.now_ns() >= deadline_ns) {
      std::vector<std::uint32_t> missing;
      for (std::uint32_t peer = rank_ + 1; peer < peers_.size(); ++peer) {
        if (peers_[peer].socket < 0) missing.push_back(peer);
      }
      return Error{
          ErrorCode::kTimeout, ErrorScope::kCommunicator, static_cast<std::int32_t>(missing.front()),
          fmt::format("set-up deadline passed: rank(s) {} did not connect on this machine", fmt::join(missing, ", "))};
    }
  }
  close(listener_);
  listener_ = -1;
  share(0, segment);
  return wait_for_segments(clock, deadline_ns);
}

void UnixExchange::queue(const Notice& notice) {
  const std::scoped_lock lock(mutex_);
  for (Peer& peer : peers_) {
    if (peer.socket >= 0 && !peer.gone) peer.outbox.push_back(notice);
  }
  pump_locked();
}

void UnixExchange::share(std::uint32_t id, const std::shared_ptr<Mapping>& mapping) { queue({kShare, id, mapping}); }
void UnixExchange::unshare(std::uint32_t id) { queue({kUnshare, id, nullptr}); }

void UnixExchange::send_pending(Peer& peer) {
  while (!peer.gone && !peer.outbox.empty()) {
    const Notice& notice = peer.outbox.front();
    Packet packet{.operation = notice.operation, .id = notice.id};
    iovec part{.iov_base = &packet, .iov_len = sizeof(packet)};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (notice.mapping != nullptr) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      const int fd = notice.mapping->fd();
      std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    if (sendmsg(peer.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
      // A full socket, or too many descriptors under way: the next pump tries again.
      if (errno != EAGAIN && errno != EINTR && errno != ETOOMANYREFS && errno != ENOBUFS) peer.gone = true;
      return;
    }
    peer.outbox.pop_front();
  }
}

void UnixExchange::receive_pending(Peer& peer) {
  while (!peer.gone) {
    Packet packet;
    iovec part{.iov_base = &packet, .iov_len = sizeof(packet)};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t bytes = recvmsg(peer.socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    int fd = -1;
    if (const cmsghdr* header = bytes > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
        header != nullptr && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int))) {
      std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    }
    const bool sound = bytes == static_cast<ssize_t>(sizeof(packet)) && packet.magic == kMagic;
    if (sound && packet.operation == kShare && fd >= 0 && peer.mappings.size() < kMaxMappingsPerPeer) {
      if (auto mapping = Mapping::map(fd)) peer.mappings[packet.id] = std::move(*mapping);
    } else {
      if (fd >= 0) close(fd);
      if (sound && packet.operation == kUnshare) peer.mappings.erase(packet.id);
      if (!sound) peer.gone = true;  // end of file, or a peer that does not speak our protocol
    }
  }
}

void UnixExchange::pump_locked() {
  for (Peer& peer : peers_) {
    if (peer.socket < 0) continue;
    send_pending(peer);
    receive_pending(peer);
  }
}

void UnixExchange::pump() {
  const std::scoped_lock lock(mutex_);
  pump_locked();
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
  // A dead rank's sockets stay open as long as a child that it forked lives: the process itself is asked too.
  if (has_ended(from.pidfd)) from.gone = true;
  if (from.socket >= 0) receive_pending(from);
  return from.gone;
}

}  // namespace tutti

#include "transports/tcp/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <mutex>

#include "base/system/system_calls.h"
#include "base/system_error.h"

namespace tutti {
namespace {

constexpr int kBacklog = 4096;  // length of the kernel's queue of new connections; the kernel limits it to somaxconn
// A machine that loses its power sends no end of file. So the kernel sends keep-alive probes: the first one after a
// connection was silent for kKeepIdleSeconds, the next ones every kKeepEverySeconds, and it closes the connection
// after kKeepProbes probes without an answer.
constexpr int kKeepIdleSeconds = 10;
constexpr int kKeepEverySeconds = 5;
constexpr int kKeepProbes = 3;
constexpr std::size_t kDiscardBytes = 16384;
// Maximum number of reads in discard_unread(); together more than a kernel usually buffers.
constexpr int kMostDiscards = 4096;

// If two ranks of one process exchange data by a socket, the data also orders their memory accesses, but the thread
// sanitizer does not see that. So in builds with this sanitizer, send_some() and receive_some() take a lock, which
// orders a receive after the send. In other builds this class does nothing.
class SeenBySanitizer {
 public:
#if defined(__SANITIZE_THREAD__)
  SeenBySanitizer() : lock_(mutex()) {}

 private:
  static std::mutex& mutex() {
    static std::mutex all_sockets;
    return all_sockets;
  }
  std::scoped_lock<std::mutex> lock_;
#else
  SeenBySanitizer() {}  // NOLINT(modernize-use-equals-default): otherwise the compiler warns about an unused variable
#endif
};

void set(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); }

Result<Socket> new_socket(int family) {
  Socket made(above_standard(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP)));
  if (!made.is_open()) return socket_error("socket", errno);
  return made;
}

// Converts the return value of a system call. `reading`: the call was a read, for which the value 0 means end of file.
Moved moved(ssize_t result, bool reading) {
  if (result > 0) return {.bytes = static_cast<std::size_t>(result)};
  if (result == 0) return {.ended = reading};
  return {.ended = errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS, .error = errno};
}

}  // namespace

void Socket::close() {
  forget_in_children(fd_);
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::uint16_t SocketAddress::port() const {
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

void SocketAddress::set_port(std::uint16_t port) {
  if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  }
}

bool SocketAddress::is_wildcard() const {
  if (family() == AF_INET6) return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr);
  return reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr == htonl(INADDR_ANY);
}

std::string SocketAddress::text() const {
  char host[INET6_ADDRSTRLEN + 32] = "?";
  getnameinfo(reinterpret_cast<const sockaddr*>(&storage), length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return family() == AF_INET6 ? fmt::format("[{}]:{}", host, port()) : fmt::format("{}:{}", host, port());
}

Result<SocketAddress> parse_host(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (host.empty() || getaddrinfo(host.c_str(), "0", &hints, &found) != 0 || found == nullptr) {
    return Error{ErrorCode::kConfig, ErrorScope::kCommunicator, -1,
                 fmt::format("'{}' is not a numeric IPv4 or IPv6 address", host)};
  }
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

Result<SocketAddress> parse_address(const std::string& text) {
  const Error unreadable{ErrorCode::kRefused, ErrorScope::kCommunicator, -1,
                         "a peer published a TCP address that cannot be read"};
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return unreadable;
  std::string host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  std::uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data() + colon + 1, end, port);
  auto address = parse_host(host);
  if (error != std::errc() || stopped != end || port == 0 || !address) return unreadable;
  address->set_port(port);
  return address;
}

SocketAddress local_address(int fd) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address;
}

SocketAddress remote_address(int fd) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address;
}

Error socket_error(const char* call, int error, std::int32_t rank) {
  return {ErrorCode::kSystem, ErrorScope::kCommunicator, rank,
          fmt::format("{} on a TCP socket failed: {}{}", call, describe_errno(error),
                      error == EADDRNOTAVAIL ? "; does this machine have that address, and local ports left?" : "")};
}

void tune(int fd, std::uint32_t buffer_bytes) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepEverySeconds);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
  if (buffer_bytes == 0) return;
  set(fd, SOL_SOCKET, SO_SNDBUF, static_cast<int>(buffer_bytes));
  set(fd, SOL_SOCKET, SO_RCVBUF, static_cast<int>(buffer_bytes));
}

Result<Socket> listen_on(const SocketAddress& address) {
  auto made = new_socket(address.family());
  if (!made) return made.error();
  set(made->get(), SOL_SOCKET, SO_REUSEADDR, 1);  // allows a port that a job which ended recently has used
  if (address.family() == AF_INET6) set(made->get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (bind(made->get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0) {
    return socket_error("bind", errno);
  }
  if (::listen(made->get(), kBacklog) != 0) return socket_error("listen", errno);
  return made;
}

Result<Socket> connect_to(const SocketAddress& address, std::uint32_t buffer_bytes, std::int32_t peer) {
  auto made = new_socket(address.family());
  if (!made) return made.error();
  tune(made->get(), buffer_bytes);
  if (connect(made->get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0 ||
      errno == EINPROGRESS) {
    return made;
  }
  return connect_error(address, errno, peer);
}

Error connect_error(const SocketAddress& address, int error, std::int32_t peer) {
  if (error == EADDRNOTAVAIL || is_shortage(error)) return socket_error("connect", error, peer);
  return {ErrorCode::kPeerLost, ErrorScope::kCommunicator, peer,
          fmt::format("rank {} cannot be reached at {} ({}): {}", peer, address.text(), std::strerror(error),
                      is_network_error(error) ? "is there a route from this machine to that one?"
                                              : "has it ended, or does a firewall block the connection?")};
}

Socket try_to_connect(const SocketAddress& address, int& error) {
  Socket made(above_standard(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP)));
  error = made.is_open() ? 0 : errno;
  if (!made.is_open()) return made;
  const int result = connect(made.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length);
  if (result == 0 || errno == EINPROGRESS) return made;
  error = errno;
  made.close();
  return made;
}

bool is_network_error(int error) {
  return error == EHOSTUNREACH || error == EHOSTDOWN || error == ENETUNREACH || error == ENETDOWN ||
         error == ETIMEDOUT || error == EACCES || error == EPERM;  // EACCES, EPERM: forbidden by a route or a firewall
}

Moved send_some(int fd, std::span<iovec> parts) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const SeenBySanitizer seen;
  ssize_t result = -1;
  do {
    result = parts.size() == 1  // the usual case for short messages; send() costs less than sendmsg()
                 ? ::send(fd, parts[0].iov_base, parts[0].iov_len, MSG_DONTWAIT | MSG_NOSIGNAL)
                 : sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (result < 0 && errno == EINTR);
  return moved(result, false);
}

Moved receive_some(int fd, std::span<iovec> parts) {
  const SeenBySanitizer seen;
  ssize_t result = -1;
  do {
    result = readv(fd, parts.data(), static_cast<int>(parts.size()));
  } while (result < 0 && errno == EINTR);
  return moved(result, true);
}

Moved receive_some(int fd, std::byte* data, std::size_t bytes) {
  const SeenBySanitizer seen;
  ssize_t result = -1;
  do {
    result = recv(fd, data, bytes, MSG_DONTWAIT);
  } while (result < 0 && errno == EINTR);
  return moved(result, true);
}

Moved peek_some(int fd, std::byte* data, std::size_t bytes) {
  ssize_t result = -1;
  do {
    result = recv(fd, data, bytes, MSG_DONTWAIT | MSG_PEEK);
  } while (result < 0 && errno == EINTR);
  return moved(result, true);
}

void discard_unread(int fd) {
  std::array<std::byte, kDiscardBytes> unread;
  for (int calls = 0; calls < kMostDiscards; ++calls) {
    if (recv(fd, unread.data(), unread.size(), MSG_DONTWAIT) <= 0) return;
  }
}

bool remote_has_closed(int fd) {
  pollfd state{.fd = fd, .events = POLLRDHUP, .revents = 0};
  return poll(&state, 1, 0) == 1;
}

std::optional<std::uint32_t> retransmitted_segments(int fd) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  return info.tcpi_total_retrans;  // 0 if the kernel is too old to have this field
}

}  // namespace tutti

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/assert.h"
#include "base/system_error.h"
#include "bootstrap/rendezvous_server.h"

namespace tutti {
namespace {

Error fail(ErrorCode code, std::string message) { return {code, ErrorScope::kCommunicator, -1, std::move(message)}; }

bool is_wildcard(const sockaddr& address) {
  if (address.sa_family == AF_INET) return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr == INADDR_ANY;
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// Makes a TCP socket listen if it is bound to a port. Returns false if `fd` is not a TCP socket, is not bound to a
// port, or cannot listen, for example because it is connected.
bool listen_where_bound(int fd) {
  int type = 0;
  socklen_t length = sizeof(type);
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_STREAM) return false;
  sockaddr_storage name{};
  length = sizeof(name);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0) return false;
  if (name.ss_family != AF_INET && name.ss_family != AF_INET6) return false;
  // sin_port and sin6_port have the same offset, so this is right for IPv4 and IPv6.
  return reinterpret_cast<const sockaddr_in*>(&name)->sin_port != 0 && ::listen(fd, SOMAXCONN) == 0;
}

}  // namespace

Listener::Listener(Listener&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      is_v6_(other.is_v6_),
      port_(other.port_),
      address_(std::move(other.address_)) {}

Listener& Listener::operator=(Listener&& other) noexcept {
  std::swap(fd_, other.fd_);  // the destructor of `other` closes the old descriptor
  is_v6_ = other.is_v6_;
  port_ = other.port_;
  address_ = other.address_;
  return *this;
}

Listener::~Listener() {
  if (fd_ >= 0) close(fd_);
}

int Listener::release() { return std::exchange(fd_, -1); }

Result<Listener> Listener::open(const std::string& address, std::span<const std::uint16_t> ports) {
  TUTTI_ASSERT(!ports.empty());
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), "0", &hints, &found) != 0) {
    return fail(ErrorCode::kConfig, fmt::format("\"{}\" is not an address to listen on", address));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  if (is_wildcard(*found->ai_addr)) {
    return fail(ErrorCode::kConfig,
                fmt::format("{} would be listening on every network of this machine: name one address of it, or an "
                            "interface in TUTTI_INTERFACE",
                            address));
  }
  int reason = 0;
  for (const std::uint16_t port : ports) {
    Listener listener(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // sin_port and sin6_port have the same offset, so this is right for IPv4 and IPv6.
    reinterpret_cast<sockaddr_in*>(found->ai_addr)->sin_port = htons(port);
    const int yes = 1;
    if (listener.fd_ >= 0 && setsockopt(listener.fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
        bind(listener.fd_, found->ai_addr, found->ai_addrlen) == 0 && ::listen(listener.fd_, SOMAXCONN) == 0) {
      TUTTI_TRY(listener.find_address());
      return listener;
    }
    reason = errno;
    if (reason != EADDRINUSE && reason != EACCES) break;
  }
  return fail(ErrorCode::kSystem,
              ports.size() == 1 ? fmt::format("cannot listen on {}:{}: {}", address, ports[0], describe_errno(reason))
                                : fmt::format("cannot listen on {}, ports {} to {} ({} of them): {}", address,
                                              ports.front(), ports.back(), ports.size(), describe_errno(reason)));
}

Result<std::vector<Listener>> Listener::open_all(const std::vector<std::string>& addresses,
                                                 std::span<const std::uint16_t> ports) {
  TUTTI_ASSERT(!addresses.empty() && !ports.empty());
  constexpr std::array<std::uint16_t, 1> kAnyPort{0};
  std::vector<Listener> best;
  // Number of addresses on which this process can listen, because they belong to this machine.
  std::size_t own = 0;
  for (const std::string& address : addresses) own += open(address, kAnyPort).ok() ? 1 : 0;
  for (const std::uint16_t port : ports) {
    std::vector<Listener> listeners;
    for (const std::string& address : addresses) {
      const std::uint16_t wanted = port != 0 || listeners.empty() ? port : listeners.front().port();
      auto listener = open(address, {&wanted, 1});
      if (listener) listeners.push_back(std::move(*listener));
    }
    if (listeners.size() > best.size()) best = std::move(listeners);
    if (!best.empty() && best.size() == own) return best;
  }
  if (!best.empty()) return best;
  auto first = open(addresses.front(), ports);
  if (!first) return first.error();
  best.push_back(std::move(*first));
  return best;
}

Result<Listener> Listener::inherit(int fd, std::uint16_t port) {
  Listener copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (copy.fd_ < 0 && is_shortage(errno)) {
    return fail(ErrorCode::kSystem, fmt::format("TUTTI_ROOT_FD={}: {}", fd, describe_errno(errno)));
  }
  if (copy.fd_ < 0) {
    return fail(ErrorCode::kConfig,
                fmt::format("TUTTI_ROOT_FD={} is not an open descriptor: {}", fd, std::strerror(errno)));
  }
  int listening = 0;
  socklen_t length = sizeof(listening);
  const bool is_socket = getsockopt(copy.fd_, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) == 0;
  if (is_socket && port != 0) {
    TUTTI_TRY(copy.find_address());
    if (copy.port_ != port) {
      return fail(ErrorCode::kConfig, fmt::format("TUTTI_ROOT_FD={} is bound to port {}, and TUTTI_ROOT names port {}",
                                                  fd, copy.port_, port));
    }
  }
  if (is_socket && listening == 0) listening = listen_where_bound(copy.fd_) ? 1 : 0;
  if (listening == 0) return fail(ErrorCode::kConfig, fmt::format("TUTTI_ROOT_FD={} is not a listening socket", fd));
  TUTTI_TRY(copy.find_address());
  return copy;
}

Result<Listener> Listener::inherit_or_open(int fd, std::uint16_t port, const std::string& address,
                                           std::span<const std::uint16_t> ports) {
  auto inherited = inherit(fd, port);
  if (inherited) return inherited;
  auto opened = open(address, ports);
  if (opened) return opened;
  return fail(opened.error().code,
              fmt::format("{}; {} (a program between the launcher and this one has closed it; in Python, give "
                          "subprocess pass_fds=({},))",
                          opened.error().message, inherited.error().message, fd));
}

Status Listener::find_address() {
  sockaddr_storage name{};
  socklen_t length = sizeof(name);
  std::array<char, NI_MAXHOST> host{};
  auto* const generic = reinterpret_cast<sockaddr*>(&name);
  if (getsockname(fd_, generic, &length) != 0 || (name.ss_family != AF_INET && name.ss_family != AF_INET6) ||
      getnameinfo(generic, length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return fail(ErrorCode::kConfig, "the listening socket has no IPv4 or IPv6 address");
  }
  is_v6_ = name.ss_family == AF_INET6;
  port_ = ntohs(reinterpret_cast<const sockaddr_in*>(&name)->sin_port);
  address_ = host.data();
  if (address_ == "0.0.0.0") address_ = "127.0.0.1";
  if (address_ == "::") address_ = "::1";
  return {};
}

}  // namespace tutti

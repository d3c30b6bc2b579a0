// Socket: an owned TCP descriptor, and the few system calls on it that the transport makes. Everything is non-blocking,
// close-on-exec and not kept by forked children (inherited.h), and has a number above those of the standard streams.
// Values and resources without state of their
// own; any thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "transports/inherited.h"
#include "tutti/result.h"

namespace tutti {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) { close_in_children(fd); }
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

// A numeric IPv4 or IPv6 address with a port. A value.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  std::uint16_t port() const;
  void set_port(std::uint16_t port);
  bool is_wildcard() const;
  std::string text() const;  // "127.0.0.1:4711", "[::1]:4711"
};

// `host` without a port, numeric. kConfig if it is none.
Result<SocketAddress> parse_host(const std::string& host);
// What SocketAddress::text() prints. kRefused: it comes from a peer.
Result<SocketAddress> parse_address(const std::string& text);
SocketAddress local_address(int fd);
SocketAddress remote_address(int fd);

// "<call> failed: <errno's text>", with what to do where that is known.
Error socket_error(const char* call, int error, std::int32_t rank = -1);

// Both make a descriptor; kSystem, and for connect_to() also kPeerLost, where the system refuses at once. A connection
// that connect_to() returned may still be under way: the first send tells.
Result<Socket> listen_on(const SocketAddress& address);
Result<Socket> connect_to(const SocketAddress& address, std::uint32_t buffer_bytes, std::int32_t peer);
// Starts a connection, without tune(). `error`: 0, or the errno of a failure, and then the socket is closed.
Socket try_to_connect(const SocketAddress& address, int& error);
// The same error as connect_to()'s, for such an errno.
Error connect_error(const SocketAddress& address, int error, std::int32_t peer);
// Whether a connection failed because of the network or of this machine's routes, for example because a cable is out or
// a route is missing. Such an error does not prove that the peer's process has ended, and it may pass.
bool is_network_error(int error);
// No delay, keep-alive; `buffer_bytes` 0 leaves the buffers to the kernel, which tunes them.
void tune(int fd, std::uint32_t buffer_bytes);

// What one system call did: bytes > 0 moved, or 0 and why not.
struct Moved {
  std::size_t bytes = 0;
  bool ended = false;  // end of file or an error: nothing will ever move again
  int error = 0;       // errno, 0 for end of file
};
Moved send_some(int fd, std::span<iovec> parts);
Moved receive_some(int fd, std::span<iovec> parts);
Moved receive_some(int fd, std::byte* data, std::size_t bytes);
Moved peek_some(int fd, std::byte* data, std::size_t bytes);
// Forgets what has come, up to a bound. A socket that is closed with something unread resets the connection, and takes
// back what it has sent and the peer's system has not taken yet.
void discard_unread(int fd);
// The peer has closed its side, though bytes may still be unread.
bool remote_has_closed(int fd);

// Uninitialised memory at a multiple of 4096.
struct PageDelete {
  void operator()(std::byte* data) const { ::operator delete[](data, std::align_val_t{4096}); }
};
using PageBytes = std::unique_ptr<std::byte[], PageDelete>;
inline PageBytes make_page_bytes(std::size_t bytes) {
  return PageBytes(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{4096})));
}

}  // namespace tutti

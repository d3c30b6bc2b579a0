// Socket: an owned descriptor of a TCP socket (epoll sets and eventfds are owned in this way as well), and the system
// calls on it that the transport needs.
//
// All TCP sockets are non-blocking and close-on-exec, are not kept by forked children (inherited.h), and have a number
// above those of the standard streams. The types are values or resources without shared state, so any thread may use
// them, but only one thread at a time may use an object.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
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
  std::string text() const;  // for example "127.0.0.1:4711" or "[::1]:4711"
};

// Parses a numeric address without a port; the port of the result is 0. Errors: kConfig if the address is invalid.
Result<SocketAddress> parse_host(const std::string& host);
// Parses the output of SocketAddress::text(). Errors: kRefused, because the text comes from a peer.
Result<SocketAddress> parse_address(const std::string& text);
SocketAddress local_address(int fd);
SocketAddress remote_address(int fd);

// A kSystem error with the text "<call> on a TCP socket failed: <description of `error`, an errno>", and a remedy if
// one is known. `rank`: the rank to name, or -1.
Error socket_error(const char* call, int error, std::int32_t rank = -1);

// listen_on() creates a listener. connect_to() starts a connection, which may not be established yet when it returns; a
// later send or receive then reports a failure. `buffer_bytes`: see tune(). Errors: kSystem; for connect_to() also
// kPeerLost if the system reports immediately that the peer cannot be reached.
Result<Socket> listen_on(const SocketAddress& address);
Result<Socket> connect_to(const SocketAddress& address, std::uint32_t buffer_bytes, std::int32_t peer);
// Starts a connection, without tune(). `error` is set to 0, or to the errno of a failure; in that case the returned
// socket is closed.
Socket try_to_connect(const SocketAddress& address, int& error);
// The error that connect_to() returns for this errno.
Error connect_error(const SocketAddress& address, int error, std::int32_t peer);
// Whether a connection failed because of the network or of the routes of this machine, for example because a cable is
// unplugged, a route is missing, or a firewall drops the packets or is on this machine. False if a firewall refuses the
// connection in the way of a machine on which nobody listens. Such an error does not prove that the process of the peer
// has exited, and it may disappear.
bool is_network_error(int error);
// Sets TCP_NODELAY and keep-alive. `buffer_bytes`: size of the socket buffers; 0: the kernel chooses and adapts it.
void tune(int fd, std::uint32_t buffer_bytes);

// The result of a send or a receive: the number of bytes moved, or the reason why none were. 0 bytes without `ended`
// means that nothing can be moved now: try again later.
struct Moved {
  std::size_t bytes = 0;
  bool ended = false;  // end of file or an error; nothing can be moved any more
  int error = 0;       // only valid if `ended`: an errno, or one of tls_end; 0 for end of file
};
// Each of these functions makes one non-blocking system call, and repeats it if a signal interrupts it. peek_some()
// leaves the data in the socket.
Moved send_some(int fd, std::span<iovec> parts);
Moved receive_some(int fd, std::span<iovec> parts);
Moved receive_some(int fd, std::byte* data, std::size_t bytes);
Moved peek_some(int fd, std::byte* data, std::size_t bytes);
// Reads and discards the data that has arrived, up to a limit. Call it before closing a socket: if there is unread
// data, closing resets the connection, and the kernel then discards sent data that the system of the peer has not
// received yet.
void discard_unread(int fd);
// Whether the other end has closed the connection, or the connection has failed. There may still be unread data.
bool remote_has_closed(int fd);

// The number of segments that the kernel has sent again on this connection so far, modulo 2^32. Empty if the kernel
// does not report it.
std::optional<std::uint32_t> retransmitted_segments(int fd);

// PageBytes is uninitialised memory, aligned to 4096 bytes. PageDelete frees it.
struct PageDelete {
  void operator()(std::byte* data) const { ::operator delete[](data, std::align_val_t{4096}); }
};
using PageBytes = std::unique_ptr<std::byte[], PageDelete>;
inline PageBytes make_page_bytes(std::size_t bytes) {
  return PageBytes(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{4096})));
}

}  // namespace tutti

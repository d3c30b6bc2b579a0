// The system calls on sockets that the ranks of a simulation make. The linker option --wrap redirects them here (see
// CMakeLists.txt). Calls of other threads and calls on real descriptors are passed to the operating system. The
// linker defines the names of these functions.
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "faults/sim_kernel.h"

using tutti::faults::kFirstDescriptor;
using tutti::faults::SimKernel;

namespace {

SimKernel* here() { return SimKernel::current(); }
bool simulated(int fd) { return fd >= kFirstDescriptor && here() != nullptr; }

int give_address(sockaddr* address, socklen_t* length, std::uint16_t port) {
  sockaddr_in given{};
  given.sin_family = AF_INET;
  given.sin_port = htons(port);
  given.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(address, &given, std::min<std::size_t>(*length, sizeof(given)));
  *length = sizeof(given);
  return 0;
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp,readability-identifier-naming,cert-dcl50-cpp)
extern "C" {

int __real_socket(int family, int type, int protocol);
int __wrap_socket(int family, int type, int protocol) {
  return here() != nullptr ? here()->socket() : __real_socket(family, type, protocol);
}

int __real_epoll_create1(int flags);
int __wrap_epoll_create1(int flags) { return here() != nullptr ? here()->epoll() : __real_epoll_create1(flags); }

int __real_eventfd(unsigned count, int flags);
int __wrap_eventfd(unsigned count, int flags) {
  return here() != nullptr ? here()->event() : __real_eventfd(count, flags);
}

int __real_setsockopt(int fd, int level, int name, const void* value, socklen_t length);
int __wrap_setsockopt(int fd, int level, int name, const void* value, socklen_t length) {
  return simulated(fd) ? 0 : __real_setsockopt(fd, level, name, value, length);
}

int __real_bind(int fd, const sockaddr* address, socklen_t length);
int __wrap_bind(int fd, const sockaddr* address, socklen_t length) {
  return simulated(fd) ? 0 : __real_bind(fd, address, length);
}

int __real_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog) {
  return simulated(fd) ? here()->bind_listener(fd) : __real_listen(fd, backlog);
}

int __real_accept4(int fd, sockaddr* address, socklen_t* length, int flags);
int __wrap_accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  return simulated(fd) ? here()->accept(fd) : __real_accept4(fd, address, length, flags);
}

int __real_connect(int fd, const sockaddr* address, socklen_t length);
int __wrap_connect(int fd, const sockaddr* address, socklen_t length) {
  if (!simulated(fd)) return __real_connect(fd, address, length);
  return here()->connect(fd, ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port));
}

int __real_getsockname(int fd, sockaddr* address, socklen_t* length);
int __wrap_getsockname(int fd, sockaddr* address, socklen_t* length) {
  if (!simulated(fd)) return __real_getsockname(fd, address, length);
  return give_address(address, length, here()->port(fd, false));
}

int __real_getpeername(int fd, sockaddr* address, socklen_t* length);
int __wrap_getpeername(int fd, sockaddr* address, socklen_t* length) {
  if (!simulated(fd)) return __real_getpeername(fd, address, length);
  return give_address(address, length, here()->port(fd, true));
}

ssize_t __real_send(int fd, const void* data, std::size_t bytes, int flags);
ssize_t __wrap_send(int fd, const void* data, std::size_t bytes, int flags) {
  if (!simulated(fd)) return __real_send(fd, data, bytes, flags);
  const iovec part{.iov_base = const_cast<void*>(data), .iov_len = bytes};
  return here()->send(fd, &part, 1);
}

ssize_t __real_sendmsg(int fd, const msghdr* message, int flags);
ssize_t __wrap_sendmsg(int fd, const msghdr* message, int flags) {
  return simulated(fd) ? here()->send(fd, message->msg_iov, message->msg_iovlen) : __real_sendmsg(fd, message, flags);
}

ssize_t __real_recv(int fd, void* data, std::size_t bytes, int flags);
ssize_t __wrap_recv(int fd, void* data, std::size_t bytes, int flags) {
  if (!simulated(fd)) return __real_recv(fd, data, bytes, flags);
  const iovec part{.iov_base = data, .iov_len = bytes};
  return here()->receive(fd, &part, 1, (flags & MSG_PEEK) != 0);
}

// Replaces recv() if the compiler checks the length of the buffer.
ssize_t __real___recv_chk(int fd, void* data, std::size_t bytes, std::size_t most, int flags);
ssize_t __wrap___recv_chk(int fd, void* data, std::size_t bytes, std::size_t, int flags) {
  return __wrap_recv(fd, data, bytes, flags);
}

ssize_t __real_readv(int fd, const iovec* parts, int count);
ssize_t __wrap_readv(int fd, const iovec* parts, int count) {
  return simulated(fd) ? here()->receive(fd, parts, static_cast<std::size_t>(count), false)
                       : __real_readv(fd, parts, count);
}

int __real_poll(pollfd* descriptors, nfds_t count, int timeout_ms);
int __wrap_poll(pollfd* descriptors, nfds_t count, int timeout_ms) {
  return here() != nullptr ? here()->poll(descriptors, count, timeout_ms) : __real_poll(descriptors, count, timeout_ms);
}

// Replaces poll() if the compiler checks the length of the array.
int __wrap___poll_chk(pollfd* descriptors, nfds_t count, int timeout_ms, std::size_t) {
  return __wrap_poll(descriptors, count, timeout_ms);
}

int __real_nanosleep(const timespec* time, timespec* left);
int __wrap_nanosleep(const timespec* time, timespec* left) {
  if (here() == nullptr) return __real_nanosleep(time, left);
  return here()->sleep(std::int64_t{time->tv_sec} * 1'000'000'000 + time->tv_nsec);
}

int __real_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  if (!simulated(fd)) return __real_ioctl(fd, request, argument);
  if (request != FIONREAD) return errno = EINVAL, -1;
  *static_cast<int*>(argument) = here()->unread(fd);
  return 0;
}

int __real_epoll_ctl(int fd, int operation, int target, epoll_event* event);
int __wrap_epoll_ctl(int fd, int operation, int target, epoll_event* event) {
  return simulated(fd) ? here()->epoll_control(fd, operation, target, event)
                       : __real_epoll_ctl(fd, operation, target, event);
}

int __real_epoll_wait(int fd, epoll_event* events, int most, int timeout_ms);
int __wrap_epoll_wait(int fd, epoll_event* events, int most, int timeout_ms) {
  return simulated(fd) ? here()->epoll_wait(fd, events, most) : __real_epoll_wait(fd, events, most, timeout_ms);
}

ssize_t __real_write(int fd, const void* data, std::size_t bytes);
ssize_t __wrap_write(int fd, const void* data, std::size_t bytes) {
  return simulated(fd) ? here()->ring(fd) : __real_write(fd, data, bytes);
}

int __real_close(int fd);
int __wrap_close(int fd) { return simulated(fd) ? here()->close(fd) : __real_close(fd); }
}
// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp,readability-identifier-naming,cert-dcl50-cpp)

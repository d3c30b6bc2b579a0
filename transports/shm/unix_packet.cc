#include "transports/shm/unix_packet.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/system/system_calls.h"
#include "transports/oob_datagrams.h"

namespace tutti {
namespace {

// Size of the buffer for the control data of a message with one descriptor. Because of alignment, the control data of
// two descriptors fits as well.
constexpr std::size_t kControlBytes = CMSG_SPACE(sizeof(int));
constexpr auto kWhole = static_cast<ssize_t>(sizeof(UnixPacket));

// Whether the error is temporary, so that the same call can succeed later: the socket is full or empty, too many
// descriptors are in transit, memory is short, or a signal has interrupted the call.
bool is_passing(int error) {
  return error == EAGAIN || error == EINTR || error == ETOOMANYREFS || error == ENOBUFS || error == ENOMEM;
}

// Returns the descriptor that arrived with a message, if any. A correct packet has at most one. If there are several,
// all are closed.
OwnedDescriptor descriptor_in(msghdr& message) {
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) return {};
  std::array<int, kControlBytes / sizeof(int)> fds{};
  const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  std::memcpy(fds.data(), CMSG_DATA(header), count * sizeof(int));
  if (count == 1) return OwnedDescriptor(fds[0]);
  for (std::size_t i = 0; i < count; ++i) close(fds[i]);
  return {};
}

}  // namespace

bool SpareDescriptor::release() {
  if (fd_ < 0) return false;
  close(std::exchange(fd_, -1));
  return true;
}

bool SpareDescriptor::restore() {
  if (fd_ < 0) fd_ = above_standard(eventfd(0, EFD_CLOEXEC));
  return fd_ >= 0;
}

UnixTransfer send_packet(int socket, const UnixPacket& packet, const std::string& datagram, int fd) {
  UnixPacket head = packet;
  std::array<iovec, 2> parts{
      {{.iov_base = &head, .iov_len = sizeof(head)},
       {.iov_base = const_cast<char*>(datagram.data()), .iov_len = datagram.size()}}};  // NOLINT: read
  alignas(cmsghdr) std::array<std::byte, kControlBytes> control{};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return UnixTransfer::kDone;
  return is_passing(errno) ? UnixTransfer::kLater : UnixTransfer::kEnd;
}

// recvmsg() with MSG_PEEK receives the descriptor as well, but leaves the packet on the socket, so that this function
// can try again after it has released the spare number. The recv() at the end removes the packet, and the kernel
// drops its own copy of the descriptor.
UnixTransfer receive_packet(int socket, SpareDescriptor& spare, ReceivedPacket& received) {
  received.fd.reset();
  received.fd_lost = false;
  std::array<char, kMostDatagramBytes> datagram;  // not initialised, because the system writes all bytes that are read
  std::array<iovec, 2> parts{{{.iov_base = &received.packet, .iov_len = sizeof(received.packet)},
                              {.iov_base = datagram.data(), .iov_len = datagram.size()}}};
  ssize_t bytes = -1;
  while (true) {
    alignas(cmsghdr) std::array<std::byte, kControlBytes> control{};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    bytes = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && is_passing(errno)) return UnixTransfer::kLater;
    if (bytes <= 0) return UnixTransfer::kEnd;
    received.fd = descriptor_in(message);
    received.fd_lost = (message.msg_flags & MSG_CTRUNC) != 0;
    if ((message.msg_flags & MSG_TRUNC) != 0) bytes = -1;  // longer than any correct packet, so the packet is invalid
    if (received.fd.is_open() || !received.fd_lost || !spare.release()) break;
  }
  // If several descriptors were sent and not all have arrived, keep none of them.
  if (received.fd_lost) received.fd.reset();
  const UnixPacket& packet = received.packet;
  const bool sound = bytes >= kWhole && packet.magic == UnixPacket::kMagic &&
                     (packet.operation == UnixOperation::kDatagram || bytes == kWhole);
  // The datagram is copied before the packet is removed from the socket, so that it is not lost if memory is exhausted.
  if (sound) received.datagram.assign(datagram.data(), static_cast<std::size_t>(bytes - kWhole));
  char byte = 0;
  while (recv(socket, &byte, sizeof(byte), MSG_DONTWAIT) < 0 && errno == EINTR) {
  }
  if (sound) return UnixTransfer::kDone;
  received.fd.reset();
  return UnixTransfer::kEnd;
}

}  // namespace tutti

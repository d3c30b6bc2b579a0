#include "transports/shm/unix_greetings.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "base/system/system_calls.h"
#include "transports/shm/unix_address.h"

namespace tutti {
namespace {

constexpr int kAcceptsAtOnce = 64;

}  // namespace

Status UnixGreetings::accept_some() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    OwnedDescriptor fd(above_standard(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
    if (!fd.is_open()) {
      if (errno == EAGAIN) return {};
      if (errno == EINTR || errno == ECONNABORTED) continue;
      const bool starved = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
      const Error error = unix_socket_error("accept");
      if (starved && make_room()) continue;
      return error;
    }
    const std::optional<pid_t> process = peer_process(fd.get());
    if (process) pending_.push_back({.fd = std::move(fd), .process = *process});
  }
  return {};
}

// Passes the first packet of the connection to admit_ if it has arrived. Returns true if the connection must be
// removed from pending_.
bool UnixGreetings::receive_packet(PendingConnection& pending) {
  std::vector<std::byte> packet(longest_ + 1);
  const ssize_t bytes = recv(pending.fd.get(), packet.data(), packet.size(), MSG_DONTWAIT);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  // The connection has ended or failed, or its packet is empty or too long for a rank of Tutti.
  if (bytes <= 0 || static_cast<std::size_t>(bytes) > longest_) return true;
  packet.resize(static_cast<std::size_t>(bytes));
  if (admit_(pending.fd.get(), pending.process, packet)) pending.fd.release();
  return true;
}

// Removes the connection that has waited longest, and closes it unless it is admitted now. Its packet may have arrived
// since the last check, and is then handled first: the peer has sent it successfully, and would not notice its loss.
void UnixGreetings::drop_oldest() {
  receive_packet(pending_.front());
  pending_.pop_front();
}

// Frees one place by drop_oldest(). Returns false if there is no pending connection.
bool UnixGreetings::make_room() {
  if (pending_.empty()) return false;
  drop_oldest();
  return true;
}

void UnixGreetings::receive_packets() {
  pending_.remove_if([&](PendingConnection& pending) { return receive_packet(pending); });
  while (pending_.size() > max_pending_) drop_oldest();
}

void UnixGreetings::wait(int timeout_ms) const {
  std::vector<pollfd> waiting{{.fd = listener_, .events = POLLIN, .revents = 0}};
  for (const PendingConnection& pending : pending_)
    waiting.push_back({.fd = pending.fd.get(), .events = POLLIN, .revents = 0});
  poll(waiting.data(), waiting.size(), timeout_ms);
}

}  // namespace tutti

#include "transports/shm/unix_greetings.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "transports/shm/mapping.h"
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
    if (process) silent_.push_back({.fd = std::move(fd), .process = *process});
  }
  return {};
}

bool UnixGreetings::hear_one(Silent& silent) {
  std::vector<std::byte> packet(longest_ + 1);
  const ssize_t bytes = recv(silent.fd.get(), packet.data(), packet.size(), MSG_DONTWAIT);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (bytes <= 0 || static_cast<std::size_t>(bytes) > longest_) return true;  // closed by the other end, or a stranger
  packet.resize(static_cast<std::size_t>(bytes));
  if (admit_(silent.fd.get(), silent.process, packet)) silent.fd.release();
  return true;
}

// A peer whose packet has come since the last look must not lose its connection: it could not tell that it has.
void UnixGreetings::drop_oldest() {
  hear_one(silent_.front());
  silent_.pop_front();
}

// True if a connection was closed, or taken by `admit`.
bool UnixGreetings::make_room() {
  if (silent_.empty()) return false;
  drop_oldest();
  return true;
}

void UnixGreetings::hear() {
  silent_.remove_if([&](Silent& silent) { return hear_one(silent); });
  while (silent_.size() > most_silent_) drop_oldest();
}

void UnixGreetings::wait(int timeout_ms) const {
  std::vector<pollfd> waiting{{.fd = listener_, .events = POLLIN, .revents = 0}};
  for (const Silent& silent : silent_) waiting.push_back({.fd = silent.fd.get(), .events = POLLIN, .revents = 0});
  poll(waiting.data(), waiting.size(), timeout_ms);
}

}  // namespace tutti

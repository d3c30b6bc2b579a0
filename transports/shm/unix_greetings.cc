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

UnixGreetings::Silent::~Silent() {
  if (fd >= 0) close(fd);
}

Status UnixGreetings::accept_some() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    const int fd = above_standard(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) return errno == EAGAIN ? Status() : unix_socket_error("accept");
    const std::optional<pid_t> process = peer_process(fd);
    if (!process) {
      close(fd);
      continue;
    }
    silent_.emplace_back(fd, *process);
  }
  return {};
}

bool UnixGreetings::hear_one(Silent& silent, std::size_t longest, const Admit& admit) {
  std::vector<std::byte> packet(longest + 1);
  const ssize_t bytes = recv(silent.fd, packet.data(), packet.size(), MSG_DONTWAIT);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (bytes <= 0 || static_cast<std::size_t>(bytes) > longest) return true;  // closed by the other end, or a stranger
  packet.resize(static_cast<std::size_t>(bytes));
  if (admit(silent.fd, silent.process, packet)) silent.fd = -1;
  return true;
}

void UnixGreetings::hear(std::size_t longest, const Admit& admit) {
  silent_.remove_if([&](Silent& silent) { return hear_one(silent, longest, admit); });
  while (silent_.size() > most_silent_) silent_.pop_front();
}

void UnixGreetings::wait(int timeout_ms) const {
  std::vector<pollfd> waiting{{.fd = listener_, .events = POLLIN, .revents = 0}};
  for (const Silent& silent : silent_) waiting.push_back({.fd = silent.fd, .events = POLLIN, .revents = 0});
  poll(waiting.data(), waiting.size(), timeout_ms);
}

}  // namespace tutti

#include "transports/shm/unix_address.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/system/system_calls.h"
#include "base/system_error.h"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kOverrunPause{1};

socklen_t fill(sockaddr_un& address, const std::string& name) {
  TUTTI_ASSERT(!name.empty() && name.size() + 1 <= sizeof(address.sun_path));
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

int new_socket() { return above_standard(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

}  // namespace

Error unix_socket_error(const char* call, std::int32_t rank) {
  return {ErrorCode::kSystem, ErrorScope::kCommunicator, rank,
          fmt::format("{} on a Unix socket failed: {}", call, describe_errno(errno))};
}

Result<UnixAddress> UnixAddress::random() {
  UnixAddress address;
  Nonce name{};
  for (Nonce* bytes : {&address.nonce, &name}) {
    if (getrandom(bytes->data(), bytes->size(), 0) != static_cast<ssize_t>(bytes->size())) {
      return unix_socket_error("getrandom");
    }
  }
  address.name = fmt::format("tutti-{:02x}", fmt::join(name, ""));
  return address;
}

std::optional<UnixAddress> UnixAddress::parse(const std::string& text) {
  UnixAddress address;
  const std::size_t hex = 2 * address.nonce.size();
  if (text.size() < hex + 2 || text.size() > 127 || text[hex] != ':') return std::nullopt;
  address.name = text.substr(hex + 1);
  if (address.name.size() + 1 > sizeof(sockaddr_un::sun_path)) return std::nullopt;
  for (std::size_t i = 0; i < address.nonce.size(); ++i) {
    const char* digits = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(digits, digits + 2, address.nonce[i], 16);
    if (error != std::errc() || end != digits + 2) return std::nullopt;
  }
  return address;
}

std::string UnixAddress::text() const { return fmt::format("{:02x}:{}", fmt::join(nonce, ""), name); }

Result<int> listen_at(const UnixAddress& address, std::uint32_t backlog) {
  const int fd = new_socket();
  if (fd < 0) return unix_socket_error("socket");
  sockaddr_un where{};
  const socklen_t length = fill(where, address.name);
  const char* failed = nullptr;
  if (bind(fd, reinterpret_cast<sockaddr*>(&where), length) != 0) {
    failed = "bind";
  } else if (::listen(fd, static_cast<int>(backlog)) != 0) {
    failed = "listen";
  }
  if (failed == nullptr) return fd;
  Error error = unix_socket_error(failed);
  close(fd);
  return error;
}

DialResult dial(const UnixAddress& address) {
  const int fd = new_socket();
  if (fd < 0) return {.reach = Reach::kFailed, .error = errno};
  sockaddr_un where{};
  const socklen_t length = fill(where, address.name);
  while (::connect(fd, reinterpret_cast<sockaddr*>(&where), length) != 0) {
    const int error = errno;
    if (error == EINTR) continue;
    close(fd);
    return {.reach = error == ECONNREFUSED ? Reach::kAbsent : Reach::kFailed, .error = error};
  }
  const std::optional<pid_t> process = peer_process(fd);
  if (process) return {.reach = Reach::kReached, .fd = fd, .process = *process};
  close(fd);
  return {.reach = Reach::kOtherUser, .error = EPERM};
}

DialResult wait_and_dial(const UnixAddress& address, Clock& clock, std::int64_t deadline_ns,
                         const std::function<bool()>& has_failed) {
  while (true) {
    const DialResult dialled = dial(address);
    if (dialled.error != EAGAIN || clock.now_ns() >= deadline_ns || (has_failed && has_failed())) return dialled;
    std::this_thread::sleep_for(kOverrunPause);
  }
}

Error unreachable(std::uint32_t rank, const DialResult& dialled) {
  const auto error = [rank](ErrorCode code, std::string why) {
    return Error{code, ErrorScope::kCommunicator, static_cast<std::int32_t>(rank), std::move(why)};
  };
  if (dialled.reach == Reach::kOtherUser) {
    return error(ErrorCode::kRefused, fmt::format("rank {} runs as another user; run all ranks as one user", rank));
  }
  if (dialled.reach == Reach::kAbsent) {
    return error(ErrorCode::kPeerLost,
                 fmt::format("rank {} on this machine cannot be reached ({}): has it ended, or is "
                             "it in another network namespace?",
                             rank, std::strerror(dialled.error)));
  }
  if (dialled.error == EAGAIN) {
    return error(ErrorCode::kTimeout,
                 fmt::format("set-up deadline passed: rank {} accepted no connection on this machine, "
                             "and its queue is full",
                             rank));
  }
  errno = dialled.error;
  return unix_socket_error("connecting", static_cast<std::int32_t>(rank));
}

std::optional<pid_t> peer_process(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 || credentials.uid != geteuid()) {
    return std::nullopt;
  }
  return credentials.pid;
}

}  // namespace tutti

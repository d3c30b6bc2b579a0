// UnixAddress: the address at which the UnixExchange of a rank listens, and how to connect to it. Used during set-up.
//
// The name is an abstract Unix socket name. It is random and practically unique. If a rank is in another network
// namespace, a process in this namespace therefore cannot have the same name by accident. Every process of the
// machine can list the names, so authentication needs a second random number, the nonce, which is only sent through
// the bootstrap.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "tutti/result.h"

namespace tutti {

using Nonce = std::array<std::uint8_t, 16>;

struct UnixAddress {
  Nonce nonce{};
  std::string name;  // without the leading zero byte of abstract names

  static Result<UnixAddress> random();
  static std::optional<UnixAddress> parse(const std::string& text);
  std::string text() const;  // printable, below 128 bytes
};

// What a rank finds out about another one before both decide whether to share memory.
enum class Reach : std::uint8_t {
  kNotTried,
  kReached,
  kAbsent,     // no process listens there: it has exited, or is in another network namespace
  kOtherUser,  // the process belongs to another user
  kFailed,     // the result is unknown: out of descriptors, or the address is invalid
};

// The result of an attempt to connect.
struct DialResult {
  Reach reach = Reach::kFailed;
  int fd = -1;         // for kReached: the connected, non-blocking socket, owned by the caller
  pid_t process = -1;  // process number of the listener, as this process sees it; 0: it is in another PID namespace
  int error = 0;       // errno if the attempt failed
};

// Creates a non-blocking SOCK_SEQPACKET listener. Errors: kSystem.
Result<int> listen_at(const UnixAddress& address, std::uint32_t backlog);

// Connects without waiting. kFailed with EAGAIN means that a process listens there, but its queue of connections is
// full.
DialResult dial(const UnixAddress& address);

// The same, but while the queue is full, it waits and tries again until the deadline.
DialResult wait_and_dial(const UnixAddress& address, Clock& clock, std::int64_t deadline_ns);

// The error that explains why a rank cannot be connected to. `dialled.reach` must not be kReached.
Error unreachable(std::uint32_t rank, const DialResult& dialled);

// The process at the other end of a Unix socket, according to the kernel. Empty if it belongs to another user.
std::optional<pid_t> peer_process(int socket);

Error unix_socket_error(const char* call, std::int32_t rank = -1);  // uses errno

}  // namespace tutti

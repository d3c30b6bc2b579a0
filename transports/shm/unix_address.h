// UnixAddress: the address at which the UnixExchange of a rank listens, and how to connect to it. Used during set-up.
//
// The name is an abstract Unix socket name. It is random and practically unique, so that if a rank is in another
// network namespace, no process in this namespace has the same name by accident. Other processes of the machine can
// list the names, so authentication needs a second random number, the nonce, which the other ranks get through the
// bootstrap.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
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
  std::string text() const;  // printable, shorter than 128 bytes; parse() reads it
};

// The result of an attempt to connect to the listener of another rank. Ranks use it to decide with which other ranks
// they can share memory.
enum class Reach : std::uint8_t {
  kNotTried,
  kReached,
  kAbsent,     // no process listens there: for example, it has exited, or is in another network namespace
  kOtherUser,  // the process belongs to another user, or its user is not known
  // The attempt failed for another reason, for example: descriptors ran out, the address is invalid, or a process
  // listens there but its queue of connections is full (EAGAIN).
  kFailed,
};

// The result of an attempt to connect.
struct DialResult {
  Reach reach = Reach::kFailed;
  int fd = -1;         // for kReached: the connected, non-blocking socket, owned by the caller; otherwise -1
  pid_t process = -1;  // for kReached: process number of the listener; 0 if the listener is in another PID namespace
  int error = 0;       // errno of the failed attempt; EPERM for kOtherUser; 0 for kReached, or if nothing was attempted
};

// Creates a non-blocking SOCK_SEQPACKET listener with a queue for `backlog` connections, or fewer if the kernel limits
// it. Errors: kSystem.
Result<int> listen_at(const UnixAddress& address, std::uint32_t backlog);

// Connects without waiting. kFailed with EAGAIN means that a process listens there, but its queue of connections is
// full.
DialResult dial(const UnixAddress& address);

// Like dial(), but while the queue is full, it waits and tries again until the deadline, or until `has_failed` (null:
// never) returns true.
DialResult wait_and_dial(const UnixAddress& address, Clock& clock, std::int64_t deadline_ns,
                         const std::function<bool()>& has_failed = nullptr);

// The error that explains why this rank cannot connect to `rank`. `dialled` is the result of the attempt;
// dialled.reach must not be kReached.
Error unreachable(std::uint32_t rank, const DialResult& dialled);

// The number of the process at the other end of a Unix socket, according to the kernel. Empty if it belongs to
// another user, or if the kernel does not know it.
std::optional<pid_t> peer_process(int socket);

// A kSystem error with errno. `call`: the failed call; `rank`: the rank to name, or -1.
Error unix_socket_error(const char* call, std::int32_t rank = -1);

}  // namespace tutti

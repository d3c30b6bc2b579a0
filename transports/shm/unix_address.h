// UnixAddress: where a rank's UnixExchange listens, and how it is reached. Used during set-up.
//
// The name is an abstract one, random and as good as unique: a rank in another network namespace cannot be mistaken for
// somebody who happens to have the same name in this one. Names can be seen by everybody on the machine, so the nonce,
// which only the bootstrap carries, is another random number.
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
  std::string name;  // without the leading zero of abstract names

  static Result<UnixAddress> random();
  static std::optional<UnixAddress> parse(const std::string& text);
  std::string text() const;  // printable, below 128 bytes
};

// What a rank finds out of another one before they decide whether to share memory.
enum class Reach : std::uint8_t {
  kNotTried,
  kReached,
  kAbsent,     // nobody listens there: it has ended, or lives in another network namespace
  kOtherUser,  // somebody else's process
  kFailed,     // no answer can be had: out of descriptors, an address that cannot be read
};

struct Dialled {
  Reach reach = Reach::kFailed;
  int fd = -1;         // when reached: connected, non-blocking; the caller's
  pid_t process = -1;  // the listening one, as seen from here; 0: in another PID namespace
  int error = 0;       // errno otherwise
};

// Non-blocking, of SOCK_SEQPACKET. Errors: kSystem.
Result<int> listen_at(const UnixAddress& address, std::uint32_t backlog);

// Connects without waiting. kFailed with EAGAIN: somebody listens there, and the queue of connections is full.
Dialled dial(const UnixAddress& address);

// The same; while the queue is full it waits, until the deadline.
Dialled wait_and_dial(const UnixAddress& address, Clock& clock, std::int64_t deadline_ns);

// Why a rank that is not kReached cannot be connected to.
Error unreachable(std::uint32_t rank, const Dialled& dialled);

// The kernel's word on whose process is at the other end of a Unix socket; nothing if it is another user's.
std::optional<pid_t> peer_process(int socket);

Error unix_socket_error(const char* call, std::int32_t rank = -1);  // from errno

}  // namespace tutti

// Notices the end of another process of this machine.
#pragma once

#include <poll.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "transports/shm/mapping.h"

namespace tutti {

// A descriptor that becomes readable when the process ends; -1 where it cannot be had (another PID namespace, an old
// kernel).
inline int watch_process(pid_t process) {
  return process <= 0 ? -1 : above_standard(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
}

inline bool has_ended(int pidfd) {
  pollfd ended{.fd = pidfd, .events = POLLIN, .revents = 0};
  return pidfd >= 0 && poll(&ended, 1, 0) == 1;
}

}  // namespace tutti

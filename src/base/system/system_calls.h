// Small functions around system calls. The shared heap, which needs only the C library, uses them too, so this header
// may include only headers of the C library.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

namespace tutti {

// Moves a descriptor away from the numbers of the standard streams: if `fd` is 0, 1 or 2, it closes `fd` and returns
// a duplicate with a number above 2, or -1 if there is none. Any other `fd`, also -1, is returned unchanged. So text
// that a program prints to its standard streams is not written into this descriptor.
inline int above_standard(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  close(fd);
  return moved;
}

// Creates an empty memfd: a file in memory, which the kernel deletes when no process has it open or mapped any more.
// `name` appears in /proc/PID/maps. -1: it failed, see errno.
inline int create_memfd(const char* name) {
  return above_standard(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

// Forbids every later change of a memfd's size. Without this, a process could make the file shorter, and another one
// that reads or writes its mapping beyond the new end would be killed by SIGBUS. Returns false on error, see errno.
inline bool seal_size(int fd) { return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0; }

// Returns true if this process has a limit of this kind, for example RLIMIT_AS. Returns false if getrlimit() fails.
inline bool is_limited(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace tutti

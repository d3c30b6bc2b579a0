#include "transports/shm/process_watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/recording.h"
#include "base/system/system_calls.h"

namespace tutti {

ProcessWatch::ProcessWatch(pid_t process) : process_(process) {
  if (process_ <= 0) return;
  fd_ = above_standard(static_cast<int>(syscall(SYS_pidfd_open, process_, 0)));
  if (fd_ < 0) start_ = recording::process_start(process_);
}

ProcessWatch::~ProcessWatch() {
  if (fd_ >= 0) close(fd_);
}

ProcessWatch::ProcessWatch(ProcessWatch&& other) noexcept
    : process_(other.process_), fd_(std::exchange(other.fd_, -1)), start_(other.start_) {}

ProcessWatch& ProcessWatch::operator=(ProcessWatch&& other) noexcept {
  std::swap(process_, other.process_);
  std::swap(fd_, other.fd_);
  std::swap(start_, other.start_);
  return *this;
}

bool ProcessWatch::has_ended() const {
  if (process_ <= 0) return false;
  if (fd_ >= 0) {
    pollfd ended{.fd = fd_, .events = POLLIN, .revents = 0};
    return poll(&ended, 1, 0) == 1;
  }
  if (kill(process_, 0) != 0 && errno == ESRCH) return true;
  char state = 0;
  const std::uint64_t start = recording::process_start(process_, &state);
  if (start == 0) return false;  // /proc could not be read, for example because no descriptor is free
  return state == 'Z' || state == 'X' || (start_ != 0 && start != start_);
}

}  // namespace tutti

// ProcessWatch: detects that another process of this machine has exited.
//
// It uses a pidfd. If the system provides none, for example because all descriptors are in use, each call of
// has_ended() looks for the process by its number. The kernel may have given the number to a new process in the
// meantime, so the start time of the process is compared as well, if it is known. Only one thread at a time may use a
// ProcessWatch.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace tutti {

class ProcessWatch {
 public:
  // `process`: the process number. 0: there is none, or it is in another PID namespace; an exit is then not detected.
  explicit ProcessWatch(pid_t process = 0);
  ~ProcessWatch();
  ProcessWatch(ProcessWatch&& other) noexcept;
  ProcessWatch& operator=(ProcessWatch&& other) noexcept;

  pid_t process() const { return process_; }
  int fd() const { return fd_; }  // pidfd, readable once the process has exited; -1: there is none
  bool has_ended() const;         // also true for a zombie: it has exited, but its parent has not called wait() yet

 private:
  pid_t process_;
  int fd_ = -1;
  std::uint64_t start_ = 0;  // start time of the process, only used without a pidfd; 0: unknown
};

}  // namespace tutti

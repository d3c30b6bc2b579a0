// ProcessWatch: notices the end of another process of this machine.
//
// By a pidfd. If the system gives none, for example because descriptors have run out, each look asks for the process by
// its number instead. The number may have been given to a new process meanwhile, so the time when the process started
// is compared as well. One thread at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace tutti {

class ProcessWatch {
 public:
  // `process`: 0 for one of another PID namespace, whose end is not noticed.
  explicit ProcessWatch(pid_t process = 0);
  ~ProcessWatch();
  ProcessWatch(ProcessWatch&& other) noexcept;
  ProcessWatch& operator=(ProcessWatch&& other) noexcept;

  pid_t process() const { return process_; }
  int fd() const { return fd_; }  // becomes readable when the process ends; -1: there is none
  bool has_ended() const;         // also while the parent of the process has not waited for it

 private:
  pid_t process_;
  int fd_ = -1;
  std::uint64_t start_ = 0;  // if there is no pidfd; 0: not known
};

}  // namespace tutti

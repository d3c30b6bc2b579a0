// PollDoorbell: a doorbell with a sleep that waits for file descriptors (epoll). A rank can therefore wait for the
// messages of one transport and for descriptors of another transport in one system call.
#pragma once

#include "base/wait.h"
#include "tutti/result.h"

namespace tutti {

class PollDoorbell : public Doorbell {
 public:
  // From now on, a sleep also ends when `fd` becomes readable after arm(). If `fd` was already readable at arm(), the
  // sleep may end at once or not, depending on the implementation; callers must accept both. The caller still owns
  // the descriptor: it reads the data that has arrived, and keeps the descriptor open as long as a thread sleeps
  // here. Call this function before the first arm(), in the thread that will sleep. Errors: kSystem.
  virtual Status add_wait_source(int fd) = 0;
};

}  // namespace tutti

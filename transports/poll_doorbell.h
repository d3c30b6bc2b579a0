// PollDoorbell: a doorbell whose sleep also waits for file descriptors (by epoll). A rank can therefore wait for the
// messages of one transport and for descriptors of another transport in one system call.
#pragma once

#include "base/wait.h"
#include "tutti/result.h"

namespace tutti {

class PollDoorbell : public Doorbell {
 public:
  // From now on, a sleep also ends when `fd` becomes readable after arm(). If `fd` was already readable at arm(), the
  // sleep may end at once or not, depending on the implementation; callers must accept both. The caller still owns the
  // descriptor. It must read the data that arrives there, and must keep the descriptor open as long as a thread may
  // sleep here. Call this function before the first arm(), while no other thread uses the doorbell. Errors: kSystem.
  virtual Status add_wait_source(int fd) = 0;
};

}  // namespace tutti

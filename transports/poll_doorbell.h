// PollDoorbell: a doorbell that sleeps by waiting for descriptors. A rank can therefore wait for the messages of one
// transport and for descriptors of another transport in one system call.
#pragma once

#include "base/wait.h"
#include "tutti/result.h"

namespace tutti {

class PollDoorbell : public Doorbell {
 public:
  // From now on, a sleep also ends when `fd` becomes readable after arm(). If `fd` was already readable before, the
  // sleep may end at once (level-triggered) or not (edge-triggered); callers must accept both. The caller still owns
  // the descriptor: it reads what has arrived, and keeps the descriptor open as long as a thread sleeps here. Call it
  // before the first arm(), in the thread that will sleep. Errors: kSystem.
  virtual Status add_wait_source(int fd) = 0;
};

}  // namespace tutti

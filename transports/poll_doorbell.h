// PollDoorbell: a doorbell whose sleep is a wait for descriptors, so that a rank can wait for the messages of one
// transport and the descriptors of another in one system call.
#pragma once

#include "base/wait.h"
#include "tutti/result.h"

namespace tutti {

class PollDoorbell : public Doorbell {
 public:
  // From now on a sleep also ends when `fd` becomes readable after arm(); whether it also ends at once because `fd` was
  // readable before (level-triggered) or not (edge-triggered) is open. The descriptor stays the caller's, who drains it
  // and keeps it open as long as anybody sleeps. Before the first arm(), by the thread that will sleep. Errors:
  // kSystem.
  virtual Status add_wait_source(int fd) = 0;
};

}  // namespace tutti

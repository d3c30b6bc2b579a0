// OpenGroups: the threads that have a Group which holds calls for one communicator. It owns no threads or locks. Hold
// the communicator's submission mutex in all functions.
#pragma once

#include <algorithm>
#include <thread>
#include <vector>

#include "engine/arguments.h"
#include "tutti/result.h"

namespace tutti::detail {

class OpenGroups {
 public:
  // Registers a Group of `thread`. Returns false if the thread already has such a Group. For a communicator, a Group
  // belongs to the thread that added the Group's first call on that communicator.
  bool open(std::thread::id thread) {
    if (std::find(threads_.begin(), threads_.end(), thread) != threads_.end()) return false;
    threads_.push_back(thread);
    return true;
  }
  void close(std::thread::id thread) { std::erase(threads_, thread); }
  // Refuses a call on the communicator while the calling thread has a Group with calls for it: the order of this call
  // and the calls of the group would be unclear. Calls of other threads are not affected, because their order is up
  // to the caller anyway.
  Status refuse() const {
    if (threads_.empty()) return {};
    if (std::find(threads_.begin(), threads_.end(), std::this_thread::get_id()) == threads_.end()) return {};
    return invalid_argument(
        "a Group of this thread holds calls on this communicator: run() or drop the group first, or add this call to "
        "it");
  }

 private:
  std::vector<std::thread::id> threads_;
};

}  // namespace tutti::detail

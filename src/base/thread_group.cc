#include "base/thread_group.h"

#include <utility>

#include "base/thread.h"

namespace tutti {

ThreadGroup::~ThreadGroup() {
  if (gate_.load() == Gate::kClosed) set(Gate::kCancelled);
  join();
}

void ThreadGroup::add(std::function<void()> body) {
  // The place for the thread is made first. If there were no memory for it afterwards, the new thread could not be
  // joined, and destroying a std::thread that was not joined ends the process.
  std::thread& place = threads_.emplace_back();
  place = start_thread([this, body = std::move(body)] {
    gate_.wait(Gate::kClosed);
    if (gate_.load() == Gate::kOpen) body();
  });
}

void ThreadGroup::join() noexcept {
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();  // add() leaves an empty place if it throws
  }
}

}  // namespace tutti

#include "nccl/background.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "base/thread.h"

namespace tutti::nccl {
namespace {

constexpr std::chrono::seconds kLastMoment(2);  // an aborted set-up ends within 0.1 s

// The threads at work, by number. The end of a process is the process's.
struct Working {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, std::vector<CommPtr>> threads;
  int last = 0;
};

Working& working() {
  static auto& the = *new Working;  // never destroyed: threads may outlast the wait for them
  return the;
}

void end_all() {
  std::vector<CommPtr> comms;
  {
    const std::unique_lock lock(working().mutex, std::try_to_lock);  // in a forked child it may be locked for good
    if (!lock.owns_lock()) return;
    for (const auto& [number, its] : working().threads) comms.insert(comms.end(), its.begin(), its.end());
  }
  for (const CommPtr& comm : comms) {
    if (!comm->own_process()) return;  // a forked child has none of the threads
    comm->abort();
  }
  std::unique_lock lock(working().mutex);
  working().changed.wait_for(lock, kLastMoment, [] { return working().threads.empty(); });
}

void forget(int number) {
  std::map<int, std::vector<CommPtr>>::node_type done;  // ends after the lock: it may be the last that holds a Comm
  const std::scoped_lock lock(working().mutex);
  done = working().threads.extract(number);
  working().changed.notify_all();
}

}  // namespace

void run_in_background(std::function<void()> body, std::vector<CommPtr> comms) {
  static const int registered = std::atexit(end_all);
  static_cast<void>(registered);
  int number = 0;
  {
    const std::scoped_lock lock(working().mutex);
    number = ++working().last;
    working().threads[number] = std::move(comms);
  }
  try {
    start_thread([number, work = std::move(body)]() mutable {
      work();
      work = nullptr;  // with the communicators that it holds
      forget(number);
    }).detach();
  } catch (...) {
    forget(number);
    throw;
  }
}

}  // namespace tutti::nccl

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

// How long the exit handler waits for the background threads at most. An aborted set-up ends within about 0.1 s, so
// this is ample.
constexpr std::chrono::seconds kExitWait(2);

// The running background threads. `threads` maps the number of each thread to the communicators that the thread uses.
// `last` is the number given out last. There is one object for the whole process, because the exit handler has to find
// all threads.
struct BackgroundThreads {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, std::vector<CommPtr>> threads;
  int last = 0;
};

BackgroundThreads& background_threads() {
  // Never destroyed, because background threads may still run after the exit handler has stopped waiting.
  static auto& the = *new BackgroundThreads;
  return the;
}

// The exit handler: aborts the communicators of all background threads and waits for the threads, at most for
// kExitWait. Does nothing in a forked child, or if another thread holds the mutex at that moment.
void abort_all() {
  std::vector<CommPtr> comms;
  {
    // Only tries to lock, because in a forked child the mutex stays locked forever if another thread of the parent held
    // it at the time of the fork.
    const std::unique_lock lock(background_threads().mutex, std::try_to_lock);
    if (!lock.owns_lock()) return;
    for (const auto& [number, its] : background_threads().threads) comms.insert(comms.end(), its.begin(), its.end());
  }
  for (const CommPtr& comm : comms) {
    if (!comm->own_process()) return;  // a forked child does not have the parent's threads
    comm->abort();
  }
  std::unique_lock lock(background_threads().mutex);
  background_threads().changed.wait_for(lock, kExitWait, [] { return background_threads().threads.empty(); });
}

void remove_thread(int number) {
  // Declared before the lock, so that it is destroyed after the unlock: it may hold the last reference to a Comm, and
  // destroying a Comm can take long.
  std::map<int, std::vector<CommPtr>>::node_type done;
  const std::scoped_lock lock(background_threads().mutex);
  done = background_threads().threads.extract(number);
  background_threads().changed.notify_all();
}

}  // namespace

void run_in_background(std::function<void()> body, std::vector<CommPtr> comms) {
  static const int registered = std::atexit(abort_all);
  static_cast<void>(registered);
  int number = 0;
  {
    const std::scoped_lock lock(background_threads().mutex);
    number = ++background_threads().last;
    background_threads().threads[number] = std::move(comms);
  }
  try {
    start_thread([number, work = std::move(body)]() mutable {
      work();
      work = nullptr;  // releases the references to communicators that `body` captured
      remove_thread(number);
    }).detach();
  } catch (...) {
    remove_thread(number);
    throw;
  }
}

}  // namespace tutti::nccl

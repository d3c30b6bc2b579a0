// ThreadGroup: threads of the library that work at the same time and are joined together. Their bodies begin only when
// open() is called, after all threads have been started. The reason: bodies often wait for each other. If the system
// cannot start one of the threads, none of the bodies runs, so none waits for a thread that does not exist.
//
// One thread uses the group. Example:
//   ThreadGroup threads;
//   for (int rank = 0; rank < ranks; ++rank) threads.add([&, rank] { run(rank); });
//   threads.open();
//   threads.join();
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace tutti {

class ThreadGroup {
 public:
  ThreadGroup() = default;
  // Joins the threads. If open() was not called, for example because add() threw, the bodies never run.
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  // Starts a thread that runs `body` after open(). Throws std::system_error or std::bad_alloc if no thread can be
  // started. `body` must not throw.
  void add(std::function<void()> body);
  // Lets the bodies of all threads begin.
  void open() noexcept { set(Gate::kOpen); }
  // Waits until all bodies have returned. Call open() before.
  void join() noexcept;

 private:
  enum class Gate : std::uint32_t { kClosed, kOpen, kCancelled };
  void set(Gate gate) noexcept {
    gate_.store(gate);
    gate_.notify_all();
  }

  std::atomic<Gate> gate_{Gate::kClosed};
  std::vector<std::thread> threads_;
};

}  // namespace tutti

// DriverRole: determines which thread drives an engine, that is, which thread makes progress with its operations.
// Only one thread at a time has the role. A thread that waits for an operation asks for the role. If no thread
// waits, the progress thread takes the role while operations run in the background.
//
// The class has a condition variable but no mutex. Hold the engine's mutex for all functions except wanted().
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "transports/transport.h"

namespace tutti {

class DriverRole {
 public:
  // `transport` must outlive this object. This class rings the transport's doorbell to wake a driver that sleeps.
  explicit DriverRole(Transport& transport) : transport_(transport) {}

  bool taken() const { return taken_; }
  // True if the driver runs something that is not in the queue: a short call (ShortCalls), or a check for a message
  // or for a live receiver (ImmediateProbe).
  bool unqueued() const { return unqueued_; }
  void take() { taken_ = true; }
  void take_unqueued() { taken_ = unqueued_ = true; }
  void release() {
    taken_ = unqueued_ = false;
    changed_.notify_all();
  }
  // Like release(), for use after a short call. Wakes the other threads only if one of them may want to drive,
  // because waking takes time. That thread can be the progress thread: during the short call it may have seen a new
  // operation that it could not drive, because this thread had the role.
  void release_after_short_call() {
    taken_ = unqueued_ = false;
    if (wanted() || background_wanted_) changed_.notify_all();
  }

  // True if a thread is in wait_for_role() or wait_for_end_of_unqueued(). Any thread may call it, without the mutex.
  bool wanted() const { return waiting_.load() > 0; }
  // Asks the driver to give up the role soon, and waits until `enough` returns true. `enough` can become true while
  // another thread still drives, for example because that thread completed the awaited operation. If the calling
  // thread does not take the role afterwards, it must call notify_all(), because the progress thread leaves the
  // role free while another thread wants it.
  template <class Condition>
  void wait_for_role(std::unique_lock<std::mutex>& lock, Condition enough) {
    waiting_.fetch_add(1);
    wake_driver();
    changed_.wait(lock, enough);
    waiting_.fetch_sub(1);
  }
  // Asks the driver to give up the role, and waits until no thread drives, but at most for `limit`. Check taken()
  // afterwards. If the calling thread does not take the role, it must call notify_all().
  void wait_for_role(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds limit) {
    waiting_.fetch_add(1);
    wake_driver();
    changed_.wait_for(lock, limit, [this] { return !taken_; });
    waiting_.fetch_sub(1);
  }
  // Waits until unqueued() is false, that is, until no short call or check runs outside the queue.
  void wait_for_end_of_unqueued(std::unique_lock<std::mutex>& lock) {
    waiting_.fetch_add(1);
    changed_.wait(lock, [this] { return !unqueued_; });
    waiting_.fetch_sub(1);
    changed_.notify_all();  // wakes threads that wait because wanted() was true
  }
  // Waits until no thread drives or wants to drive.
  void wait_until_unused(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [this] { return !taken_ && !wanted(); });
  }
  // Waits until another thread notifies (notify_all() or a release function). It may return earlier, so check the
  // condition again.
  void wait_for_change(std::unique_lock<std::mutex>& lock) { changed_.wait(lock); }
  // Wakes all threads that wait in a function of this class. Call it, for example, when an operation is done, when the
  // progress thread has new work, or when the engine ends.
  void notify_all() { changed_.notify_all(); }
  void wake_driver() { transport_.doorbell().ring(); }  // wakes the driver if it sleeps

  // True if operations were submitted with Progress::kInBackground, and the progress thread has not found the engine
  // idle since. The progress thread must then drive whenever no other thread drives or waits for the role.
  bool background_wanted() const { return background_wanted_; }
  void set_background_wanted(bool wanted) { background_wanted_ = wanted; }

 private:
  Transport& transport_;
  std::condition_variable changed_;
  bool taken_ = false;
  bool unqueued_ = false;
  bool background_wanted_ = false;
  std::atomic<std::uint32_t> waiting_{0};  // number of threads in wait_for_role() or wait_for_end_of_unqueued()
};

}  // namespace tutti

// DriverRole: determines which thread drives an engine, that is, which thread makes progress with its operations. Only
// one thread at a time has the role. A thread that waits for an operation asks for it; if no thread waits, the progress
// thread takes it.
//
// It has a condition variable but no lock. Hold the engine's mutex for all functions except wanted().
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
  // `transport` must outlive this object. A ring of its doorbell wakes a driver that sleeps.
  explicit DriverRole(Transport& transport) : transport_(transport) {}

  bool taken() const { return taken_; }
  // True if the driver runs a short call or a check for a message, which is in no queue.
  bool unqueued() const { return unqueued_; }
  void take() { taken_ = true; }
  void take_unqueued() { taken_ = unqueued_ = true; }
  void release() {
    taken_ = unqueued_ = false;
    changed_.notify_all();
  }
  // After a short call: like release(), but wakes the other threads only if one of them may want to drive, because
  // waking takes time. The progress thread may want it: it may have seen a new operation but not driven it, because
  // this thread was the driver.
  void release_after_short_call() {
    taken_ = unqueued_ = false;
    if (wanted() || background_wanted_) changed_.notify_all();
  }

  // True if a thread waits for the role. Any thread may call it, without the mutex.
  bool wanted() const { return waiting_.load() > 0; }
  // Asks the driver to give up the role soon, and waits until `enough` returns true. `enough` may be true while
  // another thread still drives. A thread that then does not drive must call notify_all(), because others may not have
  // driven while this thread wanted to.
  template <class Condition>
  void wait_for_role(std::unique_lock<std::mutex>& lock, Condition enough) {
    waiting_.fetch_add(1);
    wake_driver();
    changed_.wait(lock, enough);
    waiting_.fetch_sub(1);
  }
  // The same, until no thread drives, but not longer than `limit`.
  void wait_for_role(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds limit) {
    waiting_.fetch_add(1);
    wake_driver();
    changed_.wait_for(lock, limit, [this] { return !taken_; });
    waiting_.fetch_sub(1);
  }
  // Waits until the driver runs nothing that is in no queue.
  void wait_for_end_of_unqueued(std::unique_lock<std::mutex>& lock) {
    waiting_.fetch_add(1);
    changed_.wait(lock, [this] { return !unqueued_; });
    waiting_.fetch_sub(1);
    changed_.notify_all();  // wakes threads that did not drive because this thread wanted to
  }
  // Waits until no thread drives or wants to drive.
  void wait_until_unused(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [this] { return !taken_ && !wanted(); });
  }
  // Waits for the next notify_all(). It may return earlier, so check the condition again.
  void wait_for_change(std::unique_lock<std::mutex>& lock) { changed_.wait(lock); }
  // Call it when an operation is done, when the progress thread has new work, or when the engine ends.
  void notify_all() { changed_.notify_all(); }
  void wake_driver() { transport_.doorbell().ring(); }  // because it may be asleep

  // True if an operation was submitted for which no thread may wait, so that the progress thread must drive.
  bool background_wanted() const { return background_wanted_; }
  void set_background_wanted(bool wanted) { background_wanted_ = wanted; }

 private:
  Transport& transport_;
  std::condition_variable changed_;
  bool taken_ = false;
  bool unqueued_ = false;
  bool background_wanted_ = false;
  std::atomic<std::uint32_t> waiting_{0};  // number of threads that wait for the role
};

}  // namespace tutti

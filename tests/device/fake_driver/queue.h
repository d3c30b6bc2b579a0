// Work in order, done by a thread of its own: what is behind every stream. And the one way in which anything in the
// double waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/driver_types.h"

namespace tutti::cuda::fake {

// Polls until condition() holds. False where it does not within the stuck limit (FAKE_CUDA_STUCK_MS): a deadlock, of
// which it then tells on stderr; `what` is waiting.
bool wait_until(const std::function<bool()>& condition, const char* what);
void set_stuck_ms(unsigned milliseconds);

// Whether the calling thread is running a host function, in which the driver may not be called.
bool& in_host_function();

class Queue;

// Until `queue` has done `ticket` things.
struct After {
  std::shared_ptr<Queue> queue;
  std::uint64_t ticket = 0;
};

struct Work {
  const char* what = "";
  std::function<CUresult()> run;
  std::vector<After> after;
  bool always = false;  // runs in a lost context too: others may wait for it
};

// Any thread may submit; one thread of the queue's own, started by the first work, runs. Work that fails makes all
// later work of the context be skipped. The queue is as long as its callers make it: a double has no room to run out
// of.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  // `lost` is the context's: kSuccess until something in it has failed.
  explicit Queue(std::shared_ptr<std::atomic<CUresult>> lost) : lost_(std::move(lost)) {}

  std::uint64_t submit(Work work);  // returns its ticket
  std::uint64_t submitted() const;
  bool done(std::uint64_t ticket) const { return completed_.load(std::memory_order_acquire) >= ticket; }
  void close();  // the thread ends when all is done

 private:
  void run_all();
  void run_one(Work& work);

  const std::shared_ptr<std::atomic<CUresult>> lost_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> works_;
  std::uint64_t submitted_ = 0;
  bool closing_ = false;
  bool started_ = false;
  std::atomic<std::uint64_t> completed_{0};  // release after the work's effects
};

}  // namespace tutti::cuda::fake

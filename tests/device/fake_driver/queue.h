// Queue: executes work in order on a thread of its own. Every stream has one. Channel: a hardware queue that several
// streams of a context share, see below. Also wait_until(), the only function of the fake driver that waits.
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

// Polls until condition() is true. If that takes longer than FAKE_CUDA_STUCK_MS, there is probably a deadlock: prints
// a message on stderr and returns false. `what` names the waiting operation in the message.
bool wait_until(const std::function<bool()>& condition, const char* what);
void set_stuck_ms(unsigned milliseconds);  // 0: the default (control.h)

// Whether the calling thread is running a host function, in which the driver may not be called.
bool& in_host_function();

class Queue;

// A position in a queue. It is reached when `queue` has finished its first `ticket` work items.
struct QueuePosition {
  std::shared_ptr<Queue> queue;
  std::uint64_t ticket = 0;
};

struct Work {
  const char* what = "";
  std::function<CUresult()> run;
  std::vector<QueuePosition> after{};
  bool always = false;         // also runs in a context that has failed, because others may wait for it
  bool holds_channel = false;  // a wait: it holds its channel until it has ended
  std::uint64_t slot = 0;      // its place in the channel; 0 for the first
};

// A hardware queue of a context. The context's streams share a few of them (see CUDA_DEVICE_MAX_CONNECTIONS in
// control.h), and the device takes the work of all streams of a channel in the order of submission. Work holds up what
// stands behind it in its channel until it has begun, and it begins when the earlier work of its own stream has ended.
// A wait for a value or for an event holds the channel until the wait has ended. For example, if streams A and B share
// a channel:
//
//   A: kernel 1, then B: kernel 2                    both run at the same time
//   A: kernel 1, A: kernel 3, then B: kernel 2       kernel 2 begins after kernel 1 has ended
//   A: wait for a value, then B: write that value    never ends, unless somebody else writes the value
struct Channel {
  std::atomic<std::uint64_t> submitted{0};
  std::atomic<std::uint64_t> passed{0};  // the first `passed` items hold up nothing any more
};

// Any thread may submit work. The queue's own thread, which the first submit() starts, runs it. If work fails, all
// later work of the context is skipped. The length of the queue is not limited, because it is only used in tests.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  // `lost` is the error of the context, which all of its queues share: kSuccess until some work has failed. If
  // `channel` is null, this queue never waits for other queues of the context.
  explicit Queue(std::shared_ptr<std::atomic<CUresult>> lost, std::shared_ptr<Channel> channel = nullptr)
      : lost_(std::move(lost)), channel_(std::move(channel)) {}

  std::uint64_t submit(Work work);  // returns the ticket: the number of this work, 1 for the first
  std::uint64_t submitted() const;
  bool done(std::uint64_t ticket) const { return completed_.load(std::memory_order_acquire) >= ticket; }
  void close();  // the thread ends when all submitted work is done

 private:
  void run_all();
  void run_one(Work& work);
  void wait_for_turn(const Work& work);

  const std::shared_ptr<std::atomic<CUresult>> lost_;
  const std::shared_ptr<Channel> channel_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> works_;
  std::uint64_t submitted_ = 0;
  bool closing_ = false;
  bool started_ = false;
  std::atomic<std::uint64_t> completed_{0};  // stored with release order, after the effects of the work
};

}  // namespace tutti::cuda::fake

// Queues of the fake driver's streams, and wait_until(): see queue.h.
#include "queue.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "hooks.h"
#include "tests/support/patience.h"

namespace tutti::cuda::fake {
namespace {

unsigned default_stuck_ms() {
  const char* text = std::getenv("FAKE_CUDA_STUCK_MS");
  return static_cast<unsigned>(text == nullptr ? (std::chrono::seconds(30) + test::patience()).count()
                                               : std::strtol(text, nullptr, 10));
}

std::atomic<unsigned>& stuck_ms() {
  static std::atomic<unsigned> milliseconds = default_stuck_ms();
  return milliseconds;
}

// Notes that the first `slot` + 1 items of the channel hold up nothing any more. In a context that has failed this can
// happen out of order.
void pass(Channel& channel, std::uint64_t slot) {
  std::uint64_t before = channel.passed.load();
  while (before < slot + 1 && !channel.passed.compare_exchange_weak(before, slot + 1)) {
  }
}

}  // namespace

void set_stuck_ms(unsigned milliseconds) { stuck_ms() = milliseconds == 0 ? default_stuck_ms() : milliseconds; }

bool& in_host_function() {
  static thread_local bool inside = false;
  return inside;
}

bool wait_until(const std::function<bool()>& condition, const char* what) {
  constexpr int kYields = 64;  // afterwards it sleeps, because there are more ranks and streams than cores
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0; !condition(); ++round) {
    if (round < kYields) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (std::chrono::steady_clock::now() - start > std::chrono::milliseconds(stuck_ms())) {
      std::fprintf(stderr, "fake driver: %s is stuck: it has waited for %u ms, probably because of a deadlock\n", what,
                   stuck_ms().load());
      return false;
    }
  }
  return true;
}

std::uint64_t Queue::submit(Work work) {
  const std::lock_guard lock(mutex_);
  if (channel_ != nullptr) work.slot = channel_->submitted.fetch_add(1);
  works_.push_back(std::move(work));
  if (!started_) {
    started_ = true;
    std::thread([self = shared_from_this()] { self->run_all(); }).detach();
  }
  changed_.notify_one();
  return ++submitted_;
}

std::uint64_t Queue::submitted() const {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

void Queue::close() {
  const std::lock_guard lock(mutex_);
  closing_ = true;
  changed_.notify_one();
}

void Queue::run_all() {
  const DriverScope inside(1);
  for (;;) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || !works_.empty(); });
      if (works_.empty()) return;
      work = std::move(works_.front());
      works_.pop_front();
    }
    run_one(work);
    work = {};  // release the objects that the work holds before threads that wait for it continue
    completed_.fetch_add(1, std::memory_order_release);
  }
}

// Waits until the channel has passed all work that was submitted to it before `work`. In a context that has failed
// there are no turns, because all work is skipped.
void Queue::wait_for_turn(const Work& work) {
  const auto its_turn = [&] { return channel_->passed.load() >= work.slot || lost_->load() != CUresult::kSuccess; };
  CUresult expected = CUresult::kSuccess;
  if (!wait_until(its_turn, work.what)) lost_->compare_exchange_strong(expected, CUresult::kLaunchTimeout);
}

void Queue::run_one(Work& work) {
  for (const QueuePosition& after : work.after) {
    if (!wait_until([&] { return after.queue->done(after.ticket); }, work.what)) *lost_ = CUresult::kLaunchTimeout;
  }
  if (channel_ != nullptr) {
    wait_for_turn(work);
    if (!work.holds_channel) pass(*channel_, work.slot);
  }
  CUresult result = CUresult::kSuccess;
  if (lost_->load() == CUresult::kSuccess || work.always) result = work.run();
  if (channel_ != nullptr && work.holds_channel) pass(*channel_, work.slot);
  CUresult expected = CUresult::kSuccess;
  if (result != CUresult::kSuccess) lost_->compare_exchange_strong(expected, result);
}

}  // namespace tutti::cuda::fake

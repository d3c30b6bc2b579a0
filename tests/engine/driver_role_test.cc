// Tests that threads which wait for the DriverRole are woken when they must be.
#include "engine/driver_role.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "tests/transports/shm_ranks.h"

namespace tutti {
namespace {

constexpr SegmentShape kTwoRanks{.ranks = 2, .slots = 2, .slot_bytes = 4096};

class DriverRoleTest : public testing::Test {
 protected:
  // Calls `wait` in another thread, and returns when that thread waits.
  template <class Wait>
  std::thread waiting(Wait wait) {
    std::atomic<bool> locked = false;
    std::thread thread([&, wait] {
      std::unique_lock lock(mutex_);
      locked = true;
      wait(lock);
    });
    while (!locked) std::this_thread::yield();
    const std::scoped_lock lock(mutex_);  // the thread has unlocked it, so it waits
    return thread;
  }

  const std::vector<std::unique_ptr<ShmTransport>> ranks_ = shm_ranks(kTwoRanks, in_process_exchanges(2));
  DriverRole role_{*ranks_[0]};
  std::mutex mutex_;
};

TEST_F(DriverRoleTest, AThreadThatWaitsForTheRoleIsWokenByItsRelease) {
  role_.take();
  std::thread thread = waiting(
      [this](std::unique_lock<std::mutex>& lock) { role_.wait_for_role(lock, [this] { return !role_.taken(); }); });
  EXPECT_TRUE(role_.wanted());
  {
    const std::scoped_lock lock(mutex_);
    role_.release();
  }
  thread.join();
  EXPECT_FALSE(role_.wanted());
}

TEST_F(DriverRoleTest, AThreadThatWaitsForTheRoleIsWokenAfterAShortCall) {
  role_.take_unqueued();
  std::thread thread = waiting(
      [this](std::unique_lock<std::mutex>& lock) { role_.wait_for_role(lock, [this] { return !role_.taken(); }); });
  {
    const std::scoped_lock lock(mutex_);
    role_.release_after_short_call();
  }
  thread.join();
}

TEST_F(DriverRoleTest, TheProgressThreadIsWokenAfterAShortCallIfItIsNeeded) {
  role_.take_unqueued();
  role_.set_background_wanted(true);
  std::thread thread = waiting([this](std::unique_lock<std::mutex>& lock) {
    while (role_.taken()) role_.wait_for_change(lock);
  });
  {
    const std::scoped_lock lock(mutex_);
    role_.release_after_short_call();
  }
  thread.join();
}

TEST_F(DriverRoleTest, FinalizeIsWokenWhenAShortCallEnds) {
  role_.take_unqueued();
  std::thread thread = waiting([this](std::unique_lock<std::mutex>& lock) { role_.wait_for_end_of_unqueued(lock); });
  {
    const std::scoped_lock lock(mutex_);
    role_.release_after_short_call();
  }
  thread.join();
  EXPECT_FALSE(role_.unqueued());
}

TEST_F(DriverRoleTest, TheWaitForTheRoleHasALimit) {
  role_.take();
  std::unique_lock lock(mutex_);
  role_.wait_for_role(lock, std::chrono::milliseconds(1));
  EXPECT_TRUE(role_.taken());
  EXPECT_FALSE(role_.wanted());
}

}  // namespace
}  // namespace tutti

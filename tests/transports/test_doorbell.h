// TestDoorbell: a doorbell that sleeps in epoll, like the doorbell of a socket transport.
#pragma once

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>

#include "tests/support/patience.h"
#include "transports/poll_doorbell.h"

namespace tutti {

enum class Trigger { kLevel, kEdge };

class TestDoorbell final : public PollDoorbell {
 public:
  explicit TestDoorbell(Trigger trigger) : trigger_(trigger) { EXPECT_TRUE(add_wait_source(event_).ok()); }
  ~TestDoorbell() override {
    close(event_);
    close(epoll_);
  }
  Status add_wait_source(int fd) override {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    if (trigger_ == Trigger::kEdge) event.events |= EPOLLET;
    EXPECT_EQ(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event), 0) << fd;
    return {};
  }
  void arm() override {
    if (while_arming) while_arming();
    if (trigger_ == Trigger::kEdge) wait_and_consume(0);  // consumes old edges
  }
  void disarm() override {}
  void sleep(std::int64_t timeout_ns) override { wait_and_consume(static_cast<int>(timeout_ns / 1'000'000)); }
  void ring() override {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(event_, &one, sizeof(one));
  }

  std::function<void()> while_arming;  // called in arm(), the worst moment for a message to arrive

 private:
  void wait_and_consume(int timeout_ms) {
    std::array<epoll_event, 8> events{};
    epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), timeout_ms);
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t taken = read(event_, &count, sizeof(count));
  }

  Trigger trigger_;
  int epoll_ = epoll_create1(EPOLL_CLOEXEC);
  int event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
};

// A sleep of this length has lost its wake-up.
inline const std::int64_t kLostNs = std::chrono::nanoseconds(test::patience()).count();

// Sleeps until `arrived` is true, as a rank does. Returns false if a sleep reached its timeout, so that a wake-up
// was lost.
template <class Arrived>
bool sleep_until(Doorbell& doorbell, const Arrived& arrived) {
  while (!arrived()) {
    doorbell.arm();
    if (arrived()) {
      doorbell.disarm();
      return true;
    }
    const auto start = std::chrono::steady_clock::now();
    doorbell.sleep(kLostNs);
    if (std::chrono::steady_clock::now() - start >= test::patience()) return false;
  }
  return true;
}

}  // namespace tutti

// Tests of ElasticControl, the part of the launcher that exchanges messages with the ranks of an elastic job. In most
// tests the test sends the messages of the ranks itself. In the last ones a thread is the only rank, with an Elastic.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tools/run/elastic.h"
#include "tutti/elastic.h"

namespace tutti::tool {
namespace {

constexpr std::chrono::milliseconds kRejoin{1000};

void send_text(const Fd& rank, std::string_view word) {
  ASSERT_EQ(::send(rank.get(), word.data(), word.size(), MSG_NOSIGNAL), static_cast<ssize_t>(word.size()));
}

// Returns the first word of the message from the launcher, or an empty string if there is none.
std::string first_word(const Fd& rank) {
  std::array<char, 1024> bytes;
  const ssize_t length = ::recv(rank.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  const std::string text(bytes.data(), length < 0 ? 0 : static_cast<std::size_t>(length));
  return text.substr(0, text.find(' '));
}

class ElasticControlTest : public testing::Test {
 protected:
  Fd seat(std::size_t place) {
    Result<Fd> end = control_.add(place);
    return end ? *std::move(end) : Fd();
  }
  void serve() { ASSERT_TRUE(control_.serve(now_, kRejoin).ok()); }

  ElasticControl control_{2};
  const std::chrono::steady_clock::time_point now_ = std::chrono::steady_clock::now();
};

TEST_F(ElasticControlTest, IsOverOnceAllAreThrough) {
  const Fd first = seat(0);
  const Fd second = seat(1);
  send_text(first, "ready -1");
  send_text(second, "ready -1");
  serve();
  EXPECT_EQ(first_word(first), "go");
  EXPECT_FALSE(control_.is_over());
  send_text(first, "end 5");
  serve();
  EXPECT_FALSE(control_.is_over());
  EXPECT_EQ(control_.missing(), std::vector<std::size_t>{1});
  send_text(second, "end 5");
  serve();
  EXPECT_TRUE(control_.is_over());
  EXPECT_EQ(first_word(first), "over");
  control_.ended(1);
  serve();
  EXPECT_TRUE(control_.is_over());
}

// The rank's socket is closed before the launcher notices that its process has ended. The rank must be replaced, and
// the other ranks must wait for the replacement.
TEST_F(ElasticControlTest, OneThatDiesBeforeTheEndIsAwaited) {
  const Fd first = seat(0);
  Fd second = seat(1);
  send_text(first, "end 5");
  send_text(second, "end 5");
  second.reset();
  serve();
  EXPECT_FALSE(control_.is_over());
  EXPECT_EQ(first_word(first), "");
  EXPECT_EQ(control_.missing(), std::vector<std::size_t>{1});
  EXPECT_EQ(control_.deadline(), now_ + kRejoin);
  control_.ended(1);
  const Fd replacement = seat(1);
  EXPECT_EQ(first_word(first), "lost");
  send_text(replacement, "ready -1");
  serve();
  EXPECT_FALSE(control_.is_over());
  EXPECT_EQ(first_word(first), "go");
}

// A job of one rank, which is a thread. The test is the launcher, and never replaces the rank.
class ElasticLoopTest : public ElasticControlTest {
 protected:
  static constexpr int kEndlessMeetings = 200;  // the launcher ends a job that has not ended after so many set-ups

  // Runs the loop of a program: `step` returns the result of each step. Returns the final status of the rank.
  Status run(std::uint64_t steps, const std::function<Status(std::uint64_t)>& step, const Elastic::Restore& restore) {
    const Fd socket = seat(0);
    ::setenv("TUTTI_ELASTIC_FD", std::to_string(socket.get()).c_str(), 1);
    Result<Elastic> job = Elastic::join();
    ::unsetenv("TUTTI_ELASTIC_FD");
    if (!job) return job.error();
    std::atomic<bool> ended = false;
    std::thread rank([&] {
      while (job->next(steps, restore)) job->done(step(job->step()));
      ended = true;
    });
    while (!ended) {
      if (death_) control_.ended(1);
      death_ = false;
      EXPECT_TRUE(control_.serve(now_, kRejoin).ok());
      if (attempts_ > kEndlessMeetings) control_.ended(0);  // the rank sees that the launcher has ended
      std::this_thread::yield();
    }
    rank.join();
    return job->status();
  }
  Status fail() {
    ++attempts_;
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1, "this never works"};
  }
  static Status restore_nothing(Communicator&, std::int32_t) { return {}; }

  // Returns after the launcher has reported the death of another rank.
  void let_another_rank_die() {
    death_ = true;
    while (death_) std::this_thread::yield();
  }

  std::atomic<int> attempts_ = 0;  // number of failures so far
  std::atomic<bool> death_ = false;
};

void expect_end_by_repeated_failure(const Status& status) {
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported) << to_string(status.error());
  EXPECT_NE(status.error().message.find("this never works"), std::string::npos) << to_string(status.error());
  EXPECT_NE(status.error().message.find("20 times in a row"), std::string::npos) << to_string(status.error());
}

TEST_F(ElasticLoopTest, AStepThatAlwaysFailsEndsTheJob) {
  const auto step = [&](std::uint64_t number) { return number == 1 ? fail() : Status(); };
  expect_end_by_repeated_failure(run(3, step, restore_nothing));
  EXPECT_EQ(attempts_, 20);
}

TEST_F(ElasticLoopTest, ARestoreThatAlwaysFailsEndsTheJob) {
  const auto step = [](std::uint64_t) { return Status(); };
  expect_end_by_repeated_failure(run(3, step, [&](Communicator&, std::int32_t) { return fail(); }));
  EXPECT_EQ(attempts_, 20);
}

// The limit counts only failures in a row: a step that is completed for the first time starts the count again.
TEST_F(ElasticLoopTest, FailuresBetweenCompletedStepsDoNotEndTheJob) {
  int tries = 0;
  const auto step = [&](std::uint64_t) { return ++tries % 5 == 0 ? Status() : fail(); };
  const Status status = run(8, step, restore_nothing);
  EXPECT_TRUE(status.ok()) << to_string(status.error());
  EXPECT_EQ(attempts_, 8 * 4);
}

// The launcher limits the number of deaths, so a failure after a death does not count.
TEST_F(ElasticLoopTest, FailuresBecauseOfDeathsDoNotEndTheJob) {
  const auto step = [&](std::uint64_t) {
    if (attempts_ == 60) return Status();
    let_another_rank_die();
    return fail();
  };
  const Status status = run(1, step, restore_nothing);
  EXPECT_TRUE(status.ok()) << to_string(status.error());
}

TEST(ParseElastic, TakesTwoNumbers) {
  std::int32_t ranks = 0;
  ElasticBounds bounds;
  ASSERT_TRUE(parse_elastic("2:4", ranks, bounds).ok());
  EXPECT_EQ(ranks, 4);
  EXPECT_EQ(bounds.min_ranks, 2);
  EXPECT_TRUE(parse_elastic("1:4", ranks, bounds).ok());  // the number of ranks that was also given with -n
  EXPECT_EQ(bounds.min_ranks, 1);
}

TEST(ParseElastic, WhatIsRefusedChangesNothing) {
  for (const char* const text :
       {"", "2", "2:", ":4", "0:4", "-1:4", "5:4", "2:4097", "2:4:", "2:4 ", "2:99999999999", "a:4", "2:3"}) {
    std::int32_t ranks = std::string_view(text) == "2:3" ? 4 : 0;
    const std::int32_t asked_for = ranks;
    ElasticBounds bounds{.min_ranks = 7};
    const Status read = parse_elastic(text, ranks, bounds);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_NE(read.error().message.find("write MIN:MAX"), std::string::npos);
    EXPECT_EQ(ranks, asked_for);
    EXPECT_EQ(bounds.min_ranks, 7);
  }
}

}  // namespace
}  // namespace tutti::tool

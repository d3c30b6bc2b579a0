// Tests next_sender(), which returns a rank that has sent a message without receiving the message. Every type of
// connection between ranks is tested.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "communicator/support.h"
#include "tutti/group.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

class NextSender : public testing::TestWithParam<JobConfiguration> {
 protected:
  static Communicators world(std::int32_t size) { return make_configured_ranks(GetParam(), size); }
};

CallOptions within_ms(int ms) {
  CallOptions options;
  options.timeout = std::chrono::milliseconds(ms);
  return options;
}

// Messages of any length, also empty ones, arrive from peers that send at any time. The receiver learns of them only
// from next_sender().
TEST_P(NextSender, NamesEveryMessageOnce) {
  constexpr int kRounds = 12;
  Communicators ranks = world(4);
  const auto count_of = [](std::int32_t from, int round) {
    return std::array<std::size_t, 4>{0, 1, 5'000, 300'000}[static_cast<std::size_t>(from + round) % 4];
  };
  on_every_rank(ranks, [&](Communicator& rank) {
    if (rank.rank() > 0) {
      for (int round = 0; round < kRounds; ++round) {
        const std::vector<std::int32_t> data(count_of(rank.rank(), round), rank.rank() * 100 + round);
        const Status sent = rank.send(data.data(), data.size(), DataType::kInt32, 0);
        ASSERT_TRUE(sent.ok()) << to_string(sent.error());
      }
      return;
    }
    std::array<int, 4> rounds{};
    for (int k = 0; k < 3 * kRounds; ++k) {
      const Result<std::int32_t> sender = rank.next_sender();
      ASSERT_TRUE(sender.ok()) << to_string(sender.error());
      ASSERT_TRUE(*sender >= 1 && *sender <= 3) << *sender;
      int& round = rounds[static_cast<std::size_t>(*sender)];
      std::vector<std::int32_t> data(count_of(*sender, round), -1);
      const Status got = rank.receive(data.data(), data.size(), DataType::kInt32, *sender);
      ASSERT_TRUE(got.ok()) << to_string(got.error());
      EXPECT_EQ(std::set<std::int32_t>(data.begin(), data.end()),
                data.empty() ? std::set<std::int32_t>() : std::set<std::int32_t>{*sender * 100 + round});
      ++round;
    }
    EXPECT_EQ(rounds, (std::array<int, 4>{0, kRounds, kRounds, kRounds}));
    EXPECT_FALSE(rank.next_sender(within_ms(100)).ok()) << "no rank sends any more";
  });
}

TEST_P(NextSender, LooksPastWhatReceivesAreUnderWayFor) {
  Communicators ranks = world(3);
  std::promise<void> asked;
  on_every_rank(ranks, [&](Communicator& rank) {
    std::int32_t word = rank.rank();
    if (rank.rank() == 2) {
      ASSERT_TRUE(rank.send(&word, 1, DataType::kInt32, 0).ok());
    } else if (rank.rank() == 1) {
      asked.get_future().wait();
      ASSERT_TRUE(rank.send(&word, 1, DataType::kInt32, 0).ok());  // for the receive that was started first
      word = 11;
      ASSERT_TRUE(rank.send(&word, 1, DataType::kInt32, 0).ok());
    } else {
      std::int32_t first = -1, other = -1;
      Group group;
      ASSERT_TRUE(group.receive(rank, &first, 1, DataType::kInt32, 1).ok());
      Work work = *group.start();
      EXPECT_EQ(*rank.next_sender(), 2);
      ASSERT_TRUE(rank.receive(&other, 1, DataType::kInt32, 2).ok());
      asked.set_value();
      EXPECT_EQ(*rank.next_sender(), 1);
      ASSERT_TRUE(rank.receive(&other, 1, DataType::kInt32, 1).ok());
      EXPECT_TRUE(work.wait().ok());
      EXPECT_EQ(first, 1);
      EXPECT_EQ(other, 11);
    }
  });
}

// Receives that are called while another thread waits in next_sender() get their messages first.
TEST_P(NextSender, LeavesLaterReceivesTheirs) {
  constexpr int kRounds = 60;
  Communicators ranks = world(3);
  std::atomic<int> asked{0};  // number of receives that were started; they are started one after the other
  auto sender = std::async(std::launch::async, [&] { return ranks[0]->next_sender(); });
  on_every_rank(ranks, [&](Communicator& rank) {
    for (int round = 0; round < kRounds; ++round) {
      const std::int32_t from = 1 + round % 2;
      const std::size_t count = round % 5 == 4 ? 100'000 : 3;
      std::vector<std::int32_t> data(count, round);
      if (rank.rank() == 0) {
        // no rank has sent yet, so the receive times out and its sequence number is used again
        std::int32_t none = 0;
        ASSERT_EQ(rank.receive(&none, 1, DataType::kInt32, from, within_ms(2)).error().code, ErrorCode::kTimeout);
        std::fill(data.begin(), data.end(), -1);
        Result<Work> work = start_receive(rank, data.data(), count, DataType::kInt32, from);
        ASSERT_TRUE(work.ok()) << to_string(work.error());
        asked.store(round + 1);
        ASSERT_TRUE(work->wait().ok()) << round;
        EXPECT_EQ(data, std::vector<std::int32_t>(count, round));
      } else if (rank.rank() == from) {
        while (asked.load() <= round) std::this_thread::yield();
        ASSERT_TRUE(rank.send(data.data(), count, DataType::kInt32, 0).ok());
      }
    }
  });
  // time in which next_sender() could wrongly return
  EXPECT_EQ(sender.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  std::int32_t sent = 77, word = 5;
  auto send = std::async(std::launch::async, [&] { return ranks[2]->send(&sent, 1, DataType::kInt32, 0); });
  EXPECT_EQ(*sender.get(), 2);
  EXPECT_TRUE(ranks[0]->receive(&word, 1, DataType::kInt32, 2).ok());
  EXPECT_TRUE(send.get().ok());
  EXPECT_EQ(word, 77);
}

// Many threads call next_sender() and receive the messages that it reports. Each message must be received once, and
// none must remain.
TEST_P(NextSender, MayBeCalledByManyThreads) {
  constexpr int kEach = 40;
  Communicators ranks = world(3);
  std::mutex one;  // held while a thread looks and receives, so that another thread does not receive the same message
  std::atomic<int> sum{0};
  on_every_rank(ranks, [&](Communicator& rank) {
    if (rank.rank() > 0) {
      for (std::int32_t k = 1; k <= kEach; ++k) ASSERT_TRUE(rank.send(&k, 1, DataType::kInt32, 0).ok());
      return;
    }
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&] {
        for (int k = 0; k < 2 * kEach / 4; ++k) {
          ASSERT_TRUE(rank.next_sender().ok());  // runs at the same time as the calls of other threads
          const std::scoped_lock lock(one);
          const Result<std::int32_t> from = rank.next_sender();
          ASSERT_TRUE(from.ok());
          std::int32_t word = 0;
          ASSERT_TRUE(rank.receive(&word, 1, DataType::kInt32, *from).ok());
          sum += word;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_EQ(sum.load(), 2 * kEach * (kEach + 1) / 2);
}

TEST_P(NextSender, EndsWhenNobodyCanSendAnyMore) {
  Communicators ranks = world(3);
  // the ranks are connected now
  on_every_rank(ranks, [](Communicator& rank) { EXPECT_TRUE(sum_is_right(rank, 10)); });
  const auto late = ranks[0]->next_sender(within_ms(150));
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, ErrorCode::kTimeout);
  EXPECT_THAT(late.error().message, HasSubstr("next_sender() made no progress for 150 ms"));
  std::int32_t word = 3;
  ASSERT_TRUE(ranks[2]->send(&word, 1, DataType::kInt32, 0).ok());
  ranks[1].reset();  // rank 1 has left; rank 2 has sent a message and may send more
  EXPECT_EQ(*ranks[0]->next_sender(), 2);
  ASSERT_TRUE(ranks[0]->receive(&word, 1, DataType::kInt32, 2).ok());
  ranks[2].reset();
  const auto alone = ranks[0]->next_sender();
  ASSERT_FALSE(alone.ok());
  EXPECT_EQ(alone.error().code, ErrorCode::kPeerLost);
}

TEST_P(NextSender, IsFoundWithoutWaitingForIt) {
  Communicators ranks = world(3);
  const Result<std::optional<std::int32_t>> none = ranks[0]->try_next_sender();
  ASSERT_TRUE(none.ok()) << to_string(none.error());
  EXPECT_FALSE(*none);
  const int text = 7;
  ASSERT_TRUE(ranks[2]->send(&text, 1, DataType::kInt32, 0).ok());
  std::optional<std::int32_t> sender;
  EXPECT_TRUE(eventually([&] {
    sender = ranks[0]->try_next_sender().value();
    return sender.has_value();
  }));
  EXPECT_EQ(sender, 2);
  int got = 0;
  ASSERT_TRUE(ranks[0]->receive(&got, 1, DataType::kInt32, 2).ok());
  EXPECT_EQ(got, text);
  EXPECT_FALSE(*ranks[0]->try_next_sender());
  ranks[0]->abort();
  EXPECT_EQ(ranks[0]->try_next_sender().error().code, ErrorCode::kAborted);
}

// next_sender() uses the connections that finalize() closes. The test is also meant for the thread sanitizer.
TEST_P(NextSender, IsOverWhenFinalizeCloses) {
  for (int round = 0; round < 10; ++round) {
    Communicators ranks = world(2);
    std::thread looks([&] {
      Result<std::optional<std::int32_t>> sender = std::optional<std::int32_t>();
      while (sender.ok()) sender = ranks[0]->try_next_sender();
      EXPECT_THAT(sender.error().message, HasSubstr("finalize() was called"));
    });
    on_every_rank(ranks, [](Communicator& rank) { EXPECT_TRUE(rank.finalize().ok()); });
    looks.join();
  }
}

TEST_P(NextSender, IsEndedByAbort) {
  Communicators ranks = world(2);
  auto sender = std::async(std::launch::async, [&] { return ranks[0]->next_sender(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // an earlier abort gives the same result
  ranks[1]->abort();
  const auto aborted = sender.get();
  ASSERT_FALSE(aborted.ok());
  EXPECT_EQ(aborted.error().code, ErrorCode::kAborted);
  EXPECT_EQ(aborted.error().rank, 1);
}

TEST(NextSenderAlone, IsRefused) {
  auto ranks = make_ranks(1);
  EXPECT_EQ(ranks[0]->next_sender().error().code, ErrorCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Worlds, NextSender, testing::ValuesIn(kConfigurations),
                         [](const auto& world) { return std::string(world.param.name); });

}  // namespace
}  // namespace tutti::test

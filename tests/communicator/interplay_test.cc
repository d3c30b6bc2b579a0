// Tests that calls on one communicator do not disturb each other: sends and collectives, slow and fast peers, failed
// calls and the calls after them. Every type of connection between ranks is tested.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "communicator/support.h"
#include "tutti/group.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;

class Interplay : public testing::TestWithParam<JobConfiguration> {
 protected:
  static Communicators world(std::int32_t size) { return make_configured_ranks(GetParam(), size); }
};

// Transfers and collectives have separate sequence numbers, so that one is never mistaken for the other.
TEST_P(Interplay, ASendBeforeALateCollectiveIsNoDisagreement) {
  Communicators ranks = world(2);
  on_every_rank(ranks, [](Communicator& rank) {
    int word = 7;
    for (int i = 0; i < 3; ++i) {
      const Status moved =
          rank.rank() == 0 ? rank.send(&word, 1, DataType::kInt32, 1) : rank.receive(&word, 1, DataType::kInt32, 0);
      ASSERT_TRUE(moved.ok()) << to_string(moved.error());
    }
    if (rank.rank() == 0) pause_ms(150);
    const Status met = rank.barrier();
    EXPECT_TRUE(met.ok()) << to_string(met.error());
  });
}

// Rank 3 does not receive the message that rank 0 sends to it. All other calls must make progress.
TEST_P(Interplay, AStuckSendHoldsUpNobodyElse) {
  Communicators ranks = world(4);
  std::vector<char> large(64 << 20);
  std::promise<void> done;
  std::shared_future<void> over = done.get_future().share();
  std::atomic<int> left = 3;
  on_every_rank(ranks, [&](Communicator& rank) {
    int word = rank.rank();
    if (rank.rank() == 0) {
      Group group;
      ASSERT_TRUE(group.send(rank, large.data(), large.size(), DataType::kUint8, 3).ok());
      Work work = *group.start();
      const Status sent = rank.send(&word, 1, DataType::kInt32, 2);
      EXPECT_TRUE(sent.ok()) << to_string(sent.error());
      if (--left == 0) done.set_value();
      over.wait();
      EXPECT_TRUE(work.wait().ok());
    } else if (rank.rank() == 2) {
      EXPECT_TRUE(rank.receive(&word, 1, DataType::kInt32, 0).ok());
      EXPECT_EQ(word, 0);
      if (--left == 0) done.set_value();
    } else if (rank.rank() == 3) {
      if (--left == 0) done.set_value();
      over.wait();
      std::vector<char> got(large.size());
      EXPECT_TRUE(rank.receive(got.data(), got.size(), DataType::kUint8, 0).ok());
    }
    EXPECT_TRUE(rank.barrier().ok());
  });
}

TEST_P(Interplay, AReceiveThatTimedOutMayBeMadeAgain) {
  Communicators ranks = world(2);
  std::atomic<bool> timed_out = false;
  on_every_rank(ranks, [&](Communicator& rank) {
    int word = 41;
    if (rank.rank() == 0) {
      while (!timed_out) pause_ms(1);
      ASSERT_TRUE(rank.send(&word, 1, DataType::kInt32, 1).ok());
      return;
    }
    CallOptions options;
    options.timeout = std::chrono::milliseconds(50);
    const Status early = rank.receive(&word, 1, DataType::kInt32, 0, options);
    timed_out = true;
    ASSERT_FALSE(early.ok());
    EXPECT_EQ(early.error().code, ErrorCode::kTimeout);
    word = 0;
    const Status again = rank.receive(&word, 1, DataType::kInt32, 0);
    EXPECT_TRUE(again.ok()) << to_string(again.error());
    EXPECT_EQ(word, 41);
  });
}

// Rank 1 starts two receives, which time out in the order of their calls. The next receive must match the first send.
TEST_P(Interplay, ReceivesThatTimedOutInTheirOrderMayBeMadeAgain) {
  Communicators ranks = world(2);
  std::atomic<bool> timed_out = false;
  on_every_rank(ranks, [&](Communicator& rank) {
    int word = 41;
    if (rank.rank() == 0) {
      while (!timed_out) pause_ms(1);
      ASSERT_TRUE(rank.send(&word, 1, DataType::kInt32, 1).ok());
      return;
    }
    CallOptions options;
    options.timeout = std::chrono::milliseconds(50);
    int unused[2] = {0, 0};
    std::vector<Work> works;
    for (int& each : unused) works.push_back(start_receive(rank, &each, 1, DataType::kInt32, 0, options).value());
    std::vector<Status> early;
    for (Work& work : works) early.push_back(work.wait());
    timed_out = true;
    for (const Status& status : early) {
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::kTimeout);
    }
    word = 0;
    const Status again = rank.receive(&word, 1, DataType::kInt32, 0);
    EXPECT_TRUE(again.ok()) << to_string(again.error());
    EXPECT_EQ(word, 41);
  });
}

// A receive that times out before any data has arrived does not count. The receive behind it must get the message.
TEST_P(Interplay, AReceiveBehindOneThatTimedOutGetsTheNextMessage) {
  Communicators ranks = world(2);
  std::atomic<bool> timed_out = false;
  on_every_rank(ranks, [&](Communicator& rank) {
    if (rank.rank() == 0) {
      while (!timed_out) pause_ms(1);
      for (int word : {41, 42}) ASSERT_TRUE(rank.send(&word, 1, DataType::kInt32, 1).ok());
      return;
    }
    CallOptions options;
    options.timeout = std::chrono::milliseconds(50);
    int unused = 0, first = 0, second = 0;
    Work early = start_receive(rank, &unused, 1, DataType::kInt32, 0, options).value();
    Work behind = start_receive(rank, &first, 1, DataType::kInt32, 0).value();
    const Status failed = early.wait();
    timed_out = true;
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().code, ErrorCode::kTimeout);
    const Status received = behind.wait();
    EXPECT_TRUE(received.ok()) << to_string(received.error());
    EXPECT_TRUE(rank.receive(&second, 1, DataType::kInt32, 0).ok());
    EXPECT_EQ(first, 41);
    EXPECT_EQ(second, 42);
    EXPECT_EQ(unused, 0);
  });
}

// A send times out after a part of it has left, and its receive after that part has arrived. A further transfer could
// be taken for the one that failed, so both ranks must refuse further calls, with an error that names the other rank.
TEST_P(Interplay, ATransferThatStopsHalfwayBreaksTheCommunicator) {
  Communicators ranks = world(2);
  std::vector<char> large(64 << 20);  // longer than the slots or the socket buffers can hold
  CallOptions options;
  options.timeout = scaled(std::chrono::milliseconds(300));
  const auto broke = [&](Communicator& rank, const Status& status, const char* transfer) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kTimeout);
    EXPECT_EQ(status.error().scope, ErrorScope::kConnection);
    EXPECT_EQ(status.error().rank, 1 - rank.rank());
    EXPECT_THAT(status.error().message, HasSubstr(std::string("only a part of ") + transfer));
    char word = 0;
    const Status next = rank.send(&word, 1, DataType::kUint8, 1 - rank.rank());
    ASSERT_FALSE(next.ok());
    EXPECT_EQ(next.error(), status.error());
  };
  broke(*ranks[0], ranks[0]->send(large.data(), large.size(), DataType::kUint8, 1, options),
        "send #1 of 67108864 uint8 to rank 1");
  broke(*ranks[1], ranks[1]->receive(large.data(), large.size(), DataType::kUint8, 0, options),
        "receive #1 of 67108864 uint8 from rank 0");
}

// If two ranks pass different counts to each other, the ranks that detect it report it. The exchanges of all other
// pairs and all later calls succeed.
TEST_P(Interplay, AWrongCountInAllToAllVHurtsThatPairOnly) {
  Communicators ranks = world(3);
  on_every_rank(ranks, [&](Communicator& rank) {
    for (const std::size_t count : {std::size_t{4}, std::size_t{200'000}, std::size_t{4'000'000}}) {
      std::vector<std::size_t> out_counts(3, count), in_counts(3, count);
      if (rank.rank() == 2) out_counts[0] = count + 1;
      std::vector<float> out(3 * count + 1, static_cast<float>(rank.rank())), in(3 * count);
      const Status status =
          rank.all_to_all_v(out.data(), {.counts = out_counts}, in.data(), {.counts = in_counts}, DataType::kFloat32);
      EXPECT_EQ(status.ok(), rank.rank() != 0) << "rank " << rank.rank();
      if (rank.rank() == 0 && !status.ok()) {
        EXPECT_EQ(status.error().code, ErrorCode::kMismatch) << to_string(status.error());
        EXPECT_EQ(status.error().rank, 2);
      }
      EXPECT_EQ(in[2 * count - 1], 1.0f) << "the block from rank 1 must have arrived";
      EXPECT_TRUE(rank.barrier().ok());
      in_counts.assign(3, count);
      const Status again =
          rank.all_to_all_v(out.data(), {.counts = in_counts}, in.data(), {.counts = in_counts}, DataType::kFloat32);
      EXPECT_TRUE(again.ok()) << to_string(again.error());
      EXPECT_EQ(in[3 * count - 1], 2.0f);
    }
  });
}

TEST_P(Interplay, FinalizeTellsThePeers) {
  Communicators ranks = world(2);
  on_every_rank(ranks, [](Communicator& rank) {
    EXPECT_TRUE(rank.barrier().ok());
    if (rank.rank() == 0) {
      ASSERT_TRUE(rank.finalize().ok());
      pause_ms(1500);
      return;
    }
    pause_ms(50);
    const Status alone = rank.barrier();
    ASSERT_FALSE(alone.ok());
    EXPECT_EQ(alone.error().code, ErrorCode::kPeerLost) << to_string(alone.error());
    EXPECT_EQ(alone.error().rank, 0);
  });
}

// One thread makes many sends while another one makes collectives. Every submitted operation must be executed.
TEST_P(Interplay, ThreadsShareACommunicatorWithoutStalls) {
  Communicators ranks = world(2);
  on_every_rank(ranks, [](Communicator& rank) {
    std::thread talker([&] {
      for (int i = 0; i < 3000; ++i) {
        int word = i;
        const bool first = (rank.rank() + i) % 2 == 0;
        const Status moved = first ? rank.send(&word, 1, DataType::kInt32, 1 - rank.rank())
                                   : rank.receive(&word, 1, DataType::kInt32, 1 - rank.rank());
        ASSERT_TRUE(moved.ok()) << to_string(moved.error());
      }
    });
    for (int i = 0; i < 1000; ++i) {
      const Status met = rank.barrier();
      EXPECT_TRUE(met.ok()) << to_string(met.error());
      if (!met.ok()) break;
    }
    talker.join();
  });
}

// Each rank has one thread that sends and one that receives, in the background, while it makes collectives.
TEST_P(Interplay, BackgroundTransfersOfSeveralThreadsMeet) {
  Communicators ranks = world(2);
  on_every_rank(ranks, [](Communicator& rank) {
    constexpr int kMessages = 200;
    std::thread sender([&rank] {
      for (int i = 0; i < kMessages; ++i) {
        auto work = start_send(rank, &i, 1, DataType::kInt32, 1 - rank.rank());
        ASSERT_TRUE(work.ok()) << to_string(work.error());
        ASSERT_TRUE(work->wait().ok());
      }
    });
    for (int i = 0; i < kMessages; ++i) {
      int got = -1;
      auto work = start_receive(rank, &got, 1, DataType::kInt32, 1 - rank.rank());
      ASSERT_TRUE(work.ok()) << to_string(work.error());
      if (i % 10 == 0) {
        ASSERT_TRUE(rank.barrier().ok());
      }
      const Status met = work->wait();
      ASSERT_TRUE(met.ok()) << to_string(met.error());
      EXPECT_EQ(got, i);
    }
    sender.join();
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Interplay, testing::ValuesIn(kConfigurations),
                         [](const auto& world) { return std::string(world.param.name); });

// Both ranks are roots and send, so that neither receives anything. The later rank must still detect the
// disagreement.
TEST(Roots, ThatDifferAreTold) {
  auto ranks = make_ranks(2);
  std::atomic<int> told = 0;
  on_every_rank(ranks, [&](Communicator& rank) {
    std::vector<float> data(100, static_cast<float>(rank.rank()));
    const Status status = rank.broadcast(data.data(), data.data(), data.size(), DataType::kFloat32, rank.rank());
    if (status.ok()) return;
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    EXPECT_THAT(status.error().message, HasSubstr("root 1"));
    ++told;
  });
  EXPECT_GE(told, 1);
  on_every_rank(ranks, [](Communicator& rank) { EXPECT_TRUE(sum_is_right(rank, 100)); });
}

TEST(VArguments, EmptyBlocksOverlapNothing) {
  auto ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    const std::vector<std::size_t> counts = {10, 0}, displacements = {0, 5};
    std::vector<float> own(10, 2.0f), all(10);
    const Status status = rank.all_gather_v(own.data(), all.data(), {.counts = counts, .displacements = displacements},
                                            DataType::kFloat32);
    EXPECT_TRUE(status.ok()) << to_string(status.error());
    EXPECT_EQ(all[9], 2.0f);
  });
}

TEST(Group, TooLargeForTheQueueIsRefusedWhole) {
  auto ranks = make_ranks(1);
  // a group may have this many calls, but the queue of one communicator cannot hold all of them
  constexpr std::size_t kCalls = 65536;
  std::vector<float> in(kCalls, 1.0f), out(kCalls, 0.0f);
  Group group;
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_TRUE(group.add(*ranks[0], {.input = &in[i], .output = &out[i], .count = 1}).ok());
  }
  const Status status = group.run();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(out, std::vector<float>(kCalls, 0.0f)) << "no call of the group may be executed";
}

// The peer has not seen the send that failed, so the next send uses the same sequence number.
TEST(Descriptors, ThatRunOutCostOneSendOnly) {
  Communicators ranks = make_configured_ranks(kConfigurations[1], 2);
  int word = 5;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status refused = ranks[0]->send(&word, 1, DataType::kInt32, 1);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kSystem);
  on_every_rank(ranks, [](Communicator& rank) {
    int text = rank.rank() == 0 ? 6 : 0;
    const Status moved =
        rank.rank() == 0 ? rank.send(&text, 1, DataType::kInt32, 1) : rank.receive(&text, 1, DataType::kInt32, 0);
    EXPECT_TRUE(moved.ok()) << to_string(moved.error());
    EXPECT_EQ(text, 6);
  });
}

TEST(Fork, AChildMayDestroyItsCopyAfterBackgroundWork) {
  auto ranks = make_ranks(1);
  std::vector<float> data(10, 1.0f);
  EXPECT_TRUE(start_sum(*ranks[0], data.data(), data.data(), data.size())->wait().ok());
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(patience() / std::chrono::seconds(1)));
    ranks.clear();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child hung or failed";
}

}  // namespace
}  // namespace tutti::test

// Tests calls that are short enough for mailboxes. They must give the same bits as the plans that they replace, keep
// in step with all other calls, and give the same errors when ranks disagree or are absent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/wait.h"
#include "communicator/communicator_impl.h"
#include "communicator/support.h"
#include "tests/support/threads.h"
#include "transports/shm_ranks.h"
#include "transports/transport.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;
using Kind = CollectiveKind;
using Bytes = std::vector<std::byte>;

// Random bits, the same in every run. Interpreted as floating-point numbers, they contain all classes of values, for
// example NaN, infinity and subnormal numbers.
Bytes random_bits(std::size_t bytes, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bits(bytes);
  for (std::byte& byte : bits) byte = static_cast<std::byte>(random());
  return bits;
}

struct Shape {
  Kind kind;
  std::size_t count;
  DataType type;
  ReduceOp op;
};

// Makes one call on all ranks and returns the output of each.
std::vector<Bytes> outputs_of(Communicators& ranks, const Shape& shape) {
  const std::size_t blocks = ranks.size();
  const std::size_t bytes = blocks * shape.count * size_of(shape.type);
  std::vector<Bytes> outputs(blocks, Bytes(bytes));
  on_every_rank(ranks, [&](Communicator& rank) {
    const auto number = static_cast<std::size_t>(rank.rank());
    const Bytes input = random_bits(bytes, static_cast<std::uint32_t>(number) + 1);
    CollectiveCall call;
    call.kind = shape.kind;
    call.input = input.data();
    call.output = outputs[number].data();
    call.count = shape.count;
    call.type = shape.type;
    call.op = shape.op;
    call.root = static_cast<std::int32_t>(blocks) - 1;
    CallOptions options;
    options.algorithm = shape.kind == Kind::kAllReduce ? Algorithm::kOneShot : Algorithm::kDirect;
    options.scale.real = 0.3;
    options.scale.integer = 3;
    const Status status = rank.run(call, options);
    EXPECT_TRUE(status.ok()) << to_string(status.error());
  });
  return outputs;
}

TEST(ShmMailboxes, GiveTheBitsOfThePlansThatTheyStandFor) {
  Communicators by_mailbox = make_ranks(4);
  Communicators by_messages = make_configured_ranks(kConfigurations[1], 4);
  for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kReduceScatter, Kind::kAllGather, Kind::kAllToAll,
                          Kind::kBroadcast, Kind::kGather, Kind::kScatter}) {
    for (const DataType type : {DataType::kInt8, DataType::kUint32, DataType::kInt64, DataType::kFloat16,
                                DataType::kBfloat16, DataType::kFloat32, DataType::kFloat64, DataType::kFloat8E5M2}) {
      for (const ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAvg, ReduceOp::kPreMulSum}) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{6}, kMostInlineBytes / 4 / size_of(type)}) {
          const Shape shape{.kind = kind, .count = count, .type = type, .op = op};
          EXPECT_EQ(outputs_of(by_mailbox, shape), outputs_of(by_messages, shape))
              << to_string(kind) << " " << to_string(type) << " " << to_string(op) << " " << count;
        }
        if (kind != Kind::kAllReduce && kind != Kind::kReduce && kind != Kind::kReduceScatter) break;
      }
    }
  }
}

// A root that only sends runs ahead of its readers. Calls with and without mailboxes alternate, so that two
// consecutive mailbox calls may use the same mailbox.
TEST(ShmMailboxes, AreNotWrittenBeforeTheLastReaderIsDone) {
  constexpr int kRounds = 3000;
  Communicators ranks = make_ranks(3);
  on_every_rank(ranks, [](Communicator& rank) {
    std::mt19937 same(7);  // the same numbers on all ranks
    std::mt19937 own(static_cast<std::uint32_t>(rank.rank()));
    std::vector<std::int32_t> data(4 * kMostInlineBytes);
    for (int round = 0; round < kRounds; ++round) {
      const std::size_t count = same() % 3 == 0 ? kMostInlineBytes / 4 + 1 : 1 + same() % (kMostInlineBytes / 4);
      const auto root = static_cast<std::int32_t>(same() % 3);
      if (own() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      const std::int32_t word = round * 4 + 1;
      if (same() % 4 == 0) {
        std::fill_n(data.begin(), count, word + rank.rank());
        ASSERT_TRUE(rank.all_reduce(data.data(), data.data(), count, DataType::kInt32, ReduceOp::kSum).ok());
        ASSERT_EQ(data[0], 3 * word + 3);
        ASSERT_EQ(data[count - 1], 3 * word + 3);
      } else {
        std::fill_n(data.begin(), count, rank.rank() == root ? word : -1);
        ASSERT_TRUE(rank.broadcast(data.data(), data.data(), count, DataType::kInt32, root).ok());
        ASSERT_EQ(data[0], word);
        ASSERT_EQ(data[count - 1], word);
      }
    }
  });
}

TEST(ShmMailboxes, DisagreementIsNamedAndTheNextCallsAreInStep) {
  Communicators ranks = make_ranks(2);
  // a count that also fits a mailbox, and one that needs messages
  for (const std::size_t other : {std::size_t{3}, kMostInlineBytes}) {
    std::atomic<int> told = 0;
    on_every_rank(ranks, [&](Communicator& rank) {
      std::vector<float> data(2 * kMostInlineBytes, 1.0f);
      for (int warm_up = 0; warm_up < 3; ++warm_up) {
        ASSERT_TRUE(rank.all_reduce(data.data(), data.data(), 1, DataType::kFloat32, ReduceOp::kSum).ok());
      }
      const std::size_t count = rank.rank() == 0 ? 2 : other;
      const Status status = rank.all_reduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum);
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
      EXPECT_THAT(status.error().message, HasSubstr("count"));
      ++told;
    });
    EXPECT_EQ(told, 2);
  }
  on_every_rank(ranks, [](Communicator& rank) {
    for (int round = 0; round < 10; ++round) {
      float one = 1.0f;
      ASSERT_TRUE(rank.all_reduce(&one, &one, 1, DataType::kFloat32, ReduceOp::kSum).ok());
      ASSERT_EQ(one, 2.0f);
    }
  });
}

TEST(ShmMailboxes, WhoStaysAwayIsNamedAndMayComeBackLater) {
  Communicators ranks = make_ranks(3);
  std::barrier others_gave_up(3);
  on_every_rank(ranks, [&](Communicator& rank) {
    for (int round = 0; round < 6; ++round) {
      float one = 1.0f;
      CallOptions options;
      if (round == 3 && rank.rank() == 1) others_gave_up.arrive_and_wait();
      if (round == 3) options.timeout = scaled(std::chrono::milliseconds(300));
      const Status status = rank.all_reduce(&one, &one, 1, DataType::kFloat32, ReduceOp::kSum, options);
      if (round == 3) {  // the late rank still finds the values that the others have written
        if (rank.rank() == 1) continue;
        EXPECT_FALSE(status.ok());
        EXPECT_THAT(to_string(status.error()), HasSubstr("not entered by rank 1"));
        others_gave_up.arrive_and_wait();
        continue;
      }
      ASSERT_TRUE(status.ok()) << to_string(status.error());
      EXPECT_EQ(one, 3.0f);
    }
  });
}

// While a short call waits, other threads of the rank send, receive, start work and call finalize().
TEST(ShmMailboxes, OtherThreadsAreServedWhileAShortCallWaits) {
  Communicators ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    std::thread beside([&rank] {
      for (int i = 0; i < 200; ++i) {
        int word = rank.rank() == 0 ? i : -1;
        const Status moved =
            rank.rank() == 0 ? rank.send(&word, 1, DataType::kInt32, 1) : rank.receive(&word, 1, DataType::kInt32, 0);
        ASSERT_TRUE(moved.ok()) << to_string(moved.error());
        ASSERT_EQ(word, i);
      }
    });
    for (int i = 0; i < 2000; ++i) {
      std::int64_t sum = i;
      ASSERT_TRUE(rank.all_reduce(&sum, &sum, 1, DataType::kInt64, ReduceOp::kSum).ok());
      ASSERT_EQ(sum, 2 * i);
    }
    beside.join();
  });
  // One rank calls finalize() while its own call waits for the other rank, which is late.
  std::atomic<bool> finalizing = false;
  on_every_rank(ranks, [&finalizing](Communicator& rank) {
    std::thread ends;
    if (rank.rank() == 0) {
      ends = std::thread([&rank, &finalizing, calling = gettid()] {
        EXPECT_TRUE(falls_asleep(calling));
        finalizing = true;
        EXPECT_TRUE(rank.finalize().ok());
      });
    } else {
      EXPECT_TRUE(eventually([&finalizing] { return finalizing.load(); }));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // gives the rank time to do something wrong
    }
    float one = 1.0f;
    const Status status = rank.all_reduce(&one, &one, 1, DataType::kFloat32, ReduceOp::kSum);
    EXPECT_TRUE(status.ok()) << to_string(status.error());
    EXPECT_EQ(one, 2.0f);
    if (ends.joinable()) ends.join();
  });
}

// The rotation of the mailboxes relies on this: an empty call also ends only after all ranks have entered it.
TEST(ShmMailboxes, AnEmptyCallBetweenDoesNotLetARootRunAhead) {
  Communicators ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    for (int round = 0; round < 3; ++round) {
      int word = rank.rank() == 0 ? 10 + round : 0;
      const Status moved = rank.broadcast(&word, &word, 1, DataType::kInt32, 0);
      ASSERT_TRUE(moved.ok()) << round << ": " << to_string(moved.error());
      ASSERT_EQ(word, 10 + round);
      ASSERT_TRUE(rank.all_reduce(&word, &word, 0, DataType::kInt32, ReduceOp::kSum, with(Algorithm::kRing)).ok());
    }
  });
}

// Roots, and ranks that only send, run ahead as far as the mailboxes and the payload buffers allow. Each rank pauses
// at other times. A rank must not overwrite a value that another rank has still to read.
TEST(ShmMailboxes, RanksThatRunAheadOverwriteNothing) {
  constexpr std::uint32_t kRanks = 4;
  constexpr int kCalls = 3000;
  Communicators ranks = make_ranks(kRanks, patience(), "off");
  on_every_rank(ranks, [&](Communicator& rank) {
    std::mt19937 alike(7);  // the same calls on all ranks
    std::mt19937 own(static_cast<std::uint32_t>(rank.rank()) + 100);
    std::vector<std::int32_t> input, output;
    const std::int32_t me = rank.rank();
    for (int round = 0; round < kCalls; ++round) {
      const Kind kind = std::array{Kind::kBroadcast, Kind::kScatter, Kind::kReduce, Kind::kGather}[alike() % 4];
      const auto root = static_cast<std::int32_t>(alike() % 8 == 0 ? alike() % kRanks : 1);
      // inline in the mailbox (1 and 9), short and long payload buffer (300 and 4000)
      const std::size_t count = std::array<std::size_t, 4>{1, 9, 300, 4000}[alike() % 4];
      input.assign(kRanks * count, round * 10 + me);
      output.assign(kRanks * count, -1);
      for (std::uint32_t i = 0; i < own() % 64 * (own() % 16 == 0 ? 200 : 1); ++i) relax();
      const CollectiveCall call{.kind = kind,
                                .input = input.data(),
                                .output = output.data(),
                                .count = count,
                                .type = DataType::kInt32,
                                .root = root};
      const Status status = rank.run(call, {});
      ASSERT_TRUE(status.ok()) << to_string(status.error());
      const bool takes = kind == Kind::kBroadcast || kind == Kind::kScatter || me == root;
      for (std::uint32_t block = 0; takes && block < (kind == Kind::kGather ? kRanks : 1); ++block) {
        const std::int32_t expected = kind == Kind::kReduce   ? static_cast<std::int32_t>(kRanks) * round * 10 + 6
                                      : kind == Kind::kGather ? round * 10 + static_cast<std::int32_t>(block)
                                                              : round * 10 + root;
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(output[block * count + i], expected) << "call " << round;
      }
    }
  });
}

TEST(ShmMailboxes, AnAbortEndsAWaitingShortCall) {
  Communicators ranks = make_ranks(2);
  std::thread aborts([&ranks] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // an earlier abort gives the same result
    ranks[0]->abort();
  });
  float one = 1.0f;
  const Status status = ranks[0]->all_reduce(&one, &one, 1, DataType::kFloat32, ReduceOp::kSum);
  aborts.join();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kAborted);
}

// An operation that another thread starts while a short call waits must begin when the short call has finished,
// although no thread waits for that operation.
TEST(ShmMailboxes, WhatIsStartedMeanwhileIsTakenUpInTheBackground) {
  constexpr std::uint32_t kRounds = 1500;
  Communicators ranks = make_ranks(2);
  std::atomic<bool> failed = false;
  for (std::uint32_t round = 0; round < kRounds && !failed; ++round) {
    std::array<std::int32_t, 2> words{static_cast<std::int32_t>(round), -1};
    on_every_rank(ranks, [&](Communicator& rank) {
      Work work;
      std::thread beside;
      const bool sends = rank.rank() == 0;
      std::int32_t* word = &words[sends ? 0 : 1];
      if (sends) {
        beside = std::thread([&] {
          Group group;
          ASSERT_TRUE(group.send(rank, word, 1, DataType::kInt32, 1).ok());
          for (std::uint32_t i = 0; i < round % 97 * 20; ++i) relax();
          auto started = group.start();
          ASSERT_TRUE(started.ok());
          work = std::move(*started);
        });
      } else {
        for (std::uint32_t i = 0; i < round % 89 * 40; ++i) relax();
      }
      float one = 1.0f;
      Status status = rank.all_reduce(&one, &one, 1, DataType::kFloat32, ReduceOp::kSum);
      // the other thread still has an open group
      while (!status.ok() && status.error().code == ErrorCode::kInvalidArgument) {
        status = rank.all_reduce(&one, &one, 1, DataType::kFloat32, ReduceOp::kSum);
      }
      ASSERT_TRUE(status.ok()) << to_string(status.error());
      if (sends) return beside.join();
      const Status got = rank.receive(word, 1, DataType::kInt32, 0);
      ASSERT_TRUE(got.ok() || failed.exchange(true)) << "round " << round << ": " << to_string(got.error());
      EXPECT_EQ(*word, static_cast<std::int32_t>(round));
    });
  }
  EXPECT_FALSE(failed);
}

// The root runs ahead of its peer, through mailboxes and through messages. The peer's error must still report the
// arguments of the root.
TEST(ShmMailboxes, DisagreementWithARootFarAheadIsTold) {
  constexpr std::size_t kLong = 2 * kMostInlineBytes / sizeof(float);
  Communicators ranks = make_ranks(2, scaled(std::chrono::milliseconds(1500)));
  on_every_rank(ranks, [](Communicator& rank) {
    std::vector<float> data(kLong, 1.0f);
    const auto broadcast = [&](std::size_t count) {
      return rank.broadcast(data.data(), data.data(), count, DataType::kFloat32, 0);
    };
    if (rank.rank() == 0) {
      ASSERT_TRUE(broadcast(1).ok());
      const CallOptions by_messages = with(Algorithm::kBinomial);
      while (rank.broadcast(data.data(), data.data(), kLong, DataType::kFloat32, 0, by_messages).ok()) continue;
      // The loop ends when the peer takes no more messages.
      return;
    }
    // Usually the root is far ahead by then. If it is not, this rank waits for it, and the error is the same.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const Status status = broadcast(2);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch) << to_string(status.error());
    EXPECT_THAT(status.error().message, HasSubstr("rank 0 passed count 1, rank 1 passed count 2"));
  });
}

// Two ranks that share memory, with the given waiters.
Communicators ranks_with_waiters(std::array<std::unique_ptr<Waiter>, 2> waiters) {
  auto transports = shm_ranks({.ranks = 2}, in_process_exchanges(2));
  const auto clock = std::make_shared<SteadyClock>();                 // shared, as among the ranks of one process
  const auto plan_cache = std::make_shared<VerifiedPlanCache>(true);  // shared as well
  Communicators ranks;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    Environment world{.clock = clock,
                      .waiter = std::move(waiters[rank]),
                      .transport = std::move(transports[rank]),
                      .plan_cache = plan_cache};
    ranks.push_back(detail::CommunicatorImpl::wrap(std::make_unique<detail::CommunicatorImpl>(
        detail::Membership{.rank = rank, .ranks = 2}, std::move(world), patience())));
  }
  return ranks;
}

// Rank 0 and rank 1 make short calls. Rank 1 enters each of them when rank 0 has fallen asleep in it.
void calls_with_late_peer(Communicators& ranks, int calls) {
  std::atomic<pid_t> waiting = 0;  // the thread of rank 0
  std::atomic<int> begun = 0;      // calls that rank 0 has begun
  on_every_rank(ranks, [&](Communicator& rank) {
    if (rank.rank() == 0) waiting = gettid();
    for (int call = 0; call < calls; ++call) {
      if (rank.rank() == 0) ++begun;
      if (rank.rank() == 1) {
        ASSERT_TRUE(eventually([&] { return begun > call; }) && falls_asleep(waiting));
      }
      float one = 1.0f;
      ASSERT_TRUE(rank.all_reduce(&one, &one, 1, DataType::kFloat32, ReduceOp::kSum).ok());
    }
  });
}

// A rank whose peer is always late must learn that spinning does not pay. This must also work for short calls, which
// first wait in a loop of their own.
TEST(ShmMailboxes, SpinningThatDoesNotPayIsGivenUp) {
  constexpr WaitLimits kLimits{.spins = 2000, .yields = 100};
  auto first = std::make_unique<AdaptiveWaiter>(kLimits);
  const AdaptiveWaiter& waiter = *first;
  Communicators ranks = ranks_with_waiters({std::move(first), std::make_unique<AdaptiveWaiter>(kLimits)});
  calls_with_late_peer(ranks, 30);
  EXPECT_LE(waiter.spins(), kLimits.spins / 20);
}

struct Yields {
  std::int64_t length_ns = 500;  // how long each takes
  int count = 0;
};

class FakeScheduler final : public CoreScheduler {
 public:
  explicit FakeScheduler(Yields& yields) : yields_(yields) {}
  void yield() override {
    ++yields_.count;
    now_ns_ += yields_.length_ns;
    CoreScheduler::yield();
  }
  std::int64_t now_ns() override { return now_ns_; }
  std::int64_t usual_time_slice_ns() override { return kSliceNs; }
  void shorten_time_slice() override {}
  void restore_time_slice() override {}

  static constexpr std::int64_t kSliceNs = 3'000'000;

 private:
  Yields& yields_;
  std::int64_t now_ns_ = 1;
};

// The first 16 yields of a wait may not be measured. Two long ones after them show that the core is lost. If the loop
// of a short call did not tell the waiter, the queue's loop, in which the wait goes on, would yield as often again.
TEST(ShmMailboxes, LongYieldsOfAShortCallAreNotRepeated) {
  constexpr WaitLimits kLimits{.spins = 10, .yields = 100};
  Yields yields;
  Communicators ranks =
      ranks_with_waiters({std::make_unique<AdaptiveWaiter>(kLimits, std::make_unique<FakeScheduler>(yields)),
                          std::make_unique<AdaptiveWaiter>(kLimits)});
  on_every_rank(ranks, [](Communicator& rank) {  // the first calls of a communicator are not short calls
    for (int call = 0; call < 3; ++call) {
      float one = 1.0f;
      ASSERT_TRUE(rank.all_reduce(&one, &one, 1, DataType::kFloat32, ReduceOp::kSum).ok());
    }
  });
  yields = {.length_ns = FakeScheduler::kSliceNs};
  calls_with_late_peer(ranks, 1);
  EXPECT_GE(yields.count, 2);
  EXPECT_LE(yields.count, 18);
}

}  // namespace
}  // namespace tutti::test

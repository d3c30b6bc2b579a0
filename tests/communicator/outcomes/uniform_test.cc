// Tests uniform calls, which end in the same way on all live ranks. After a rank is killed at any time, all
// survivors must have the same number of successful calls.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/prctl.h>

#include <algorithm>
#include <iterator>
#include <random>

#include "communicator/process_support.h"
#include "tutti/group.h"

namespace tutti::test {
namespace {

constexpr std::int32_t kSize = 4;

struct Report {
  std::atomic<std::int64_t> begun[kSize];  // number of calls
  std::atomic<std::int64_t> good[kSize];   // number of successful calls
};

// Starts the ranks of a job. Each is a process that ends when body(communicator, rank) returns.
std::vector<pid_t> start_job(UniformCalls uniform, const char* transport,
                             const std::function<void(Communicator&, std::int32_t)>& body) {
  const std::uint16_t port = free_port();
  std::vector<pid_t> children;
  for (std::int32_t me = 0; me < kSize; ++me) {
    children.push_back(start([&, me] {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      CommunicatorOptions options = job(me, kSize, port);
      options.transport = transport;
      options.uniform = uniform;
      auto communicator = Communicator::create(options);
      if (!communicator.ok()) return 2;
      body(**communicator, me);
      return 0;
    }));
  }
  return children;
}

// Makes one broadcast from `root` and counts it in the report. Returns whether it succeeded.
bool broadcast(Communicator& rank, Report& report, std::int32_t root, const CallOptions& options = {}) {
  std::vector<float> data(1000, static_cast<float>(rank.rank()));
  ++report.begun[rank.rank()];
  const Status status = rank.broadcast(data.data(), data.data(), data.size(), DataType::kFloat32, root, options);
  if (status.ok()) ++report.good[rank.rank()];
  return status.ok();
}

// Creates `ranks` ranks of this process, whose calls wait for twice patience().
Communicators make_uniform_ranks(std::int32_t ranks, UniformCalls calls, const char* transport = "auto") {
  CommunicatorOptions options;
  options.transport = transport;
  options.uniform = calls;
  options.timeout = 2 * patience();
  options.setup_timeout = 2 * patience();
  auto made = Communicator::create_all(ranks, options);
  EXPECT_TRUE(made.ok());
  return made.ok() ? std::move(*made) : Communicators();
}

// Adds up one number of each rank.
Status sum_of_ones(Communicator& rank, const CallOptions& options = {}, ReduceOp op = ReduceOp::kSum) {
  std::int32_t value = 1;
  return rank.all_reduce(&value, &value, 1, DataType::kInt32, op, options);
}

CallOptions asking_for_uniform() {
  CallOptions options;
  options.uniform = true;
  return options;
}

// Waits for the end of all processes after the victim was killed. Returns whether the survivors have equal counts.
bool alike_after_the_end(const std::vector<pid_t>& children, std::size_t victim, const Report& report) {
  bool alike = true;
  std::int64_t first = -1;
  for (std::size_t me = 0; me < kSize; ++me) {
    EXPECT_EQ(status_of(children[me]), me == victim ? 128 + SIGKILL : 0) << "rank " << me;
    if (me == victim) continue;
    if (first < 0) first = report.good[me];
    alike = alike && report.good[me] == first;
  }
  EXPECT_GT(first, 0);
  return alike;
}

// Makes `plain` broadcasts that need not be uniform. Returns whether all of them succeeded.
bool broadcast_plain(Communicator& rank, int plain, std::int32_t root) {
  std::vector<float> data(1000);
  for (int i = 0; i < plain; ++i) {
    if (!rank.broadcast(data.data(), data.data(), data.size(), DataType::kFloat32, root).ok()) return false;
  }
  return true;
}

struct UniformWay {
  const char* name;
  const char* transport;
  UniformCalls calls;
  int plain;  // number of calls that are not uniform before each uniform one
};
constexpr UniformWay kWays[] = {{"Auto", "auto", UniformCalls::kAll, 0},
                                {"Tcp", "tcp", UniformCalls::kAll, 0},
                                {"AutoAsked", "auto", UniformCalls::kAsked, 0},
                                {"AutoAskedAfterPlain", "auto", UniformCalls::kAsked, 2},
                                {"TcpAskedAfterPlain", "tcp", UniformCalls::kAsked, 2}};

class Uniform : public testing::TestWithParam<UniformWay> {};

// Kills a rank at any time during broadcasts. The root stays the same for 16 calls in a row, so that it runs ahead
// of the others. Only uniform calls are counted.
TEST_P(Uniform, SurvivorsHaveAsManyGoodCalls) {
  std::mt19937 random(3);
  const UniformWay& way = GetParam();
  CallOptions options;
  options.uniform = way.calls == UniformCalls::kAsked;
  for (int round = 0; round < 12; ++round) {
    const std::size_t victim = random() % kSize;
    const auto after = std::chrono::microseconds(20'000 + random() % 20'000);
    Report& report = shared_object<Report>();
    const auto children = start_job(way.calls, way.transport, [&](Communicator& rank, std::int32_t me) {
      while (true) {
        const auto root = static_cast<std::int32_t>(report.good[me] / 16 % kSize);
        if (me != root) std::this_thread::sleep_for(std::chrono::microseconds(200));
        if (!broadcast_plain(rank, way.plain, root) || !broadcast(rank, report, root, options)) return;
      }
    });
    ASSERT_TRUE(eventually([&] {
      return std::all_of(std::begin(report.good), std::end(report.good), [](const auto& good) { return good > 0; });
    }));
    std::this_thread::sleep_for(after);
    kill(children[victim], SIGKILL);
    EXPECT_TRUE(alike_after_the_end(children, victim, report)) << "rank " << victim << " was killed";
  }
}

// Rank 1 passes the messages of the root on to ranks 2 and 3. It omits the last call and is killed. The root has
// sent its message, and it can learn that the message did not reach the others only by waiting for their
// confirmation.
TEST(Uniform, TheRootKnowsThatACallWasNotPassedOn) {
  constexpr std::int64_t kGood = 5;
  for (const auto& [calls, asks] : {std::pair(UniformCalls::kAll, false), std::pair(UniformCalls::kAll, true),
                                    std::pair(UniformCalls::kAsked, true), std::pair(UniformCalls::kAsked, false),
                                    std::pair(UniformCalls::kNone, false)}) {
    const bool uniform = calls == UniformCalls::kAll || asks;
    CallOptions options = with(Algorithm::kChain);
    options.uniform = asks;
    Report& report = shared_object<Report>();
    const auto children = start_job(calls, "tcp", [&](Communicator& rank, std::int32_t me) {
      while (broadcast(rank, report, 0, options)) {
        while (me == 1 && report.good[me] == kGood) pause();
      }
    });
    ASSERT_TRUE(eventually([&] {
      return report.good[1] == kGood && report.begun[2] == kGood + 1 && report.begun[3] == kGood + 1 &&
             (uniform ? report.begun[0] : report.good[0]) > kGood;
    }));
    kill(children[1], SIGKILL);
    EXPECT_EQ(alike_after_the_end(children, 1, report), uniform);
    for (const std::int32_t rank : {2, 3}) EXPECT_EQ(report.good[rank], kGood);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Uniform, testing::ValuesIn(kWays), [](const auto& way) { return way.param.name; });

// A plain call has broken the communicator on rank 0, which makes no more calls. Rank 1 is in the next uniform call. It
// would wait for four set-up timeouts if rank 0 had not settled the calls in its own call.
TEST(Uniform, APlainCallThatBreaksTheCommunicatorKeepsNobodyWaiting) {
  Communicators ranks = make_uniform_ranks(3, UniformCalls::kAsked);
  std::atomic<int> begun{0};
  const auto start = std::chrono::steady_clock::now();
  on_every_rank(ranks, [&](Communicator& rank) {
    const CallOptions asking = asking_for_uniform();
    EXPECT_TRUE(sum_of_ones(rank, asking).ok());
    if (rank.rank() == 2) {
      while (begun.load() < 2) std::this_thread::yield();
      rank.abort();
      EXPECT_FALSE(sum_of_ones(rank, asking).ok());
      return;
    }
    ++begun;
    EXPECT_FALSE(sum_of_ones(rank, rank.rank() == 0 ? CallOptions() : asking).ok());
    const Status refused = sum_of_ones(rank);
    ASSERT_FALSE(refused.ok());
    EXPECT_GE(refused.error().scope, ErrorScope::kCommunicator);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, patience());
}

// Rank 2 aborts. Rank 0 is in a call, whose end it settles with rank 1. But rank 1 is in a receive from rank 0, which
// would end only at its timeout if rank 0 had not announced the end of the communicator.
TEST(Uniform, ARankWhoseCallFailedKeepsNobodyWaitingInAReceive) {
  for (const char* transport : {"shm", "tcp"}) {
    for (const UniformCalls calls : {UniformCalls::kAll, UniformCalls::kAsked}) {
      Communicators ranks = make_uniform_ranks(3, calls, transport);
      std::atomic<int> begun{0};
      const auto start = std::chrono::steady_clock::now();
      on_every_rank(ranks, [&](Communicator& rank) {
        SCOPED_TRACE(fmt::format("{}, uniform {}, rank {}", transport, static_cast<int>(calls), rank.rank()));
        EXPECT_TRUE(sum_of_ones(rank).ok());
        Status failed;
        ++begun;
        if (rank.rank() == 2) {
          while (begun.load() < 3) std::this_thread::yield();
          rank.abort();
        } else if (rank.rank() == 1) {
          float value = 0;
          failed = rank.receive(&value, 1, DataType::kFloat32, 0);
        } else {
          failed = sum_of_ones(rank);
        }
        if (rank.rank() < 2) {
          ASSERT_FALSE(failed.ok());
          EXPECT_EQ(failed.error().rank, 2) << to_string(failed.error());
          EXPECT_EQ(failed.error().code, ErrorCode::kAborted) << to_string(failed.error());
        }
        EXPECT_FALSE(sum_of_ones(rank).ok());
      });
      EXPECT_LT(std::chrono::steady_clock::now() - start, patience());
    }
  }
}

// After rank 0's uniform call comes its vote, a minimum of one int32. Rank 1 has not asked for uniform, and its next
// call is a minimum of one int32, too. The two must not be taken for one call. The ranks have then made different
// numbers of calls, so the communicator ends.
TEST(Uniform, TheVoteMatchesNoCallOfTheProgram) {
  for (const char* transport : {"shm", "tcp"}) {
    Communicators ranks = make_uniform_ranks(2, UniformCalls::kAsked, transport);
    const auto start = std::chrono::steady_clock::now();
    on_every_rank(ranks, [](Communicator& rank) {
      for (int call = 0; call < 2; ++call) EXPECT_TRUE(sum_of_ones(rank, {}, ReduceOp::kMin).ok());
      Status status = sum_of_ones(rank, rank.rank() == 0 ? asking_for_uniform() : CallOptions());
      if (rank.rank() == 1) {
        EXPECT_TRUE(status.ok());
        status = sum_of_ones(rank, {}, ReduceOp::kMin);
      }
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::kMismatch) << to_string(status.error());
      EXPECT_THAT(status.error().message, testing::HasSubstr("rank 0 passed the vote on a uniform call"));
      EXPECT_THAT(status.error().message, testing::HasSubstr("rank 1 passed an ordinary call"));
      const Status next = sum_of_ones(rank, asking_for_uniform());
      ASSERT_FALSE(next.ok());
      EXPECT_GE(next.error().scope, ErrorScope::kCommunicator) << to_string(next.error());
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, patience());
  }
}

// Rank 1 has done its part of a gather and calls shrink() at once. Rank 0 waits in the gather for rank 2, which is
// killed. Rank 0 settles the uniform calls in its gather, and calls shrink() afterwards: both ranks must have settled
// them once.
TEST(Uniform, APlainCallThatFailsMeetsARankThatShrinks) {
  const std::uint16_t port = free_port();
  Report& report = shared_object<Report>();
  std::vector<pid_t> children;
  for (std::int32_t me = 0; me < 3; ++me) {
    children.push_back(start([&, me] {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      CommunicatorOptions options = job(me, 3, port);
      options.transport = "tcp";
      options.uniform = UniformCalls::kAsked;
      options.setup_timeout = 2 * patience();
      auto made = Communicator::create(options);
      if (!made.ok()) return 2;
      Communicator& rank = **made;
      if (!broadcast(rank, report, 0, asking_for_uniform())) return 3;
      if (me == 2) pause();  // until it is killed
      std::vector<float> data(30);
      const bool gathered =
          rank.gather(data.data() + 10 * me, data.data(), 10, DataType::kFloat32, 0, with(Algorithm::kDirect)).ok();
      ++report.begun[me];
      if (gathered != (me == 1)) return 4;
      const auto start = std::chrono::steady_clock::now();
      auto smaller = rank.shrink();
      if (!smaller.ok() || (*smaller)->size() != 2) return 5;
      return std::chrono::steady_clock::now() - start < patience() ? 0 : 6;
    }));
  }
  ASSERT_TRUE(eventually([&] { return report.begun[1] == 2 && report.good[2] == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // usually rank 1 is in shrink() now
  kill(children[2], SIGKILL);
  EXPECT_EQ(status_of(children[0]), 0);
  EXPECT_EQ(status_of(children[1]), 0);
  EXPECT_EQ(status_of(children[2]), 128 + SIGKILL);
}

// Rank 0's call and vote time out. Rank 1 comes later, and takes part in the agreement. After that the communicator
// takes no more calls, and the errors say so. The sleep only has to be longer than the timeouts.
TEST(Uniform, TheErrorOfAVoteThatFailsEndsTheCommunicator) {
  CommunicatorOptions options;
  options.uniform = UniformCalls::kAll;
  options.timeout = std::chrono::milliseconds(20);
  auto made = Communicator::create_all(2, options);
  ASSERT_TRUE(made.ok());
  on_every_rank(*made, [](Communicator& rank) {
    if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    for (int call = 0; call < 2; ++call) {
      const Status status = sum_of_ones(rank);
      ASSERT_FALSE(status.ok());
      // Rank 1 may still find the vote of rank 0, and complete it.
      if (rank.rank() == 1 && call == 0) continue;
      EXPECT_GE(status.error().scope, ErrorScope::kCommunicator)
          << "call " << call << ": " << to_string(status.error());
    }
  });
}

TEST(Uniform, OnlyABlockingCollectiveOnHostMemoryMayAsk) {
  for (const UniformCalls calls : {UniformCalls::kNone, UniformCalls::kAsked, UniformCalls::kAll}) {
    for (const std::int32_t ranks : {1, 2}) {
      CommunicatorOptions options;
      options.uniform = calls;
      options.timeout = patience();
      auto made = Communicator::create_all(ranks, options);
      ASSERT_TRUE(made.ok());
      on_every_rank(*made, [&](Communicator& rank) {
        SCOPED_TRACE(fmt::format("uniform {}, {} ranks", static_cast<int>(calls), ranks));
        const CallOptions asking = asking_for_uniform();
        float value = 1;
        const auto refused = [](const auto& result, const char* part) {
          EXPECT_FALSE(result.ok());
          if (result.ok()) return;
          EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
          EXPECT_THAT(result.error().message, testing::HasSubstr(part));
        };
        const Status blocking = sum_of_ones(rank, asking);
        if (calls == UniformCalls::kNone) {
          refused(blocking, "TUTTI_UNIFORM=calls");
          refused(rank.all_to_all_v(nullptr, {}, nullptr, {}, DataType::kInt8, asking), "TUTTI_UNIFORM=calls");
        } else {
          EXPECT_TRUE(blocking.ok());
          CallOptions in_stream = asking;
          in_stream.stream = nullptr;
          refused(rank.barrier(in_stream), "stream");
        }
        const char* const others = "only a blocking collective";
        const CollectiveCall sum{.kind = CollectiveKind::kAllReduce,
                                 .input = &value,
                                 .output = &value,
                                 .count = 1,
                                 .type = DataType::kFloat32,
                                 .op = ReduceOp::kSum};
        refused(rank.start(sum, asking), others);
        Group group;
        refused(group.add(rank, sum, asking), others);
        if (ranks > 1) {
          refused(group.send(rank, &value, 1, DataType::kFloat32, 1 - rank.rank(), asking), others);
          refused(group.receive(rank, &value, 1, DataType::kFloat32, 1 - rank.rank(), asking), others);
        }
        if (ranks > 1) {
          refused(rank.send(&value, 1, DataType::kFloat32, 1 - rank.rank(), asking), others);
          refused(rank.receive(&value, 1, DataType::kFloat32, 1 - rank.rank(), asking), others);
          refused(rank.next_sender(asking), others);
        }
        EXPECT_TRUE(sum_is_right(rank, 1000));
      });
    }
  }
}

// The root of a broadcast completes its own part at once, and then waits in the vote for the other rank. The sleep only
// has to be longer than the communicator's timeout; a longer delay does not change the result.
TEST(Uniform, TheVoteHasTheTimeoutOfTheCall) {
  CommunicatorOptions options;
  options.uniform = UniformCalls::kAll;
  options.timeout = std::chrono::milliseconds(20);
  auto made = Communicator::create_all(2, options);
  ASSERT_TRUE(made.ok());
  on_every_rank(*made, [](Communicator& rank) {
    CallOptions patient;
    patient.timeout = patience();
    std::int32_t data = 1;
    if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_TRUE(rank.broadcast(&data, &data, 1, DataType::kInt32, 0, patient).ok());
    // After a vote that times out, the communicator takes no more calls.
    EXPECT_TRUE(rank.broadcast(&data, &data, 1, DataType::kInt32, 0, patient).ok());
  });
}

// If the machine is not busy, the call of rank 0 times out before rank 1 makes it. Rank 0 then waits for rank 1 in the
// vote. In every case both ranks continue. The sleep only has to be longer than the timeout; the result does not depend
// on it.
TEST(Uniform, ACallThatTimesOutDoesNotEndTheCommunicator) {
  CommunicatorOptions options;
  options.uniform = UniformCalls::kAll;
  options.timeout = patience();
  auto made = Communicator::create_all(2, options);
  ASSERT_TRUE(made.ok());
  on_every_rank(*made, [&](Communicator& rank) {
    CallOptions impatient;
    impatient.timeout = std::chrono::milliseconds(20);
    if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    static_cast<void>(sum_of_ones(rank, impatient).ok());
    EXPECT_TRUE(sum_is_right(rank, 1000));
  });
}

TEST(Uniform, WorksOnAfterADisagreement) {
  CommunicatorOptions options;
  options.uniform = UniformCalls::kAll;
  options.timeout = patience();
  auto made = Communicator::create_all(3, options);
  ASSERT_TRUE(made.ok());
  on_every_rank(*made, [](Communicator& rank) {
    std::vector<float> data(100);
    const std::size_t count = rank.rank() == 2 ? 99 : 100;
    const Status status = rank.all_reduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum);
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(sum_is_right(rank, 1000));
    auto child = rank.duplicate();
    ASSERT_TRUE(child.ok());
    EXPECT_TRUE(sum_is_right(**child, 1000));
  });
}

}  // namespace
}  // namespace tutti::test

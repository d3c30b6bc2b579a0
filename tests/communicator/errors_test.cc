// Tests errors of invalid arguments, and of ranks that disagree, are absent, abort or leave. Each call must fail
// with an error that names the culprit, no rank may hang, and the communicator must stay usable if this is promised.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <random>

#include "communicator/support.h"

namespace tutti::test {
namespace {

using testing::Test;

TEST(BadArguments, AreRefusedByNameAndLeaveTheCommunicatorUsable) {
  Communicators ranks = make_ranks(2);
  Communicator& rank = *ranks[0];
  std::vector<float> buffer(64);
  const auto error_of = [&](const void* in, void* out, std::size_t count, DataType type, ReduceOp op,
                            Algorithm algorithm) {
    const Status status = rank.all_reduce(in, out, count, type, op, with(algorithm));
    EXPECT_FALSE(status.ok());
    return status.ok() ? Error{} : status.error();
  };
  const auto expect = [](const Error& error, const char* word) {
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.scope, ErrorScope::kCall);
    EXPECT_NE(error.message.find(word), std::string::npos) << error.message;
  };
  float* data = buffer.data();
  constexpr auto kFloat = DataType::kFloat32;
  constexpr auto kSum = ReduceOp::kSum;
  constexpr auto kAuto = Algorithm::kAuto;
  expect(error_of(nullptr, data, 8, kFloat, kSum, kAuto), "input is null");
  expect(error_of(data, nullptr, 8, kFloat, kSum, kAuto), "output is null");
  expect(error_of(data, data, SIZE_MAX / 2, kFloat, kSum, kAuto), "count");
  expect(error_of(data, data, SIZE_MAX / 16, kFloat, kSum, kAuto), "more than any memory holds");
  expect(error_of(data, data, 8, static_cast<DataType>(99), kSum, kAuto), "type 99");
  expect(error_of(data, data, 8, kFloat, static_cast<ReduceOp>(77), kAuto), "operation 77");
  expect(error_of(data, data, 8, kFloat, kSum, static_cast<Algorithm>(55)), "algorithm 55");
  expect(error_of(data, data + 4, 8, kFloat, kSum, kAuto), "overlap");
  expect(error_of(reinterpret_cast<char*>(data) + 1, data + 32, 8, kFloat, kSum, kAuto), "aligned");
  EXPECT_FALSE(rank.allocate(0).ok());
  EXPECT_FALSE(rank.allocate(SIZE_MAX).ok());
  EXPECT_FALSE(rank.register_memory(nullptr, 4096).ok());
  EXPECT_FALSE(rank.register_memory(reinterpret_cast<char*>(data) + 1, 4096).ok());
  EXPECT_FALSE(rank.register_memory(reinterpret_cast<void*>(std::uintptr_t{1} << 46), 4096).ok()) << "unmapped memory";
  on_every_rank(ranks, [](Communicator& each) { EXPECT_TRUE(sum_is_right(each, 100)); });
}

TEST(BadArguments, OnlyPrivateWritableMemoryCanBeRegisteredAndOnlyOnce) {
  Communicators ranks = make_ranks(1);
  Communicators others = make_ranks(1);
  constexpr std::size_t kBytes = 4 * 4096;
  auto* pages = static_cast<std::byte*>(std::aligned_alloc(4096, kBytes));
  std::fill(pages, pages + kBytes, std::byte{7});
  auto first = ranks[0]->register_memory(pages, kBytes);
  ASSERT_TRUE(first.ok()) << to_string(first.error());
  EXPECT_FALSE(others[0]->register_memory(pages, kBytes).ok()) << "registered with another communicator";
  EXPECT_FALSE(others[0]->register_memory(pages + 4096, 4096).ok());
  auto allocated = ranks[0]->allocate(kBytes);
  ASSERT_TRUE(allocated.ok());
  EXPECT_FALSE(others[0]->register_memory(allocated->data(), kBytes).ok()) << "memory from allocate()";
  first = Error{};
  EXPECT_TRUE(others[0]->register_memory(pages, kBytes).ok()) << "the pages are private again";
  EXPECT_EQ(std::count(pages, pages + kBytes, std::byte{7}), std::ptrdiff_t{kBytes});
  std::free(pages);
  void* read_only = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_FALSE(ranks[0]->register_memory(read_only, 4096).ok());
  munmap(read_only, 4096);
  void* shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_FALSE(ranks[0]->register_memory(shared, 4096).ok());
  munmap(shared, 4096);
}

TEST(BadArguments, TimeoutsAreClampedAndNegativeOnesRefused) {
  Communicators ranks = make_ranks(1);
  CallOptions options;
  options.timeout = std::chrono::milliseconds::max();
  EXPECT_TRUE(sum_is_right(*ranks[0], 10, options));
  std::vector<float> data(4);
  options.timeout = std::chrono::milliseconds(-1);
  EXPECT_FALSE(ranks[0]->all_reduce(data.data(), data.data(), 4, DataType::kFloat32, ReduceOp::kSum, options).ok());
  EXPECT_EQ(size_of(static_cast<DataType>(99)), 0u);
  static_cast<void>(ranks[0]->auto_algorithm(CollectiveKind::kAllReduce, SIZE_MAX, static_cast<DataType>(99)));
}

TEST(BadArguments, RankAndSizeOutsideAreRefused) {
  EXPECT_FALSE(Communicator::create_all(0).ok());
  EXPECT_FALSE(Communicator::create_all(-3).ok());
  CommunicatorOptions options;
  options.size = 4;
  options.rank = 4;
  auto outside = Communicator::create(options);
  ASSERT_FALSE(outside.ok());
  EXPECT_NE(outside.error().message.find("rank 4 is outside 0..3"), std::string::npos) << outside.error().message;
  options.rank = -1;
  EXPECT_FALSE(Communicator::create(options).ok());
}

struct Disagreement {
  const char* argument;  // text that the error must contain
  std::size_t count = 1000;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Algorithm algorithm = Algorithm::kTwoShot;
};

// Rank 2 of 4 passes one different argument. Every rank must get an error that says so, and the next call must
// succeed.
TEST(Mismatch, NamesRankAndArgumentOnEveryRankAndLeavesTheCommunicatorUsable) {
  Communicators ranks = make_ranks(4);
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllReduce)) {
    const Disagreement usual{.argument = "", .algorithm = algorithm};
    for (const Disagreement& odd :
         {Disagreement{.argument = "count 1001", .count = 1001, .algorithm = algorithm},
          Disagreement{.argument = "count 0", .count = 0, .algorithm = algorithm},
          Disagreement{.argument = "type int32", .type = DataType::kInt32, .algorithm = algorithm},
          Disagreement{.argument = "operation max", .op = ReduceOp::kMax, .algorithm = algorithm},
          Disagreement{.argument = "algorithm",
          .algorithm = algorithm == Algorithm::kRing ? Algorithm::kOneShot : Algorithm::kRing}}) {
      for (const bool registered : {false, true}) {
        on_every_rank(ranks, [&](Communicator& rank) {
          const Disagreement& mine = rank.rank() == 2 ? odd : usual;
          Memory memory = rank.allocate(8192).value();
          std::vector<float> plain(2048, 1.0f);
          void* data = registered ? static_cast<void*>(memory.data()) : plain.data();
          const Status status = rank.all_reduce(data, data, mine.count, mine.type, mine.op, with(mine.algorithm));
          ASSERT_FALSE(status.ok()) << "rank " << rank.rank() << " " << odd.argument << " " << to_string(algorithm);
          EXPECT_EQ(status.error().code, ErrorCode::kMismatch) << to_string(status.error());
          EXPECT_EQ(status.error().scope, ErrorScope::kCall);
          EXPECT_NE(status.error().message.find(odd.argument), std::string::npos) << status.error().message;
          EXPECT_NE(status.error().message.find("rank 2"), std::string::npos) << status.error().message;
          EXPECT_TRUE(sum_is_right(rank, 3000, with(algorithm)));
        });
        if (Test::HasFailure()) return;
      }
    }
  }
}

// Failed calls may leave messages in the slots. These must not use up the credits of later calls. The test makes
// more failing calls in a row than there are slots.
TEST(Mismatch, ManyInARowLeaveTheCommunicatorUsable) {
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllReduce)) {
    Communicators ranks = make_ranks(3);
    on_every_rank(ranks, [&](Communicator& rank) {
      std::vector<float> data(30'000, 1.0f);
      for (int call = 0; call < 10; ++call) {
        const std::size_t count = rank.rank() == call % 3 ? 20'000 : 30'000;
        const Status status =
            rank.all_reduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kMax, with(algorithm));
        ASSERT_FALSE(status.ok());
        EXPECT_EQ(status.error().code, ErrorCode::kMismatch) << to_string(status.error());
      }
      for (const Algorithm next : algorithms_of(CollectiveKind::kAllReduce))
        EXPECT_TRUE(sum_is_right(rank, 10'000, with(next)));
    });
  }
}

// Random disagreements, with registered and plain memory, and with blocking and asynchronous calls. If the ranks
// disagree, every rank must get an error; otherwise every rank must get its result. A failure prints the seed.
TEST(Mismatch, RandomDisagreementsNeverPassAndNeverBreakTheCommunicator) {
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    std::mt19937 random(seed);
    const std::int32_t size = 2 + static_cast<std::int32_t>(random() % 4);
    Communicators ranks = make_ranks(size);
    for (int call = 0; call < 25; ++call) {
      struct Arguments {
        std::size_t count;
        Algorithm algorithm;
        bool registered;
        bool in_place;
        bool asynchronous;
      };
      std::vector<Arguments> arguments(static_cast<std::size_t>(size));
      const std::size_t count = 1 + random() % 60'000;
      const Algorithm algorithm = algorithms_of(CollectiveKind::kAllReduce)[random() % 4];
      const bool agree = random() % 2 == 0;
      for (Arguments& each : arguments) {
        each = {count, algorithm, random() % 2 == 0, random() % 2 == 0, random() % 2 == 0};
      }
      if (!agree) arguments[random() % arguments.size()].count += 1;
      on_every_rank(ranks, [&](Communicator& rank) {
        const Arguments& mine = arguments[static_cast<std::size_t>(rank.rank())];
        Memory in_memory = rank.allocate(300'000).value();
        Memory out_memory = rank.allocate(300'000).value();
        std::vector<float> in_plain(75'000, 1.0f);
        std::vector<float> out_plain(75'000);
        float* in = mine.registered ? reinterpret_cast<float*>(in_memory.data()) : in_plain.data();
        float* out = mine.registered ? reinterpret_cast<float*>(out_memory.data()) : out_plain.data();
        std::fill(in, in + mine.count, 1.0f);
        if (mine.in_place) out = in;
        Status status;
        if (mine.asynchronous) {
          auto work = start_sum(rank, in, out, mine.count, with(mine.algorithm));
          ASSERT_TRUE(work.ok()) << to_string(work.error());
          status = work->wait();
        } else {
          status = rank.all_reduce(in, out, mine.count, DataType::kFloat32, ReduceOp::kSum, with(mine.algorithm));
        }
        EXPECT_EQ(status.ok(), agree) << "seed " << seed << " call " << call << " rank " << rank.rank();
        if (!status.ok()) {
          EXPECT_EQ(status.error().code, ErrorCode::kMismatch) << to_string(status.error());
        }
        if (status.ok()) {
          EXPECT_EQ(std::count(out, out + mine.count, static_cast<float>(size)), std::ptrdiff_t(mine.count));
        }
      });
      if (Test::HasFailure()) return;
    }
  }
}

// After a timeout, the user may write to the buffer. A rank that enters the call late must not use the new contents
// as an operand.
TEST(Deadline, ALateRankNeverTakesWhatTheUserWroteAfterATimeout) {
  for (const bool allocated : {true, false}) {
    Communicators ranks = make_ranks(2, std::chrono::milliseconds(200));
    constexpr std::size_t kCount = 16'384;
    std::atomic<bool> rewritten = false;
    on_every_rank(ranks, [&](Communicator& rank) {
      auto* pages = static_cast<float*>(std::aligned_alloc(4096, kCount * sizeof(float)));
      Memory memory = std::move(allocated ? rank.allocate(kCount * sizeof(float))
                                          : rank.register_memory(pages, kCount * sizeof(float)))
                          .value();
      auto* data = reinterpret_cast<float*>(memory.data());
      std::vector<float> out(kCount);
      for (std::size_t i = 0; i < kCount; ++i) data[i] = 1.0f;
      CallOptions options = with(Algorithm::kOneShot);
      if (rank.rank() == 0) {
        EXPECT_FALSE(rank.all_reduce(data, out.data(), kCount, DataType::kFloat32, ReduceOp::kSum, options).ok());
        for (std::size_t i = 0; i < kCount; ++i) data[i] = 1e6f;
        rewritten = true;
      } else {
        while (!rewritten) std::this_thread::yield();
        const Status late = rank.all_reduce(data, out.data(), kCount, DataType::kFloat32, ReduceOp::kSum, options);
        if (late.ok()) {
          EXPECT_EQ(out, std::vector<float>(kCount, 2.0f)) << "the result must be right if the call succeeds";
        }
      }
      options.timeout = patience();
      EXPECT_TRUE(sum_is_right(rank, 100, options));
      memory = Memory();
      std::free(pages);
    });
  }
}

TEST(Deadline, NamesTheRankThatNeverEnters) {
  Communicators ranks = make_ranks(3, scaled(std::chrono::seconds(1)));
  std::barrier punctual(2);
  std::vector<std::thread> threads;
  for (const std::size_t present : {0u, 2u}) {
    threads.emplace_back([&ranks, &punctual, present] {
      std::vector<float> data(100);
      punctual.arrive_and_wait();
      const Status status =
          ranks[present]->all_reduce(data.data(), data.data(), 100, DataType::kFloat32, ReduceOp::kSum);
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::kTimeout) << to_string(status.error());
      EXPECT_EQ(status.error().rank, 1) << to_string(status.error());
      EXPECT_NE(status.error().message.find("rank 1"), std::string::npos) << status.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// In the first call, a missing rank may still be in set-up, waiting for rank 0. If two ranks are missing, the others
// cannot detect which of them waits for the other one, so the error names neither.
TEST(Deadline, OfTwoRanksMissingInTheFirstCallNoneIsNamedAlone) {
  Communicators ranks = make_configured_ranks({"Tcp", 1, "tcp", "off"}, 4, scaled(std::chrono::seconds(1)));
  std::barrier punctual(2);
  std::vector<std::thread> threads;
  for (const std::size_t present : {1u, 2u}) {
    threads.emplace_back([&ranks, &punctual, present] {
      float data = 1;
      punctual.arrive_and_wait();
      const Status status = ranks[present]->all_reduce(&data, &data, 1, DataType::kFloat32, ReduceOp::kSum);
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::kTimeout) << to_string(status.error());
      EXPECT_EQ(status.error().rank, -1) << to_string(status.error());
      EXPECT_NE(status.error().message.find("not entered by ranks 0, 3"), std::string::npos) << status.error().message;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Deadline, TheCommunicatorWorksOnWhenTheLateRankHasCaughtUp) {
  Communicators ranks = make_ranks(3, std::chrono::milliseconds(200));
  std::atomic<int> gave_up = 0;
  on_every_rank(ranks, [&gave_up](Communicator& rank) {
    std::vector<float> data(100, 1.0f);
    EXPECT_TRUE(rank.rank() != 1 || eventually([&gave_up] { return gave_up == 2; }));
    const Status status = rank.all_reduce(data.data(), data.data(), 100, DataType::kFloat32, ReduceOp::kSum);
    // if all that the late rank needs has already arrived, the call succeeds with the right result
    if (status.ok()) {
      EXPECT_EQ(rank.rank(), 1);
      EXPECT_EQ(data, std::vector<float>(100, 3.0f));
    } else {
      EXPECT_EQ(status.error().code, ErrorCode::kTimeout) << to_string(status.error());
      ++gave_up;
    }
    // The ranks return from the failed call at different times, so the next call needs a longer timeout.
    CallOptions patient;
    patient.timeout = patience();
    EXPECT_TRUE(sum_is_right(rank, 5000, patient));
  });
}

TEST(Abort, EndsTheCallHereAndOnPeersAndNamesTheCaller) {
  Communicators ranks = make_ranks(3);
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // an earlier abort gives the same result
    ranks[0]->abort();
  });
  on_every_rank(ranks, [](Communicator& rank) {
    if (rank.rank() == 1) return;  // never makes the call
    std::vector<float> data(100);
    const Status status = rank.all_reduce(data.data(), data.data(), 100, DataType::kFloat32, ReduceOp::kSum);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kAborted) << to_string(status.error());
    EXPECT_FALSE(rank.all_reduce(data.data(), data.data(), 100, DataType::kFloat32, ReduceOp::kSum).ok());
  });
  killer.join();
}

// Rank 0 waits in vain for a rank, and then aborts. Rank 1 is in a receive from rank 0, and its error must name the
// rank that was missing, even if that is rank 1 itself.
TEST(Abort, NamesTheRankForWhichThePeerHadWaited) {
  for (const std::int32_t missing : {1, 2}) {
    for (const char* transport : {"shm", "tcp"}) {
      CommunicatorOptions options;
      options.transport = transport;
      options.timeout = patience();
      auto made = Communicator::create_all(3, options);
      ASSERT_TRUE(made.ok());
      on_every_rank(*made, [&](Communicator& rank) {
        SCOPED_TRACE(fmt::format("{}, rank {} is missing", transport, missing));
        EXPECT_TRUE(sum_is_right(rank, 100));
        std::vector<float> data(30);
        CallOptions direct = with(Algorithm::kDirect);
        const auto gather = [&](const CallOptions& how) {
          return rank.gather(data.data() + 10 * rank.rank(), data.data(), 10, DataType::kFloat32, 0, how);
        };
        if (rank.rank() > 0) {
          EXPECT_TRUE(rank.rank() == missing || gather(direct).ok());
        } else {
          direct.timeout = std::chrono::milliseconds(100);
          const Status late = gather(direct);
          ASSERT_FALSE(late.ok());
          EXPECT_EQ(late.error().rank, missing) << to_string(late.error());
          rank.abort();
        }
        if (rank.rank() == 1) {
          const Status ended = rank.receive(data.data(), 10, DataType::kFloat32, 0);
          ASSERT_FALSE(ended.ok());
          EXPECT_EQ(ended.error().rank, missing) << to_string(ended.error());
          EXPECT_EQ(ended.error().code, ErrorCode::kTimeout) << to_string(ended.error());
          EXPECT_GE(ended.error().scope, ErrorScope::kCommunicator);
        }
      });
    }
  }
}

TEST(Abort, EndsAsynchronousOperationsToo) {
  Communicators ranks = make_ranks(2);
  std::vector<float> data(100);
  auto work = start_sum(*ranks[0], data.data(), data.data(), 100);
  ASSERT_TRUE(work.ok());
  ranks[0]->abort();
  const Status status = work->wait();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kAborted);
}

TEST(Leaving, APeerThatIsDestroyedIsNamedAndAnUnfinishedOperationEnds) {
  Communicators ranks = make_ranks(2);
  std::vector<float> data(100);
  ranks[1].reset();
  const Status status = ranks[0]->all_reduce(data.data(), data.data(), 100, DataType::kFloat32, ReduceOp::kSum);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kPeerLost) << to_string(status.error());
  EXPECT_EQ(status.error().rank, 1);

  Communicators others = make_ranks(2);
  auto work = start_sum(*others[0], data.data(), data.data(), 100);
  ASSERT_TRUE(work.ok());
  others[0].reset();
  EXPECT_FALSE(work->wait().ok()) << "a Work outlives its communicator and returns its error";
}

// A rank may finish its last call and destroy its communicator while others still execute the call.
TEST(Leaving, AfterTheLastCallNobodyMissesAnything) {
  for (int round = 0; round < 20; ++round) {
    Communicators ranks = make_ranks(4);
    std::vector<std::thread> threads;
    for (auto& rank : ranks) {
      threads.emplace_back([rank = std::move(rank), round]() mutable {
        EXPECT_TRUE(sum_is_right(*rank, 30'000,
                                 with(algorithms_of(CollectiveKind::kAllReduce)[static_cast<std::size_t>(round) % 4])));
        rank.reset();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace tutti::test

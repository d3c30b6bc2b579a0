// Tests of NCCL's functions when they are used wrongly, or in orders that are valid but rare.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <tuple>

#include "nccl/ranks.h"
#include "tests/support/ports.h"

namespace tutti::nccl_test {
namespace {

std::string last() { return ncclGetLastError(nullptr); }

TEST(NcclMisuse, ArgumentsThatCannotBeAreNamed) {
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitAll(&comm, 1, nullptr), ncclSuccess) << last();
  float value = 1;
  float other = 0;
  EXPECT_EQ(ncclAllReduce(&value, &other, 1, ncclFloat, ncclSum, nullptr, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclAllReduce(nullptr, &other, 1, ncclFloat, ncclSum, comm, nullptr), ncclInvalidArgument);
  EXPECT_NE(last().find("null"), std::string::npos) << last();
  EXPECT_EQ(ncclAllReduce(&value, &other, 1, static_cast<ncclDataType_t>(12), ncclSum, comm, nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(ncclAllReduce(&value, &other, 1, ncclFloat, static_cast<ncclRedOp_t>(5), comm, nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(ncclBroadcast(&value, &other, 1, ncclFloat, 1, comm, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclSend(&value, 1, ncclFloat, -1, comm, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclAllReduce(&value, &other, SIZE_MAX / 2, ncclFloat, ncclSum, comm, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommCount(comm, nullptr), ncclInvalidArgument);
  ncclConfig_t config;
  std::memset(&config, 0, sizeof(config));
  ncclComm_t child = nullptr;
  EXPECT_EQ(ncclCommSplit(comm, 0, 0, &child, &config), ncclInvalidArgument);
  EXPECT_NE(last().find("NCCL_CONFIG_INITIALIZER"), std::string::npos) << last();
  config = NCCL_CONFIG_INITIALIZER;
  config.minCTAs = 8;
  config.maxCTAs = 4;
  EXPECT_EQ(ncclCommSplit(comm, 0, 0, &child, &config), ncclInvalidArgument);
  for (const auto& [field, refused, accepted] :
       {std::tuple(&ncclConfig_t::nChannelsPerNetPeer, 0, 64), std::tuple(&ncclConfig_t::nChannelsPerNetPeer, 65, 1),
        std::tuple(&ncclConfig_t::maxP2pPeers, 0, 1), std::tuple(&ncclConfig_t::numRmaCtx, -1, 0)}) {
    config = NCCL_CONFIG_INITIALIZER;
    config.*field = refused;
    EXPECT_EQ(ncclCommSplit(comm, 0, 0, &child, &config), ncclInvalidArgument) << refused;
    config.*field = accepted;
    EXPECT_EQ(ncclCommSplit(comm, 0, 0, &child, &config), ncclSuccess) << last();
    EXPECT_EQ(ncclCommDestroy(child), ncclSuccess);
  }
  config = NCCL_CONFIG_INITIALIZER;
  config.size = offsetof(ncclConfig_t, cgaClusterSize);  // a program built with NCCL 2.14; later fields are not read
  config.cgaClusterSize = 99;
  EXPECT_EQ(ncclCommSplit(comm, 0, 0, &child, &config), ncclSuccess) << last();
  EXPECT_EQ(ncclCommDestroy(child), ncclSuccess);
  ncclUniqueId id;
  std::memset(&id, 1, sizeof(id));
  EXPECT_EQ(ncclCommInitRank(&child, 2, id, 2), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRank(&child, 2, id, 0), ncclInvalidArgument);
  EXPECT_EQ(child, nullptr);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidArgument);
  EXPECT_EQ(ncclAllReduce(&value, &other, 1, ncclFloat, ncclSum, comm, nullptr), ncclInvalidArgument);
  EXPECT_NE(last().find("destroyed"), std::string::npos) << last();
  EXPECT_EQ(ncclCommDestroy(nullptr), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
}

TEST(NcclMisuse, AnErrorInAGroupEndsTheGroupAndNoMore) {
  ncclComm_t comms[2] = {};
  ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), ncclSuccess) << last();
  float values[2] = {1, 2};
  ncclComm_t child = nullptr;
  ncclComm_t never = nullptr;
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(ncclAllReduce(&values[0], &values[0], 1, ncclFloat, ncclSum, comms[0], nullptr), ncclSuccess);
  EXPECT_EQ(ncclCommSplit(comms[0], 0, 0, &child, nullptr), ncclSuccess);
  EXPECT_EQ(ncclCommSuspend(comms[1], NCCL_SUSPEND_MEM), ncclSuccess);
  EXPECT_EQ(ncclCommInitRank(&never, 2, id, 5), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_NE(last().find("rank 5"), std::string::npos) << last();
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(child, &state), ncclSuccess);
  EXPECT_EQ(state, ncclInvalidArgument);
  EXPECT_EQ(ncclCommDestroy(child), ncclSuccess);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ncclAllReduce(&values[rank], &values[rank], 1, ncclFloat, ncclSum, comms[rank], nullptr), ncclSuccess);
  }
  ncclSimInfo_t estimate = NCCL_SIM_INFO_INITIALIZER;
  EXPECT_EQ(ncclGroupSimulateEnd(&estimate), ncclSuccess);
  EXPECT_GT(estimate.estimatedTime, 0);
  EXPECT_EQ(values[0], 1);  // the simulated calls did not run
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ncclAllReduce(&values[rank], &values[rank], 1, ncclFloat, ncclSum, comms[rank], nullptr), ncclSuccess);
  }
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess) << last();
  EXPECT_EQ(values[0], 3);
  for (const ncclComm_t comm : comms) EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST(NcclMisuse, AGroupEndsThoughOneOfItsRanksWasRefused) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << last();
  ncclComm_t comms[2] = {};
  const std::int64_t start = now_ms();
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (ncclComm_t& comm : comms) EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 0), ncclSuccess);  // two ranks have number 0
  EXPECT_EQ(ncclGroupEnd(), ncclRemoteError);
  EXPECT_LT(now_ms() - start, test::patience().count());
  EXPECT_NE(last().find("rank 0"), std::string::npos) << last();
  for (const ncclComm_t comm : comms) EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST(NcclMisuse, ASetUpThatWaitsIsAbortedFromAnotherThread) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the handle is read while ncclCommInitRank() writes it: a race that NCCL's API requires";
#endif
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << last();
  std::atomic<ncclComm_t> comm = nullptr;
  std::thread waiting([&] {
    static_assert(sizeof(std::atomic<ncclComm_t>) == sizeof(ncclComm_t));
    EXPECT_EQ(ncclCommInitRank(reinterpret_cast<ncclComm_t*>(&comm), 2, id, 0), ncclRemoteError);
  });
  while (comm.load() == nullptr) std::this_thread::yield();
  const std::int64_t start = now_ms();
  EXPECT_EQ(ncclCommAbort(comm.load()), ncclSuccess);
  waiting.join();
  EXPECT_LT(now_ms() - start, test::patience().count());
}

// Rank 0 finishes and leaves while the other ranks are still in the call. Their call must complete.
TEST(NcclMisuse, FinalizeAndDestroyDisturbNobodyWhoIsStillAtWork) {
  as_threads(3, [](ncclComm_t comm, int rank, int) -> std::string {
    for (int round = 0; round < 20; ++round) {
      std::vector<float> values(100'000, 1.0F);
      if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      TUTTI_NCCL_TRY(ncclBroadcast(values.data(), values.data(), values.size(), ncclFloat, 0, comm, nullptr));
    }
    TUTTI_NCCL_TRY(ncclCommFinalize(comm));
    float value = 0;
    TUTTI_NCCL_WANT(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr) == ncclInvalidUsage);
    return {};
  });
}

TEST(NcclMisuse, MemoryThatIsFreedWhileItIsRegisteredStays) {
  as_threads(2, [](ncclComm_t comm, int, int) -> std::string {
    void* data = nullptr;
    void* handle = nullptr;
    ncclWindow_t window = nullptr;
    TUTTI_NCCL_TRY(ncclMemAlloc(&data, 1 << 20));
    TUTTI_NCCL_TRY(ncclCommRegister(comm, data, 1 << 20, &handle));
    TUTTI_NCCL_TRY(ncclCommWindowRegister(comm, data, 1 << 20, &window, 0));
    TUTTI_NCCL_TRY(ncclMemFree(data));
    TUTTI_NCCL_TRY(ncclCommWindowDeregister(comm, window));
    TUTTI_NCCL_TRY(ncclCommDeregister(comm, handle));
    return {};
  });
}

TEST(NcclMisuse, APutArrivesThoughItsSenderEndsAtOnce) {
  as_processes(2, [](ncclComm_t comm, int rank, int) -> std::string {
    constexpr std::size_t kBytes = std::size_t{48} << 20;
    void* data = nullptr;
    ncclWindow_t window = nullptr;
    TUTTI_NCCL_TRY(ncclMemAlloc(&data, kBytes));
    TUTTI_NCCL_TRY(ncclCommWindowRegister(comm, data, kBytes, &window, 0));
    if (rank == 0) {
      const std::vector<char> values(kBytes, 'x');
      TUTTI_NCCL_TRY(ncclPutSignal(values.data(), kBytes, ncclInt8, 1, window, 0, 0, 0, 0, comm, nullptr));
      return {};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ncclWaitSignalDesc_t wanted{.opCnt = 1, .peer = 0, .sigIdx = 0, .ctx = 0};
    TUTTI_NCCL_TRY(ncclWaitSignal(1, &wanted, comm, nullptr));
    const auto* bytes = static_cast<const char*>(data);
    for (std::size_t i = 0; i < kBytes; i += 4096) TUTTI_NCCL_WANT(bytes[i] == 'x');
    return {};
  });
}

TEST(NcclMisuse, ThreadsPutWhileOthersWait) {
  as_threads(2, [](ncclComm_t comm, int rank, int) -> std::string {
    alignas(4096) static std::byte pages[2][4096];
    ncclWindow_t window = nullptr;
    TUTTI_NCCL_TRY(ncclCommWindowRegister(comm, pages[rank], 4096, &window, 0));
    constexpr int kRounds = 50;
    std::atomic<int> wrong = 0;
    std::vector<std::thread> waiters;
    for (int signal = 0; signal < 2; ++signal) {
      waiters.emplace_back([&, signal] {
        ncclWaitSignalDesc_t wanted{.opCnt = 1, .peer = 1 - rank, .sigIdx = signal, .ctx = 0};
        for (int i = 0; i < kRounds; ++i) wrong += ncclWaitSignal(1, &wanted, comm, nullptr) != ncclSuccess;
      });
    }
    int value = 7;
    for (int i = 0; i < kRounds; ++i) {
      for (int signal = 1; signal >= 0; --signal) {
        wrong += ncclPutSignal(&value, 1, ncclInt32, 1 - rank, window, 0, signal, 0, 0, comm, nullptr) != ncclSuccess;
      }
    }
    for (std::thread& waiter : waiters) waiter.join();
    TUTTI_NCCL_WANT(wrong == 0);
    return {};
  });
}

// A thread that waits for one rank also receives puts from other ranks. It must not wait for another rank's message
// that the thread waiting for that rank has already received. No rank starts a round before all messages of the
// previous round have arrived.
TEST(NcclMisuse, ThreadsThatWaitForDifferentRanksTakeEachMessageOnce) {
  as_threads(3, [](ncclComm_t comm, int rank, int ranks) -> std::string {
    alignas(4096) static std::byte pages[3][4096];
    ncclWindow_t window = nullptr;
    TUTTI_NCCL_TRY(ncclCommWindowRegister(comm, pages[rank], 4096, &window, 0));
    constexpr int kRounds = 300;
    std::atomic<int> wrong = 0;
    std::barrier<> meet(ranks);  // between the threads of this rank
    const auto work_with = [&](int peer) {
      ncclWaitSignalDesc_t wanted{.opCnt = 1, .peer = peer, .sigIdx = 0, .ctx = 0};
      for (int round = 0; round < kRounds; ++round) {
        meet.arrive_and_wait();
        // Delay the threads differently, so that a waiting thread looks for other ranks' messages before its own
        // arrives.
        std::this_thread::sleep_for(std::chrono::microseconds(100 * ((rank + peer + round) % 3)));
        wrong += ncclSignal(peer, 0, 0, 0, comm, nullptr) != ncclSuccess;
        wrong += ncclWaitSignal(1, &wanted, comm, nullptr) != ncclSuccess;
      }
    };
    std::vector<std::thread> threads;
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer != rank) threads.emplace_back(work_with, peer);
    }
    for (int round = 0; round < kRounds; ++round) meet.arrive_and_wait();
    for (std::thread& thread : threads) thread.join();
    TUTTI_NCCL_WANT(wrong == 0);
    return {};
  });
}

// A child of a rank may exit, and destroy the communicator that it has inherited. The peers must not notice.
TEST(NcclMisuse, AForkedChildSpeaksForNobody) {
  as_processes(2, [](ncclComm_t comm, int rank, int) -> std::string {
    float value = 1;
    TUTTI_NCCL_TRY(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr));
    if (rank == 1) {
      const pid_t child = fork();
      if (child == 0) {
        if (ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr) != ncclInvalidUsage) _exit(2);
        _exit(ncclCommAbort(comm) == ncclSuccess && ncclCommDestroy(comm) == ncclInvalidArgument ? 0 : 3);
      }
      TUTTI_NCCL_WANT(status_of(child) == 0);
    }
    TUTTI_NCCL_TRY(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr));
    TUTTI_NCCL_WANT(value == 4);
    return {};
  });
}

int time_out() {
  ncclComm_t comms[2] = {};
  if (ncclCommInitAll(comms, 2, nullptr) != ncclSuccess) return 2;
  float value = 1;
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return 3;
  const ncclResult_t ended = ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comms[0], nullptr);
  if (last().find("rank 1") == std::string::npos) return 4;
  if (ended != (version < 23000 ? ncclRemoteError : ncclTimeout)) return 5;
  return 0;
}

int refuse_interface() {
  ncclUniqueId id;
  if (ncclGetUniqueId(&id) != ncclInvalidUsage) return 2;
  return last().find("nosuch") == std::string::npos ? 3 : 0;
}

int without_id() {
  ncclUniqueId id;
  if (ncclGetUniqueId(&id) != ncclSuccess) return 2;
  std::string wrong[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      wrong[rank] = run_rank(
          [](ncclComm_t comm, int, int) -> std::string {
            float value = 1;
            TUTTI_NCCL_TRY(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr));
            TUTTI_NCCL_WANT(value == 2);
            return {};
          },
          id, rank, 2);
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!wrong[0].empty()) std::fprintf(stderr, "%s\n", wrong[0].c_str());
  return wrong[0].empty() && wrong[1].empty() ? 0 : 3;
}

// A communicator that was made through NCCL_COMM_ID grows by one rank.
int grow_by_id() {
  ncclUniqueId unused{};
  ncclComm_t alone = nullptr;
  if (ncclCommInitRank(&alone, 1, unused, 0) != ncclSuccess) return 2;
  ncclUniqueId id;
  if (ncclCommGetUniqueId(alone, &id) != ncclSuccess) return 3;
  std::string wrong[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      wrong[rank] = [&]() -> std::string {
        ncclComm_t grown = nullptr;
        TUTTI_NCCL_TRY(ncclCommGrow(rank == 0 ? alone : nullptr, 2, &id, rank == 0 ? -1 : rank, &grown, nullptr));
        float value = 1;
        TUTTI_NCCL_TRY(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, grown, nullptr));
        TUTTI_NCCL_WANT(value == 2);
        TUTTI_NCCL_TRY(ncclCommDestroy(grown));
        return {};
      }();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& one : wrong) std::fprintf(stderr, "%s\n", one.c_str());
  return wrong[0].empty() && wrong[1].empty() ? 0 : 4;
}

// The library reads its settings once per process, so each body runs in a new process. It runs this program again
// with a variable that names the body, and this initializer finds the variable.
using Case = int (*)();
constexpr std::pair<const char*, Case> kBodies[] = {{"time_out", time_out},
                                                    {"refuse_interface", refuse_interface},
                                                    {"without_id", without_id},
                                                    {"grow_by_id", grow_by_id}};
const int kBody = [] {
  const char* wanted = getenv("MISUSE_TEST_BODY");
  for (const auto& [name, body] : kBodies) {
    if (wanted != nullptr && std::string(wanted) == name) _exit(body());
  }
  return 0;
}();

int status_in(const std::vector<std::pair<const char*, const char*>>& variables, const char* body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kLongestChildS);
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    setenv("MISUSE_TEST_BODY", body, 1);
    execl("/proc/self/exe", "body", nullptr);
    _exit(127);
  }
  return status_of(child);
}

TEST(NcclMisuse, ARankThatDoesNotComeIsATimeoutThatNamesIt) {
  EXPECT_EQ(status_in({{"TUTTI_TIMEOUT_MS", "300"}}, "time_out"), 0);
  EXPECT_EQ(status_in({{"TUTTI_TIMEOUT_MS", "300"}, {"TUTTI_NCCL_VERSION", "2.28.9"}}, "time_out"), 0);
}

TEST(NcclMisuse, TheEnvironmentIsHeard) {
  EXPECT_EQ(status_in({{"NCCL_SOCKET_IFNAME", "nosuch"}}, "refuse_interface"), 0);
  EXPECT_EQ(status_in({{"NCCL_ALGO", "Ring"}, {"NCCL_PROTO", "Simple"}, {"NCCL_SHM_DISABLE", "1"}}, "without_id"), 0);
  const std::string place = "127.0.0.1:" + std::to_string(test::free_port());
  EXPECT_EQ(status_in({{"NCCL_COMM_ID", place.c_str()}}, "without_id"), 0);
  EXPECT_EQ(status_in({{"NCCL_COMM_ID", place.c_str()}}, "grow_by_id"), 0);
}

}  // namespace
}  // namespace tutti::nccl_test

// Tests of the life of communicators: non-blocking creation, split, shrink, grow, revoke, suspend, destroy and
// abort. No resource may be left afterwards.
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "nccl/ranks.h"

namespace tutti::nccl_test {
namespace {

// Adds up rank + 1 over all ranks with one all-reduce, and compares the sum with `expected`.
std::string check_sum(ncclComm_t comm, int expected) {
  int rank = -1;
  TUTTI_NCCL_TRY(ncclCommUserRank(comm, &rank));
  std::int32_t value = rank + 1;
  TUTTI_NCCL_TRY(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr));
  TUTTI_NCCL_WANT(value == expected);
  return {};
}

ncclResult_t wait_for(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) return ncclInternalError;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return state;
}

TEST(NcclLife, WithoutBlockingEverythingIsAskedFor) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comms[2] = {};
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &config), ncclInProgress) << ncclGetLastError(nullptr);
    ASSERT_NE(comms[rank], nullptr);
  }
  int count = 0;
  for (const ncclComm_t comm : comms) ASSERT_EQ(wait_for(comm), ncclSuccess) << ncclGetLastError(nullptr);
  EXPECT_EQ(ncclCommCount(comms[1], &count), ncclSuccess);
  EXPECT_EQ(count, 2);
  std::vector<double> values = {1, 2};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ncclAllReduce(&values[rank], &values[rank], 1, ncclDouble, ncclSum, comms[rank], nullptr),
              ncclInProgress);
  }
  for (const ncclComm_t comm : comms) EXPECT_EQ(wait_for(comm), ncclSuccess);
  EXPECT_EQ(values, (std::vector<double>{3, 3}));
  ncclComm_t children[2] = {};
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ncclCommSplit(comms[rank], 0, -rank, &children[rank], nullptr), ncclInProgress);
    EXPECT_NE(children[rank], nullptr);
  }
  for (const ncclComm_t comm : {comms[0], comms[1], children[0], children[1]}) EXPECT_EQ(wait_for(comm), ncclSuccess);
  int rank = -1;
  EXPECT_EQ(ncclCommUserRank(children[0], &rank), ncclSuccess);
  EXPECT_EQ(rank, 1);
  for (const ncclComm_t comm : {children[0], children[1], comms[0], comms[1]}) {
    EXPECT_EQ(ncclCommFinalize(comm), ncclInProgress);
  }
  for (const ncclComm_t comm : {children[0], children[1], comms[0], comms[1]}) {
    EXPECT_EQ(wait_for(comm), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  }
}

TEST(NcclLife, ARankThatIsStillMadeCanBeAborted) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
  std::int32_t value = 0;
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr), ncclInvalidArgument);
  EXPECT_NE(std::string(ncclGetLastError(comm)).find("in progress"), std::string::npos);
  const std::int64_t start = now_ms();
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  EXPECT_LT(now_ms() - start, test::patience().count()) << "on an idle machine it takes at most one second";
}

TEST(NcclLife, SplitsShrinksAndGrows) {
  as_threads(4, [](ncclComm_t comm, int rank, int) -> std::string {
    ncclComm_t half = nullptr;
    TUTTI_NCCL_TRY(ncclCommSplit(comm, rank == 3 ? NCCL_SPLIT_NOCOLOR : 7, 10 - rank, &half, nullptr));
    TUTTI_NCCL_WANT((half == nullptr) == (rank == 3));
    if (half != nullptr) {
      int own = -1;
      TUTTI_NCCL_TRY(ncclCommUserRank(half, &own));
      TUTTI_NCCL_WANT(own == 2 - rank);
      if (std::string wrong = check_sum(half, 6); !wrong.empty()) return wrong;
      TUTTI_NCCL_TRY(ncclCommDestroy(half));
    }
    int excluded[] = {1};
    if (rank != 1) {
      ncclComm_t three = nullptr;
      TUTTI_NCCL_TRY(ncclCommShrink(comm, excluded, 1, &three, nullptr, NCCL_SHRINK_DEFAULT));
      int count = 0;
      TUTTI_NCCL_TRY(ncclCommCount(three, &count));
      TUTTI_NCCL_WANT(count == 3);
      if (std::string wrong = check_sum(three, 6); !wrong.empty()) return wrong;
      TUTTI_NCCL_TRY(ncclCommDestroy(three));
    }
    return check_sum(comm, 10);
  });
}

TEST(NcclLife, GrowsByRanksThatWereNotThere) {
  ncclUniqueId id;
  ncclUniqueId more;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  std::atomic<bool> given = false;
  std::vector<std::string> wrong(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      wrong[static_cast<std::size_t>(rank)] = [&]() -> std::string {
        ncclComm_t old = nullptr;
        ncclComm_t grown = nullptr;
        if (rank < 2) TUTTI_NCCL_TRY(ncclCommInitRank(&old, 2, id, rank));
        if (rank == 1) {
          TUTTI_NCCL_TRY(ncclCommGetUniqueId(old, &more));
          ncclUniqueId again;
          TUTTI_NCCL_WANT(ncclCommGetUniqueId(old, &again) == ncclInvalidUsage);
          given = true;
        }
        while (!given) std::this_thread::yield();
        TUTTI_NCCL_TRY(ncclCommGrow(old, 4, rank == 0 ? nullptr : &more, rank < 2 ? -1 : rank, &grown, nullptr));
        if (std::string sum = check_sum(grown, 10); !sum.empty()) return sum;
        TUTTI_NCCL_TRY(ncclCommDestroy(grown));
        if (old != nullptr) {
          if (std::string sum = check_sum(old, 3); !sum.empty()) return sum;
          TUTTI_NCCL_TRY(ncclCommDestroy(old));
        }
        return {};
      }();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<std::string>(4));
}

TEST(NcclLife, ARevokedOneEndsItsCallsAndCanBeSplitAndShrunk) {
  std::atomic<bool> revoked = false;
  as_threads(3, [&revoked](ncclComm_t comm, int rank, int) -> std::string {
    // A call that the other ranks never enter.
    if (rank == 0) {
      std::thread revoker([comm, calling = gettid()] {
        EXPECT_TRUE(test::falls_asleep(calling));
        EXPECT_EQ(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), ncclSuccess);
      });
      std::int32_t value = 0;
      const ncclResult_t ended = ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr);
      revoker.join();
      revoked = true;
      TUTTI_NCCL_WANT(ended == ncclRemoteError);
    } else {
      TUTTI_NCCL_WANT(test::eventually([&revoked] { return revoked.load(); }));
      TUTTI_NCCL_TRY(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
    }
    std::int32_t value = 0;
    TUTTI_NCCL_WANT(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr) == ncclInvalidUsage);
    ncclResult_t state = ncclInternalError;
    TUTTI_NCCL_TRY(ncclCommGetAsyncError(comm, &state));
    TUTTI_NCCL_WANT(state == ncclSuccess);
    TUTTI_NCCL_WANT(ncclCommFinalize(comm) == ncclInvalidUsage);
    ncclComm_t split = nullptr;
    TUTTI_NCCL_TRY(ncclCommSplit(comm, 0, -rank, &split, nullptr));
    if (std::string wrong = check_sum(split, 6); !wrong.empty()) return wrong;
    TUTTI_NCCL_TRY(ncclCommDestroy(split));
    if (rank == 2) return {};
    int excluded[] = {2};
    ncclComm_t pair = nullptr;
    TUTTI_NCCL_TRY(ncclCommShrink(comm, excluded, 1, &pair, nullptr, NCCL_SHRINK_DEFAULT));
    if (std::string wrong = check_sum(pair, 3); !wrong.empty()) return wrong;
    TUTTI_NCCL_TRY(ncclCommDestroy(pair));
    return {};
  });
}

TEST(NcclLife, ASuspendedOneRefusesCallsUntilItIsResumed) {
  as_threads(2, [](ncclComm_t comm, int, int) -> std::string {
    TUTTI_NCCL_WANT(ncclCommResume(comm) == ncclInvalidUsage);
    TUTTI_NCCL_WANT(ncclCommSuspend(comm, 0) == ncclInvalidArgument);
    TUTTI_NCCL_TRY(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
    std::uint64_t suspended = 0;
    TUTTI_NCCL_TRY(ncclCommMemStats(comm, ncclStatGpuMemSuspended, &suspended));
    TUTTI_NCCL_WANT(suspended == 1);
    std::int32_t value = 0;
    TUTTI_NCCL_WANT(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr) == ncclInvalidUsage);
    TUTTI_NCCL_TRY(ncclCommResume(comm));
    std::uint64_t total = 1;
    TUTTI_NCCL_TRY(ncclCommMemStats(comm, ncclStatGpuMemTotal, &total));
    TUTTI_NCCL_WANT(total == 0);  // on host memory, no GPU memory is in use
    return check_sum(comm, 3);
  });
}

// One rank is killed in the middle of the job. The others get an error that names it, abort within the time limit,
// and continue without it.
TEST(NcclLife, SurvivorsOfADeadRankShrink) {
  const std::vector<pid_t> children = start_processes(3, [](ncclComm_t comm, int rank, int) -> std::string {
    if (std::string wrong = check_sum(comm, 6); !wrong.empty()) return wrong;
    if (rank == 1) raise(SIGKILL);
    std::int32_t value = 0;
    const ncclResult_t ended = ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr);
    TUTTI_NCCL_WANT(ended == ncclRemoteError);
    TUTTI_NCCL_WANT(std::string(ncclGetLastError(comm)).find("rank 1") != std::string::npos);
    int excluded[] = {1};
    ncclComm_t pair = nullptr;
    const std::int64_t start = now_ms();
    TUTTI_NCCL_TRY(ncclCommShrink(comm, excluded, 1, &pair, nullptr, NCCL_SHRINK_ABORT));
    TUTTI_NCCL_WANT(now_ms() - start < test::patience().count());
    if (std::string wrong = check_sum(pair, 3); !wrong.empty()) return wrong;
    TUTTI_NCCL_TRY(ncclCommDestroy(pair));
    return {};
  });
  EXPECT_EQ(status_of(children[0]), 0);
  EXPECT_EQ(status_of(children[1]), 128 + SIGKILL);
  EXPECT_EQ(status_of(children[2]), 0);
}

TEST(NcclLife, AbortReturnsInTimeWhileAPeerIsDead) {
  const std::vector<pid_t> children = start_processes(2, [](ncclComm_t comm, int rank, int) -> std::string {
    if (rank == 1) raise(SIGKILL);
    std::thread aborter([comm] {
      // By then the other thread usually waits in its call. Aborting earlier is also allowed.
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const std::int64_t start = now_ms();
      EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
      EXPECT_LT(now_ms() - start, test::patience().count()) << "on an idle machine it takes at most one second";
    });
    std::vector<float> values(1 << 20);
    const ncclResult_t ended =
        ncclAllReduce(values.data(), values.data(), values.size(), ncclFloat, ncclSum, comm, nullptr);
    aborter.join();
    if (ended != ncclRemoteError && ended != ncclInvalidArgument) return describe_failure("all-reduce", ended);
    _exit(::testing::Test::HasFailure() ? 1 : 0);  // the communicator was aborted
  });
  EXPECT_EQ(status_of(children[0]), 0);
  EXPECT_EQ(status_of(children[1]), 128 + SIGKILL);
}

TEST(NcclLife, ACallThatWaitsIsAborted) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclComm_t comms[2] = {};
  ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), ncclSuccess) << ncclGetLastError(nullptr);
  std::atomic<pid_t> calling = 0;
  std::thread caller([&] {
    calling = gettid();
    std::int32_t value = 0;
    EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comms[0], nullptr), ncclRemoteError);
  });
  EXPECT_TRUE(test::eventually([&] { return calling != 0; }) && test::falls_asleep(calling));
  const std::int64_t start = now_ms();
  EXPECT_EQ(ncclCommAbort(comms[0]), ncclSuccess);
  EXPECT_LT(now_ms() - start, test::patience().count()) << "on an idle machine it takes at most one second";
  caller.join();
  EXPECT_EQ(ncclCommAbort(comms[1]), ncclSuccess);
  EXPECT_EQ(ncclCommAbort(comms[1]), ncclInvalidArgument);  // already destroyed
}

std::size_t entries(const char* folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

std::size_t mapped_kib() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  file >> pages;
  return pages * static_cast<std::size_t>(getpagesize()) / 1024;
}

// Runs in its own process, so that memory which other tests have left in the allocator is not counted.
TEST(NcclLife, AThousandOfThemLeaveNothing) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's own threads and memory would be counted";
#endif
  const pid_t child = fork();
  if (child == 0) {
    alarm(kLongestChildS);
    const auto cycle = [] {
      ncclComm_t comms[2] = {};
      if (ncclCommInitAll(comms, 2, nullptr) != ncclSuccess) _exit(2);
      float values[2] = {1, 2};
      ncclGroupStart();
      for (int rank = 0; rank < 2; ++rank) {
        ncclAllReduce(&values[rank], &values[rank], 1, ncclFloat, ncclSum, comms[rank], nullptr);
      }
      if (ncclGroupEnd() != ncclSuccess || values[0] != 3 || values[1] != 3) _exit(3);
      for (const ncclComm_t comm : comms) {
        if (ncclCommDestroy(comm) != ncclSuccess) _exit(4);
      }
    };
    for (int i = 0; i < 100; ++i) cycle();
    const std::size_t descriptors = entries("/proc/self/fd");
    const std::size_t threads = entries("/proc/self/task");
    const std::size_t memory = mapped_kib();
    for (int i = 0; i < 900; ++i) cycle();
    if (entries("/proc/self/fd") != descriptors) _exit(5);
    if (entries("/proc/self/task") != threads) _exit(6);
    if (mapped_kib() > memory + 16 * 1024) _exit(7);
    _exit(0);
  }
  EXPECT_EQ(status_of(child), 0) << "status 5: descriptors, 6: threads, 7: memory was not released";
}

// Returns the first byte of the IPv4 address in a new id that a process with these variables creates. 0 if it has
// none.
int first_byte_of_address(const std::vector<std::pair<const char*, const char*>>& environment) {
  const pid_t child = fork();
  if (child == 0) {
    for (const char* const name : {"TUTTI_INTERFACE", "NCCL_SOCKET_IFNAME"}) unsetenv(name);
    for (const auto& [name, value] : environment) setenv(name, value, 1);
    ncclUniqueId id;
    if (ncclGetUniqueId(&id) != ncclSuccess || id.internal[9] != 4) _exit(0);
    _exit(static_cast<unsigned char>(id.internal[12]));  // src/bootstrap/unique_id_parts.h
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

// Whether this machine has an IPv4 address other than loopback, on an interface that is up.
bool has_outward_address() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return false;
  bool found = false;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    const bool inet = one->ifa_addr != nullptr && one->ifa_addr->sa_family == AF_INET;
    found |= inet && (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) == 0;
  }
  freeifaddrs(all);
  return found;
}

TEST(NcclIds, AreOnLoopbackIfTheLauncherSaysThatAllRanksAreOnThisMachine) {
  EXPECT_EQ(first_byte_of_address(
                {{"TUTTI_RANK", "0"}, {"TUTTI_WORLD_SIZE", "2"}, {"TUTTI_LOCAL_RANK", "0"}, {"TUTTI_LOCAL_SIZE", "2"}}),
            127);
  EXPECT_EQ(first_byte_of_address({{"TORCHELASTIC_RUN_ID", "1"},
                                   {"RANK", "0"},
                                   {"WORLD_SIZE", "2"},
                                   {"LOCAL_RANK", "0"},
                                   {"LOCAL_WORLD_SIZE", "2"},
                                   {"MASTER_ADDR", "some-machine"},
                                   {"MASTER_PORT", "29500"}}),
            127);
  EXPECT_EQ(first_byte_of_address({{"NCCL_SOCKET_IFNAME", "lo"}}), 127);
}

// NCCL programs run on several machines without any setting. So an id contains a loopback address only if the
// machine has no other address.
TEST(NcclIds, CanBeReachedFromOtherMachinesIfNoLauncherIsKnown) {
  EXPECT_EQ(first_byte_of_address({}) == 127, !has_outward_address());
}

}  // namespace
}  // namespace tutti::nccl_test

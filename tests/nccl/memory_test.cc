// Tests of memory allocation, registration, windows, one-sided calls, and sums with factors that the program
// provides.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "nccl/elements.h"
#include "nccl/ranks.h"
#include "tests/support/shared_object.h"

namespace tutti::nccl_test {
namespace {

TEST(NcclMemory, IsGivenAndTakenBack) {
  void* data = nullptr;
  ASSERT_EQ(ncclMemAlloc(&data, 12345), ncclSuccess) << ncclGetLastError(nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % NCCL_WIN_REQUIRED_ALIGNMENT, 0u);
  std::memset(data, 1, 12345);
  EXPECT_EQ(ncclMemFree(data), ncclSuccess);
  EXPECT_EQ(ncclMemFree(data), ncclInvalidArgument);
  EXPECT_EQ(ncclMemAlloc(nullptr, 1), ncclInvalidArgument);
  EXPECT_EQ(ncclMemAlloc(&data, 0), ncclSuccess);
  EXPECT_EQ(data, nullptr);
  EXPECT_EQ(ncclMemFree(nullptr), ncclSuccess);
  EXPECT_EQ(ncclMemAlloc(&data, std::size_t{1} << 60), ncclSystemError);
}

TEST(NcclMemory, RegisteredServesCollectives) {
  as_processes(3, [](ncclComm_t comm, int rank, int) -> std::string {
    constexpr std::size_t kCount = 300'000;
    void* data = nullptr;
    void* handle = nullptr;
    TUTTI_NCCL_TRY(ncclMemAlloc(&data, kCount * sizeof(float)));
    TUTTI_NCCL_TRY(ncclCommRegister(comm, data, kCount * sizeof(float), &handle));
    auto* values = static_cast<float*>(data);
    for (int round = 0; round < 3; ++round) {
      std::fill(values, values + kCount, static_cast<float>(rank + 1));
      TUTTI_NCCL_TRY(ncclAllReduce(data, data, kCount, ncclFloat, ncclSum, comm, nullptr));
      TUTTI_NCCL_WANT(std::all_of(values, values + kCount, [](float value) { return value == 6; }));
    }
    TUTTI_NCCL_TRY(ncclCommDeregister(comm, handle));
    TUTTI_NCCL_WANT(ncclCommDeregister(comm, handle) == ncclInvalidArgument);
    TUTTI_NCCL_WANT(values[7] == 6);  // the memory still belongs to the program
    TUTTI_NCCL_TRY(ncclMemFree(data));
    std::vector<float> plain(1000);  // any memory may be registered
    TUTTI_NCCL_TRY(ncclCommRegister(comm, plain.data(), 4000, &handle));
    TUTTI_NCCL_TRY(ncclCommDeregister(comm, handle));
    return {};
  });
}

// Every rank puts a block into every rank's window. Its signals show a rank when all blocks have arrived.
std::string check_puts(ncclComm_t comm, int rank, int ranks) {
  constexpr std::size_t kBlock = 200'000;  // elements; longer than the slots of the connections
  void* data = nullptr;
  ncclWindow_t window = nullptr;
  const std::size_t bytes = kBlock * sizeof(std::int32_t) * static_cast<std::size_t>(ranks);
  TUTTI_NCCL_TRY(ncclMemAlloc(&data, bytes));
  TUTTI_NCCL_TRY(ncclCommWindowRegister(comm, data, bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
  void* user = nullptr;
  TUTTI_NCCL_TRY(ncclWinGetUserPtr(comm, window, &user));
  TUTTI_NCCL_WANT(user == data);
  std::vector<std::int32_t> block(kBlock);
  for (int round = 1; round <= 3; ++round) {
    for (int peer = 0; peer < ranks; ++peer) {
      std::iota(block.begin(), block.end(), 1000 * rank + 7 * peer + round);
      const std::size_t offset = static_cast<std::size_t>(rank) * kBlock * sizeof(std::int32_t);
      TUTTI_NCCL_TRY(ncclPutSignal(block.data(), kBlock, ncclInt32, peer, window, offset, 2, 0, 0, comm, nullptr));
    }
    std::vector<ncclWaitSignalDesc_t> wanted;
    for (int peer = 0; peer < ranks; ++peer) wanted.push_back({.opCnt = 1, .peer = peer, .sigIdx = 2, .ctx = 0});
    TUTTI_NCCL_TRY(ncclWaitSignal(ranks, wanted.data(), comm, nullptr));
    const auto* values = static_cast<const std::int32_t*>(data);
    for (int peer = 0; peer < ranks; ++peer) {
      for (std::size_t i = 0; i < kBlock; ++i) {
        const std::size_t at = static_cast<std::size_t>(peer) * kBlock + i;
        TUTTI_NCCL_WANT(values[at] == 1000 * peer + 7 * rank + round + static_cast<std::int32_t>(i));
      }
    }
    // All ranks have checked their blocks, so the next round may overwrite them. These signals have another number,
    // and are sent in a group.
    TUTTI_NCCL_TRY(ncclGroupStart());
    for (ncclWaitSignalDesc_t& one : wanted) one.sigIdx = 5;
    TUTTI_NCCL_TRY(ncclWaitSignal(ranks, wanted.data(), comm, nullptr));
    for (int peer = 0; peer < ranks; ++peer) TUTTI_NCCL_TRY(ncclSignal(peer, 5, 0, 0, comm, nullptr));
    TUTTI_NCCL_TRY(ncclGroupEnd());
  }
  TUTTI_NCCL_WANT(ncclPutSignal(block.data(), 2, ncclInt32, 0, window, bytes - 4, 0, 0, 0, comm, nullptr) ==
                  ncclInvalidArgument);
  TUTTI_NCCL_WANT(ncclPutSignal(block.data(), 2, ncclInt32, ranks, window, 0, 0, 0, 0, comm, nullptr) ==
                  ncclInvalidArgument);
  TUTTI_NCCL_TRY(ncclCommWindowDeregister(comm, window));
  TUTTI_NCCL_WANT(ncclCommWindowDeregister(comm, window) == ncclInvalidArgument);
  TUTTI_NCCL_WANT(ncclPutSignal(block.data(), 2, ncclInt32, 0, window, 0, 0, 0, 0, comm, nullptr) ==
                  ncclInvalidArgument);
  TUTTI_NCCL_TRY(ncclMemFree(data));
  return {};
}

TEST(NcclWindows, TakePutsAmongThreads) { as_threads(3, check_puts); }
TEST(NcclWindows, TakePutsAmongProcesses) { as_processes(4, check_puts); }
TEST(NcclWindows, TakePutsOfARankToItself) { as_threads(1, check_puts); }

std::string make_window(ncclComm_t comm, std::size_t bytes, void** data, ncclWindow_t* window) {
  TUTTI_NCCL_TRY(ncclMemAlloc(data, bytes));
  TUTTI_NCCL_TRY(ncclCommWindowRegister(comm, *data, bytes, window, NCCL_WIN_DEFAULT));
  return {};
}

// Each rank sends more puts than may be in flight at once, and waits for a signal only after its last put.
std::string check_many_puts(ncclComm_t comm, int rank, int ranks) {
  constexpr int kPuts = 1500;
  void* data = nullptr;
  ncclWindow_t window = nullptr;
  const auto slots = static_cast<std::size_t>(ranks);
  TUTTI_NCCL_WANT(make_window(comm, slots * sizeof(int), &data, &window).empty());
  for (int put = 1; put <= kPuts; ++put) {
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      const std::size_t offset = static_cast<std::size_t>(rank) * sizeof(int);
      TUTTI_NCCL_TRY(ncclPutSignal(&put, 1, ncclInt32, peer, window, offset, 0, 0, 0, comm, nullptr));
    }
  }
  for (int peer = 0; peer < ranks; ++peer) {
    ncclWaitSignalDesc_t wanted{.opCnt = kPuts, .peer = peer, .sigIdx = 0, .ctx = 0};
    if (peer != rank) TUTTI_NCCL_TRY(ncclWaitSignal(1, &wanted, comm, nullptr));
    if (peer != rank) TUTTI_NCCL_WANT(static_cast<int*>(data)[peer] == kPuts);
  }
  TUTTI_NCCL_TRY(ncclCommWindowDeregister(comm, window));
  TUTTI_NCCL_TRY(ncclMemFree(data));
  return {};
}

TEST(NcclWindows, RanksThatPutToEachOtherWithoutWaitingGoOn) { as_processes(2, check_many_puts); }

// Each rank waits for the signal of the rank before it, which arrives after more puts than the connection holds.
// These puts go to a rank that is waiting for yet another rank. The last rank has sent its signal before.
std::string check_ring_of_waits(ncclComm_t comm, int rank, int ranks) {
  constexpr int kPuts = 1500;
  void* data = nullptr;
  ncclWindow_t window = nullptr;
  TUTTI_NCCL_WANT(make_window(comm, 4096, &data, &window).empty());
  const int next = (rank + 1) % ranks;
  const int before = (rank + ranks - 1) % ranks;
  for (int put = 0; put < kPuts; ++put) TUTTI_NCCL_TRY(ncclSignal(next, 1, 0, 0, comm, nullptr));
  TUTTI_NCCL_TRY(ncclSignal(before, 2, 0, 0, comm, nullptr));
  ncclWaitSignalDesc_t last{.opCnt = 1, .peer = next, .sigIdx = 2, .ctx = 0};
  TUTTI_NCCL_TRY(ncclWaitSignal(1, &last, comm, nullptr));
  ncclWaitSignalDesc_t all{.opCnt = kPuts, .peer = before, .sigIdx = 1, .ctx = 0};
  TUTTI_NCCL_TRY(ncclWaitSignal(1, &all, comm, nullptr));
  TUTTI_NCCL_TRY(ncclCommWindowDeregister(comm, window));
  TUTTI_NCCL_TRY(ncclMemFree(data));
  return {};
}

TEST(NcclWindows, AWaitForOneRankTakesWhatOthersPut) { as_processes(3, check_ring_of_waits); }

// Rank 1 exits. The first put of rank 0 to it must fail, whether or not the two ranks have communicated before.
struct DeadTarget {
  std::atomic<int> ready;
  std::atomic<bool> ended;
};

std::string check_put_to_dead(ncclComm_t comm, int rank, DeadTarget& state, bool talked) {
  void* data = nullptr;
  ncclWindow_t window = nullptr;
  TUTTI_NCCL_WANT(make_window(comm, 4096, &data, &window).empty());
  if (talked && rank == 0) TUTTI_NCCL_TRY(ncclSignal(1, 0, 0, 0, comm, nullptr));
  ncclWaitSignalDesc_t wanted{.opCnt = 1, .peer = 0, .sigIdx = 0, .ctx = 0};
  if (talked && rank == 1) TUTTI_NCCL_TRY(ncclWaitSignal(1, &wanted, comm, nullptr));
  ++state.ready;
  TUTTI_NCCL_WANT(test::eventually([&] { return state.ready == 2; }));
  if (rank == 1) _exit(0);
  TUTTI_NCCL_WANT(test::eventually([&] { return state.ended.load(); }));
  std::this_thread::sleep_for(std::chrono::seconds(1));  // after this time, even the first put must fail
  const std::int64_t start_ms = now_ms();
  const int value = 5;
  const ncclResult_t put = ncclPutSignal(&value, 1, ncclInt32, 1, window, 0, 0, 0, 0, comm, nullptr);
  std::fprintf(stderr, "the put returned after %lld ms\n", static_cast<long long>(now_ms() - start_ms));
  TUTTI_NCCL_WANT(put == ncclRemoteError);
  TUTTI_NCCL_WANT(std::string(ncclGetLastError(nullptr)).find("rank 1 is gone") != std::string::npos);
  TUTTI_NCCL_TRY(ncclCommAbort(comm));
  _exit(0);  // ncclCommDestroy() would report the lost peer again
}

class NcclWindowsOver : public testing::TestWithParam<const char*> {};

TEST_P(NcclWindowsOver, APutToARankThatHasEndedIsAnError) {
  setenv("TUTTI_TRANSPORT", GetParam(), 1);
  for (const bool talked : {false, true}) {
    DeadTarget& state = test::shared_object<DeadTarget>();
    const std::vector<pid_t> children = start_processes(
        2, [&](ncclComm_t comm, int rank, int) { return check_put_to_dead(comm, rank, state, talked); });
    EXPECT_EQ(status_of(children[1]), 0);
    state.ended = true;
    EXPECT_EQ(status_of(children[0]), 0) << (talked ? "after other messages" : "as the first message");
  }
  unsetenv("TUTTI_TRANSPORT");
}

INSTANTIATE_TEST_SUITE_P(Transports, NcclWindowsOver, testing::Values("shm", "tcp"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(NcclWindows, AWaitForASignalThatNeverComesIsAborted) {
  as_threads(2, [](ncclComm_t comm, int rank, int) -> std::string {
    alignas(4096) static std::byte pages[2][4096];
    ncclWindow_t window = nullptr;
    TUTTI_NCCL_WANT(ncclSignal(0, 0, 0, 0, comm, nullptr) == ncclInvalidUsage);  // there is no window yet
    TUTTI_NCCL_WANT(ncclCommWindowRegister(comm, pages[rank] + 8, 64, &window, 0) == ncclInvalidArgument);
    TUTTI_NCCL_WANT(ncclCommWindowRegister(comm, pages[rank], 64, &window, 64) == ncclInvalidArgument);
    TUTTI_NCCL_TRY(ncclCommWindowRegister(comm, pages[rank], 4096, &window, NCCL_WIN_DEFAULT));
    if (rank == 1) return {};
    std::thread revoker([comm, calling = gettid()] {
      EXPECT_TRUE(test::falls_asleep(calling));
      EXPECT_EQ(ncclCommRevoke(comm, 0), ncclSuccess);
    });
    ncclWaitSignalDesc_t wanted{.opCnt = 1, .peer = 1, .sigIdx = 0, .ctx = 0};
    const ncclResult_t ended = ncclWaitSignal(1, &wanted, comm, nullptr);
    revoker.join();
    TUTTI_NCCL_WANT(ended == ncclRemoteError);
    return {};
  });
}

std::string check_factors(ncclComm_t comm, int rank, int ranks) {
  for (int type = 0; type < ncclNumTypes; ++type) {
    const auto data_type = static_cast<ncclDataType_t>(type);
    for (const auto residence : {ncclScalarHostImmediate, ncclScalarDevice}) {
      Elements factor(data_type, 1);
      factor.set(0, rank == 0 ? 2 : 1);
      ncclRedOp_t op{};
      TUTTI_NCCL_TRY(ncclRedOpCreatePreMulSum(&op, factor.data(), data_type, residence, comm));
      // An immediate factor has been read already. The other type is read by the call.
      factor.set(0, residence == ncclScalarHostImmediate ? 0 : rank == 0 ? 3 : 1);
      Elements values(data_type, 100);
      for (std::size_t i = 0; i < 100; ++i) values.set(i, 1);
      TUTTI_NCCL_TRY(ncclAllReduce(values.data(), values.data(), 100, data_type, op, comm, nullptr));
      const int expected = ranks - 1 + (residence == ncclScalarHostImmediate ? 2 : 3);
      for (std::size_t i = 0; i < 100; ++i) TUTTI_NCCL_WANT(values.get(i) == expected);
      const ncclDataType_t other = data_type == ncclInt8 ? ncclUint8 : ncclInt8;
      TUTTI_NCCL_WANT(ncclAllReduce(values.data(), values.data(), 1, other, op, comm, nullptr) == ncclInvalidArgument);
      TUTTI_NCCL_TRY(ncclRedOpDestroy(op, comm));
      TUTTI_NCCL_WANT(ncclRedOpDestroy(op, comm) == ncclInvalidArgument);
      TUTTI_NCCL_WANT(ncclAllReduce(values.data(), values.data(), 1, data_type, op, comm, nullptr) ==
                      ncclInvalidArgument);
    }
  }
  return {};
}

TEST(NcclOps, MultiplyByEachRanksFactor) { as_threads(3, check_factors); }

TEST(NcclOps, OfAnotherCommunicatorAreRefused) {
  ncclComm_t comms[2] = {};
  ASSERT_EQ(ncclCommInitAll(comms, 1, nullptr), ncclSuccess) << ncclGetLastError(nullptr);
  ASSERT_EQ(ncclCommInitAll(comms + 1, 1, nullptr), ncclSuccess) << ncclGetLastError(nullptr);
  float factor = 2;
  float value = 1;
  ncclRedOp_t op{};
  ASSERT_EQ(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, comms[0]), ncclSuccess);
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclFloat, op, comms[1], nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclRedOpDestroy(op, comms[1]), ncclInvalidArgument);
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclFloat, op, comms[0], nullptr), ncclSuccess);
  EXPECT_EQ(value, 2);
  for (const ncclComm_t comm : comms) EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

}  // namespace
}  // namespace tutti::nccl_test

// Tests of NCCL's functions on device memory, called as a CUDA program calls them, with the fake CUDA driver, whose
// kernel launches run the device code. They cover groups, several streams, graphs, factors in device memory,
// windows, suspension, and calls that are rejected.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>

#include "cuda/pointer.h"
#include "nccl.h"
#include "nccl/ranks.h"
#include "tests/device/calls/calls_support.h"

namespace tutti::testing {
namespace {

constexpr std::size_t kCount = 3000;

cudaStream_t stream_of(const Gpu& gpu) { return reinterpret_cast<cudaStream_t>(gpu.stream()); }

// The objects of one rank, which belong to one thread.
struct Rank {
  std::unique_ptr<Gpu> gpu;
  ncclComm_t comm = nullptr;
  std::unique_ptr<cuda::DeviceMemory> memory;

  void* data() const { return pointer(*memory); }
  void put(const std::vector<float>& values) const {
    Bytes bytes(memory->bytes());
    std::memcpy(bytes.data(), values.data(), values.size() * sizeof(float));
    gpu->put(*memory, bytes);
  }
  std::vector<float> get(std::size_t count) const {
    const Bytes bytes = gpu->get(*memory);
    std::vector<float> values(count);
    std::memcpy(values.data(), bytes.data(), count * sizeof(float));
    return values;
  }
};

cuda::CUcontext context_of(const Rank& rank) { return cuda::classify(driver(), rank.data())->context; }

// One thread has all ranks, each on its own device, as in NCCL's single-process programs.
std::vector<Rank> ranks_of_one_thread(const std::vector<int>& devices) {
  driver();
  std::vector<ncclComm_t> comms(devices.size());
  EXPECT_EQ(ncclCommInitAll(comms.data(), static_cast<int>(devices.size()), devices.data()), ncclSuccess)
      << ncclGetLastError(nullptr);
  std::vector<Rank> ranks;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    Rank& rank = ranks.emplace_back();
    rank.comm = comms[i];
    rank.gpu = std::make_unique<Gpu>(devices[i]);
    rank.memory = std::make_unique<cuda::DeviceMemory>(rank.gpu->allocate(kCount * sizeof(float) * devices.size()));
    int device = -1;
    EXPECT_EQ(ncclCommCuDevice(rank.comm, &device), ncclSuccess);
    EXPECT_EQ(device, devices[i]);
  }
  return ranks;
}

// Destroys the ranks in reverse order, because CUDA contexts form a stack.
void end(std::vector<Rank>& ranks) {
  for (const Rank& rank : ranks) EXPECT_EQ(ncclCommDestroy(rank.comm), ncclSuccess) << ncclGetLastError(nullptr);
  while (!ranks.empty()) ranks.pop_back();
}

std::vector<float> filled(float value) { return std::vector<float>(kCount, value); }

class NcclDevices : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(NcclDevices, AddInGroupsOfOneThread) {
  std::vector<Rank> ranks = ranks_of_one_thread(GetParam());
  const auto size = static_cast<float>(ranks.size());
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i].put(filled(static_cast<float>(i + 1)));
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (const Rank& rank : ranks) {
      EXPECT_EQ(ncclAllReduce(rank.data(), rank.data(), kCount, ncclFloat, ncclSum, rank.comm, stream_of(*rank.gpu)),
                ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
    for (const Rank& rank : ranks) EXPECT_EQ(rank.get(kCount), filled(size * (size + 1) / 2));
  }
  // A ring: rank i's block goes to rank i + 1, which stores it behind its own block. The receive uses another stream
  // than the send.
  std::vector<cuda::Stream> others;
  for (const Rank& rank : ranks) {
    const auto scope = cuda::ContextScope::enter(driver(), context_of(rank));
    others.push_back(*cuda::Stream::create(driver()));
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i].put(filled(static_cast<float>(10 * i)));
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Rank& rank = ranks[i];
    const int last = static_cast<int>((i + ranks.size() - 1) % ranks.size());
    auto* behind = static_cast<float*>(rank.data()) + kCount;
    EXPECT_EQ(ncclSend(rank.data(), kCount, ncclFloat, static_cast<int>((i + 1) % ranks.size()), rank.comm,
                       stream_of(*rank.gpu)),
              ncclSuccess);
    EXPECT_EQ(ncclRecv(behind, kCount, ncclFloat, last, rank.comm, reinterpret_cast<cudaStream_t>(others[i].handle())),
              ncclSuccess);
  }
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    EXPECT_TRUE(others[i].synchronize().ok());
    const std::vector<float> both = ranks[i].get(2 * kCount);
    EXPECT_EQ(both.back(), static_cast<float>(10 * ((i + ranks.size() - 1) % ranks.size())));
  }
  others.clear();
  end(ranks);
}
INSTANTIATE_TEST_SUITE_P(Devices, NcclDevices,
                         ::testing::Values(std::vector<int>{0, 1}, std::vector<int>{0, 0}, std::vector<int>{0, 1, 1}));

TEST(NcclDevice, CallsAreCapturedAndReplayed) {
  std::vector<Rank> ranks = ranks_of_one_thread({0, 1});
  std::vector<cuda::CUgraphExec> replays;
  for (const Rank& rank : ranks) {
    ASSERT_EQ(driver().api().stream_begin_capture(rank.gpu->stream(), cuda::CaptureMode::kThreadLocal),
              cuda::CUresult::kSuccess);
  }
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (const Rank& rank : ranks) {
    EXPECT_EQ(ncclAllReduce(rank.data(), rank.data(), kCount, ncclFloat, ncclSum, rank.comm, stream_of(*rank.gpu)),
              ncclSuccess);
  }
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
  for (const Rank& rank : ranks) {
    cuda::CUgraph graph = nullptr;
    ASSERT_EQ(driver().api().stream_end_capture(rank.gpu->stream(), &graph), cuda::CUresult::kSuccess);
    cuda::CUgraphExec replay = nullptr;
    ASSERT_EQ(driver().api().graph_instantiate(&replay, graph, 0), cuda::CUresult::kSuccess);
    EXPECT_EQ(driver().api().graph_destroy(graph), cuda::CUresult::kSuccess);
    replays.push_back(replay);
  }
  for (int round = 1; round <= 2; ++round) {
    for (const Rank& rank : ranks) rank.put(filled(static_cast<float>(round)));
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      ASSERT_EQ(driver().api().graph_launch(replays[i], ranks[i].gpu->stream()), cuda::CUresult::kSuccess);
    }
    for (const Rank& rank : ranks) EXPECT_EQ(rank.get(kCount), filled(static_cast<float>(2 * round)));
  }
  for (const cuda::CUgraphExec replay : replays) {
    EXPECT_EQ(driver().api().graph_exec_destroy(replay), cuda::CUresult::kSuccess);
  }
  end(ranks);
}

TEST(NcclDevice, AFactorInDeviceMemoryIsReadWhenTheCallRuns) {
  std::vector<Rank> ranks = ranks_of_one_thread({0});
  const Rank& rank = ranks[0];
  const cuda::DeviceMemory factor = rank.gpu->allocate(sizeof(float));
  ncclRedOp_t op{};
  ASSERT_EQ(ncclRedOpCreatePreMulSum(&op, pointer(factor), ncclFloat, ncclScalarDevice, rank.comm), ncclSuccess);
  const float value = 2.5F;
  Bytes bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  rank.gpu->put(factor, bytes);
  rank.put(filled(4));
  ASSERT_EQ(ncclAllReduce(rank.data(), rank.data(), kCount, ncclFloat, op, rank.comm, stream_of(*rank.gpu)),
            ncclSuccess)
      << ncclGetLastError(nullptr);
  EXPECT_EQ(rank.get(kCount), filled(10));
  end(ranks);
}

// A stream whose work waits for release().
class BlockedStream {
 public:
  explicit BlockedStream(cuda::CUstream stream) {
    const auto wait = [](void* open) {
      EXPECT_TRUE(test::eventually([&] { return static_cast<std::atomic<bool>*>(open)->load(); }));
    };
    EXPECT_EQ(driver().api().launch_host_func(stream, wait, &open_), cuda::CUresult::kSuccess);
  }
  ~BlockedStream() { release(); }
  BlockedStream(const BlockedStream&) = delete;
  BlockedStream& operator=(const BlockedStream&) = delete;
  void release() { open_ = true; }

 private:
  std::atomic<bool> open_ = false;
};

TEST(NcclDevice, TheEventOfACallIsRecordedInItsStreamBeforeItsWork) {
  std::vector<Rank> ranks = ranks_of_one_thread({0});
  const Rank& rank = ranks[0];
  rank.put(filled(3));
  auto event = cuda::Event::create(driver());
  ASSERT_TRUE(event.ok());
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.launchCompletionEvent = reinterpret_cast<cudaEvent_t>(event->handle());
  const auto call = [&](const ncclCollConfig_t* given) {
    return ncclAllReduceConfig(rank.data(), rank.data(), kCount, ncclFloat, ncclSum, rank.comm, stream_of(*rank.gpu),
                               given);
  };
  EXPECT_TRUE(*event->finished()) << "an event that was never recorded counts as finished";
  BlockedStream blocked(rank.gpu->stream());
  ASSERT_EQ(call(&config), ncclSuccess) << ncclGetLastError(nullptr);
  EXPECT_FALSE(*event->finished());
  blocked.release();
  EXPECT_TRUE(event->synchronize().ok());
  EXPECT_EQ(rank.get(kCount), filled(3));
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(call(&config), ncclSuccess);
  EXPECT_EQ(call(nullptr), ncclSuccess);
  EXPECT_EQ(call(&config), ncclInvalidUsage) << "a second event on the communicator";
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("has a launchCompletionEvent"), std::string::npos)
      << ncclGetLastError(nullptr);
  end(ranks);
}

TEST(NcclDevice, ThePathsBetweenGpusAreTestedAtSetUp) {
  setenv("TUTTI_SELFTEST", "1", 1);
  setenv("TUTTI_LOG", "info", 1);
  ::testing::internal::CaptureStderr();
  std::vector<Rank> ranks = ranks_of_one_thread({0, 1, 1});
  const std::string log = ::testing::internal::GetCapturedStderr();
  unsetenv("TUTTI_SELFTEST");
  unsetenv("TUTTI_LOG");
  EXPECT_NE(log.find("path test: 6 paths over shared memory"), std::string::npos) << log;
  EXPECT_NE(log.find("path test: 6 paths between GPUs"), std::string::npos) << log;
  EXPECT_NE(log.find(", GPU 1)"), std::string::npos) << log;
  end(ranks);
}

TEST(NcclDevice, MoreMemoryThanTheDeviceHasIsTheDriversRefusal) {
  std::vector<Rank> ranks = ranks_of_one_thread({0});
  const auto scope = cuda::ContextScope::enter(driver(), context_of(ranks[0]));
  void* data = nullptr;
  EXPECT_EQ(ncclMemAlloc(&data, std::size_t{1} << 50), ncclUnhandledCudaError);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("OUT_OF_MEMORY"), std::string::npos)
      << ncclGetLastError(nullptr);
  EXPECT_EQ(data, nullptr);
  end(ranks);
}

TEST(NcclDevice, HostMemoryWaitsForTheStreamAndCannotBeCaptured) {
  std::vector<Rank> ranks = ranks_of_one_thread({0});
  const Rank& rank = ranks[0];
  rank.put(filled(3));
  std::vector<float> values(kCount);
  ASSERT_EQ(driver().api().memcpy_dtoh_async(values.data(), rank.memory->address(), kCount * sizeof(float),
                                             rank.gpu->stream()),
            cuda::CUresult::kSuccess);
  std::vector<float> sums(kCount);
  ASSERT_EQ(ncclAllReduce(values.data(), sums.data(), kCount, ncclFloat, ncclSum, rank.comm, stream_of(*rank.gpu)),
            ncclSuccess);
  EXPECT_EQ(sums, filled(3));
  ASSERT_EQ(driver().api().stream_begin_capture(rank.gpu->stream(), cuda::CaptureMode::kThreadLocal),
            cuda::CUresult::kSuccess);
  EXPECT_EQ(ncclAllReduce(values.data(), sums.data(), kCount, ncclFloat, ncclSum, rank.comm, stream_of(*rank.gpu)),
            ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(rank.comm)).find("captures"), std::string::npos);
  cuda::CUgraph graph = nullptr;
  ASSERT_EQ(driver().api().stream_end_capture(rank.gpu->stream(), &graph), cuda::CUresult::kSuccess);
  EXPECT_EQ(driver().api().graph_destroy(graph), cuda::CUresult::kSuccess);
  end(ranks);
}

TEST(NcclDevice, SuspensionGivesMemoryBackAndResumingTakesIt) {
  std::vector<Rank> ranks = ranks_of_one_thread({0, 1});
  const auto all = [&](auto call) {
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (const Rank& rank : ranks) EXPECT_EQ(call(rank.comm), ncclSuccess);
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
  };
  const auto statistic = [&](ncclCommMemStat_t which) {
    std::uint64_t value = ~std::uint64_t{0};
    EXPECT_EQ(ncclCommMemStats(ranks[1].comm, which, &value), ncclSuccess);
    return value;
  };
  const std::uint64_t before = statistic(ncclStatGpuMemTotal);
  EXPECT_GT(before, 0u);
  all([](ncclComm_t comm) { return ncclCommSuspend(comm, NCCL_SUSPEND_MEM); });
  EXPECT_EQ(statistic(ncclStatGpuMemTotal), 0u);
  EXPECT_EQ(statistic(ncclStatGpuMemSuspended), 1u);
  all([](ncclComm_t comm) { return ncclCommResume(comm); });
  EXPECT_EQ(statistic(ncclStatGpuMemTotal), before);
  for (const Rank& rank : ranks) rank.put(filled(5));
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (const Rank& rank : ranks) {
    EXPECT_EQ(ncclAllReduce(rank.data(), rank.data(), kCount, ncclFloat, ncclSum, rank.comm, stream_of(*rank.gpu)),
              ncclSuccess);
  }
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
  for (const Rank& rank : ranks) EXPECT_EQ(rank.get(kCount), filled(10));
  end(ranks);
}

TEST(NcclDevice, WindowsTakePutsFromDeviceMemory) {
  std::vector<Rank> ranks = ranks_of_one_thread({0, 1});
  void* data[2] = {};
  ncclWindow_t windows[2] = {};
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto scope = cuda::ContextScope::enter(driver(), context_of(ranks[i]));
    ASSERT_EQ(ncclMemAlloc(&data[i], 2 * kCount * sizeof(float)), ncclSuccess) << ncclGetLastError(nullptr);
    EXPECT_EQ(ncclCommWindowRegister(ranks[i].comm, data[i], 2 * kCount * sizeof(float), &windows[i], 0), ncclSuccess);
  }
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
  for (std::size_t i = 0; i < 2; ++i) {
    ranks[i].put(filled(static_cast<float>(i + 7)));
    ASSERT_EQ(ncclPutSignal(ranks[i].data(), kCount, ncclFloat, static_cast<int>(1 - i), windows[i],
                            kCount * sizeof(float), 0, 0, 0, ranks[i].comm, stream_of(*ranks[i].gpu)),
              ncclSuccess)
        << ncclGetLastError(nullptr);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    ncclWaitSignalDesc_t wanted{.opCnt = 1, .peer = static_cast<int>(1 - i), .sigIdx = 0, .ctx = 0};
    ASSERT_EQ(ncclWaitSignal(1, &wanted, ranks[i].comm, stream_of(*ranks[i].gpu)), ncclSuccess)
        << ncclGetLastError(nullptr);
    std::vector<float> got(kCount);
    ASSERT_EQ(driver().api().memcpy_dtoh_async(got.data(),
                                               reinterpret_cast<cuda::CUdeviceptr>(data[i]) + kCount * sizeof(float),
                                               kCount * sizeof(float), ranks[i].gpu->stream()),
              cuda::CUresult::kSuccess);
    ranks[i].gpu->synchronize();
    EXPECT_EQ(got, filled(static_cast<float>(1 - i + 7)));
  }
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(ncclCommWindowDeregister(ranks[i].comm, windows[i]), ncclSuccess);
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  for (void* memory : data) EXPECT_EQ(ncclMemFree(memory), ncclSuccess) << ncclGetLastError(nullptr);
  end(ranks);
}

// Each rank is a thread with its own current device, as PyTorch's ranks are processes with their own device. The
// rank must take its device from the current context.
TEST(NcclDevice, RanksTakeTheDeviceThatIsCurrent) {
  driver();
  tutti::nccl_test::as_threads(2, [](ncclComm_t, int, int) -> std::string { return {}; });
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const Gpu gpu(rank);
      ncclComm_t comm = nullptr;
      ASSERT_EQ(ncclCommInitRank(&comm, 2, id, rank), ncclSuccess) << ncclGetLastError(nullptr);
      int device = -1;
      EXPECT_EQ(ncclCommCuDevice(comm, &device), ncclSuccess);
      EXPECT_EQ(device, rank);
      const cuda::DeviceMemory memory = gpu.allocate(64);
      gpu.put(memory, Bytes(64));
      EXPECT_EQ(ncclAllReduce(pointer(memory), pointer(memory), 16, ncclFloat, ncclSum, comm, stream_of(gpu)),
                ncclSuccess)
          << ncclGetLastError(nullptr);
      gpu.synchronize();
      ncclResult_t state = ncclInternalError;
      EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
      EXPECT_EQ(state, ncclSuccess);
      EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tutti::testing

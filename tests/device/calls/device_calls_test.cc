// Tests of calls that the GPUs carry out, from the public API to the device code, on the fake driver. The ranks have
// one fake GPU each, share one, or both. Results must be equal to those of the host bit by bit, and work in streams
// must keep its order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/device/calls/calls_support.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;
using Kind = CollectiveKind;
using Devices = std::vector<std::int32_t>;

constexpr Kind kKinds[] = {Kind::kAllReduce,     Kind::kBroadcast, Kind::kReduce, Kind::kAllGather,
                           Kind::kReduceScatter, Kind::kAllToAll,  Kind::kGather, Kind::kScatter};

unsigned launches() {
  return small_devices().calls("cuLaunchKernel") + small_devices().calls("cuLaunchCooperativeKernel");
}

class DeviceCalls : public ::testing::TestWithParam<Devices> {};

// Sums of bfloat16 are rounded, so the results are equal only if the GPUs add in the same order as the host.
TEST_P(DeviceCalls, GiveTheBitsOfTheHost) {
  const Devices& devices = GetParam();
  Communicators host = ranks_on(Devices(devices.size(), CommunicatorOptions::kNoDevice));
  Communicators gpus = ranks_on(devices);
  for (const Kind kind : kKinds) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{777}, std::size_t{20'001} / kSizeDivisor}) {
      for (const bool in_place : {false, true}) {
        if (kind == Kind::kScatter && in_place) continue;  // only the root of a scatter can work in place
        CallShape shape{.kind = kind, .count = count, .in_place = in_place};
        if (count == 777) shape.type = DataType::kBfloat16;
        if (kind == Kind::kReduce) shape.algorithm = Algorithm::kDirect;
        const unsigned before = launches();
        EXPECT_EQ(outcome(gpus, shape, devices), outcome(host, shape, {}))
            << to_string(kind) << " " << count << (in_place ? " in place" : "");
        EXPECT_GT(launches(), before) << "no kernel was launched: the host carried out the call";
      }
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<Devices>& info) {
  std::string name = "On";
  for (const std::int32_t device : info.param) name += std::to_string(device);
  return name;
}
INSTANTIATE_TEST_SUITE_P(Ranks, DeviceCalls,
                         ::testing::Values(Devices{0}, Devices{0, 0}, Devices{0, 1}, Devices{0, 0, 0, 0},
                                           Devices{0, 1, 2, 3}, Devices{0, 0, 1, 1}, Devices{1, 0, 1}),
                         name_of);

// Every algorithm that GPUs can carry out, with lengths for both protocols. The elements are integers, so that the
// order of the additions does not matter.
TEST(DeviceCall, EveryAlgorithmIsRight) {
  const Devices devices = {0, 0, 1, 2};
  Communicators host = ranks_on(Devices(4, CommunicatorOptions::kNoDevice));
  Communicators gpus = ranks_on(devices);
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDoubleTree, Algorithm::kHalvingDoubling,
                                    Algorithm::kRecursiveDoubling, Algorithm::kOneShot, Algorithm::kTwoShot}) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{5}, std::size_t{9'000}, std::size_t{70'000} / kSizeDivisor}) {
      CallShape shape{.count = count, .algorithm = algorithm};
      EXPECT_EQ(outcome(gpus, shape, devices), outcome(host, shape, {})) << to_string(algorithm) << " " << count;
    }
  }
}

TEST(DeviceCall, ScaledSumsAndAverages) {
  const Devices devices = {0, 0, 1};
  Communicators gpus = ranks_on(devices);
  on_every_rank(gpus, [&](Communicator& rank) {
    const Gpu gpu(devices[static_cast<std::size_t>(rank.rank())]);
    const std::vector<float> values(300, static_cast<float>(rank.rank() + 1));
    Bytes bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    const cuda::DeviceMemory memory = gpu.allocate(bytes.size());
    const auto result = [&](ReduceOp op, CallOptions options) {
      gpu.put(memory, bytes);
      EXPECT_TRUE(rank.all_reduce(pointer(memory), pointer(memory), 300, DataType::kFloat32, op, options).ok());
      const Bytes got = gpu.get(memory);
      float first = 0;
      std::memcpy(&first, got.data() + 299 * sizeof(float), sizeof(first));
      return first;
    };
    EXPECT_EQ(result(ReduceOp::kAvg, gpu.options()), 2.0F);
    CallOptions scaled = gpu.options();
    scaled.scale.real = 0.5;
    EXPECT_EQ(result(ReduceOp::kPreMulSum, scaled), 3.0F);
  });
}

class DeviceStreams : public ::testing::TestWithParam<Devices> {};

TEST_P(DeviceStreams, CallsReturnBeforeTheyRanAndKeepTheOrderOfTheStream) {
  Communicators ranks = ranks_on(GetParam());
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(GetParam()[static_cast<std::size_t>(rank.rank())]);
    const cuda::DeviceMemory memory = gpu.allocate(1024);
    const cuda::DeviceMemory later = gpu.allocate(1024);
    test::BlockedStream held(driver(), gpu.stream());
    const cuda::DriverApi& api = driver().api();
    // The calls must use the value that the stream writes before them, and the copy after them must see their result.
    ASSERT_EQ(api.memset_d8_async(memory.address(), 3, 1024, gpu.stream()), cuda::CUresult::kSuccess);
    for (int call = 0; call < 3; ++call) {
      const Status status =
          rank.all_reduce(pointer(memory), pointer(memory), 1024, DataType::kInt8, ReduceOp::kSum, gpu.options());
      ASSERT_TRUE(status.ok()) << to_string(status.error());
    }
    ASSERT_EQ(api.memcpy_dtod_async(later.address(), memory.address(), 1024, gpu.stream()), cuda::CUresult::kSuccess);
    ASSERT_EQ(api.memset_d8_async(memory.address(), 9, 1024, gpu.stream()), cuda::CUresult::kSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // time in which a call could wrongly run
    EXPECT_EQ(api.stream_query(gpu.stream()), cuda::CUresult::kNotReady) << "the calls did not wait for the stream";
    held.release();
    EXPECT_EQ(gpu.get(later), Bytes(1024, std::byte{24}));
    EXPECT_EQ(gpu.get(memory), Bytes(1024, std::byte{9}));
  });
}

// Consecutive calls use two streams in turn. Only the communicator orders the calls.
TEST_P(DeviceStreams, CallsOfSeveralStreamsRunInTheirOrder) {
  Communicators ranks = ranks_on(GetParam());
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(GetParam()[static_cast<std::size_t>(rank.rank())]);
    auto other = *cuda::Stream::create(driver());
    const cuda::DeviceMemory memory = gpu.allocate(40'000);
    gpu.put(memory, Bytes(40'000, std::byte{1}));
    test::BlockedStream held(driver(), gpu.stream());
    for (int call = 0; call < 6; ++call) {
      CallOptions options = gpu.options();
      if (call % 2 == 1) options.stream = other.handle();
      const Status status =
          rank.all_reduce(pointer(memory), pointer(memory), 40'000, DataType::kUint8, ReduceOp::kSum, options);
      ASSERT_TRUE(status.ok()) << to_string(status.error());
    }
    held.release();
    ASSERT_TRUE(other.synchronize().ok());
    EXPECT_EQ(gpu.get(memory), Bytes(40'000, std::byte{64}));
  });
}

TEST_P(DeviceStreams, AWorkWaitsForTheGpu) {
  Communicators ranks = ranks_on(GetParam());
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(GetParam()[static_cast<std::size_t>(rank.rank())]);
    const cuda::DeviceMemory memory = gpu.allocate(100'000);
    gpu.put(memory, Bytes(100'000, std::byte{1}));
    test::BlockedStream held(driver(), gpu.stream());
    auto work =
        rank.start({.input = pointer(memory), .output = pointer(memory), .count = 100'000, .type = DataType::kUint8},
                   gpu.options());
    ASSERT_TRUE(work.ok()) << to_string(work.error());
    EXPECT_FALSE(work->test());
    held.release();
    ASSERT_TRUE(work->wait().ok());
    // The host can read the fake driver's device memory, so check the result without the stream.
    const auto* results = static_cast<const std::byte*>(pointer(memory));
    EXPECT_TRUE(std::all_of(results, results + 100'000, [](std::byte b) { return b == std::byte{2}; }));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceStreams, ::testing::Values(Devices{0, 0}, Devices{0, 1}), name_of);

// One thread makes the calls of all ranks in a Group. A call must not wait for calls that the thread has still to make
// for other ranks.
TEST(DeviceCall, OneThreadServesAllRanks) {
  for (const Devices& devices : {Devices{0, 0, 0, 0}, Devices{0, 1, 0, 1}}) {
    Communicators ranks = ranks_on(devices);
    std::vector<std::unique_ptr<Gpu>> gpus;
    std::vector<cuda::DeviceMemory> memories;
    for (const std::int32_t device : devices) {
      gpus.push_back(std::make_unique<Gpu>(device));
      memories.push_back(gpus.back()->allocate(8192));
      gpus.back()->put(memories.back(), Bytes(8192, std::byte{1}));
    }
    for (int round = 0; round < 3; ++round) {
      Group group;
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        const CollectiveCall call{
            .input = pointer(memories[r]), .output = pointer(memories[r]), .count = 8192, .type = DataType::kUint8};
        const Status status = group.add(*ranks[r], call, gpus[r]->options());
        ASSERT_TRUE(status.ok()) << to_string(status.error());
      }
      ASSERT_TRUE(group.run().ok());
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      EXPECT_EQ(gpus[r]->get(memories[r]), Bytes(8192, std::byte{64})) << "rank " << r;
    }
    while (!memories.empty()) memories.pop_back();
    while (!gpus.empty()) gpus.pop_back();  // contexts must be left in the reverse order
  }
}

// Rank 0 makes its first call before rank 1, which shares its GPU, and waits for it.
TEST(DeviceCall, ARankMayBeEarly) {
  Communicators ranks = ranks_on({0, 0});
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(0);
    const cuda::DeviceMemory memory = gpu.allocate(3'000);
    gpu.put(memory, Bytes(3'000, std::byte{1}));
    if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(150));
    for (int call = 0; call < 4; ++call) {
      const Status status =
          rank.all_reduce(pointer(memory), pointer(memory), 3'000, DataType::kUint8, ReduceOp::kSum, gpu.options());
      ASSERT_TRUE(status.ok()) << to_string(status.error());
    }
    EXPECT_EQ(gpu.get(memory), Bytes(3'000, std::byte{16}));
    const Status status = rank.async_status();
    EXPECT_TRUE(status.ok()) << to_string(status.error());
  });
}

// While another thread captures a graph in the global mode, the driver forbids queries of events, and a forbidden query
// invalidates the capture. A rank that waits for another one must not make such a query.
TEST(DeviceCall, AWaitForARankLeavesACaptureOfAnotherThreadAlone) {
  Communicators ranks = ranks_on({0, 0});
  const Gpu capturing(0);
  std::barrier<> step(3);
  std::thread both([&] {
    on_every_rank(ranks, [&](Communicator& rank) {
      const Gpu gpu(0);
      const cuda::DeviceMemory memory = gpu.allocate(1'000);
      gpu.put(memory, Bytes(1'000, std::byte{1}));
      const auto sum = [&] {
        const Status status =
            rank.all_reduce(pointer(memory), pointer(memory), 1'000, DataType::kUint8, ReduceOp::kSum, gpu.options());
        EXPECT_TRUE(status.ok()) << to_string(status.error());
      };
      sum();  // the first call allocates memory, which a capture forbids, too
      step.arrive_and_wait();
      step.arrive_and_wait();  // the capture has begun
      // long enough that rank 0 usually looks at its waiting call; the test is also correct if it does not
      if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(80));
      sum();
      step.arrive_and_wait();
      step.arrive_and_wait();  // the capture has ended
      EXPECT_EQ(gpu.get(memory), Bytes(1'000, std::byte{4}));
    });
  });
  step.arrive_and_wait();
  const cuda::DriverApi& api = driver().api();
  EXPECT_EQ(api.stream_begin_capture(capturing.stream(), cuda::CaptureMode::kGlobal), cuda::CUresult::kSuccess);
  step.arrive_and_wait();
  step.arrive_and_wait();
  cuda::CUgraph graph = nullptr;
  EXPECT_EQ(api.stream_end_capture(capturing.stream(), &graph), cuda::CUresult::kSuccess);
  EXPECT_EQ(api.graph_destroy(graph), cuda::CUresult::kSuccess);
  step.arrive_and_wait();
  both.join();
}

// All ranks of a GPU share the default stream of the context. If one thread makes the calls of all ranks without a
// Group, it waits for itself, so the call ends after its timeout, with a message that recommends a Group.
TEST(DeviceCall, TheDefaultStream) {
  const auto sum = [](Communicator& rank, const cuda::DeviceMemory& memory, std::chrono::milliseconds timeout = {}) {
    CallOptions options;
    options.stream = nullptr;
    options.timeout = timeout;
    return rank.all_reduce(pointer(memory), pointer(memory), 1'000, DataType::kUint8, ReduceOp::kSum, options);
  };
  Communicators ranks = ranks_on({0, 0});
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(0);
    const cuda::DeviceMemory memory = gpu.allocate(1'000);
    gpu.put(memory, Bytes(1'000, std::byte{1}));
    if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(80));
    for (int call = 0; call < 3; ++call) {
      const Status status = sum(rank, memory);
      ASSERT_TRUE(status.ok()) << to_string(status.error());
    }
    ASSERT_EQ(driver().api().stream_synchronize(nullptr), cuda::CUresult::kSuccess);
    EXPECT_EQ(gpu.get(memory), Bytes(1'000, std::byte{8}));
  });
  const Gpu gpu(0);
  const cuda::DeviceMemory a = gpu.allocate(1'000);
  const cuda::DeviceMemory b = gpu.allocate(1'000);
  Group group;
  const auto add = [&](Communicator& rank, const cuda::DeviceMemory& memory) {
    CallOptions options;
    options.stream = nullptr;
    return group.add(
        rank, {.input = pointer(memory), .output = pointer(memory), .count = 1'000, .type = DataType::kUint8}, options);
  };
  ASSERT_TRUE(add(*ranks[0], a).ok());
  ASSERT_TRUE(add(*ranks[1], b).ok());
  ASSERT_TRUE(group.run().ok());
  std::thread other([&] {
    const Gpu own(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // usually long enough that rank 0 waits
    EXPECT_TRUE(sum(*ranks[1], b).ok());
  });
  const Status in_time = sum(*ranks[0], a);  // although the thread of rank 0 made the last call of rank 1
  EXPECT_TRUE(in_time.ok()) << to_string(in_time.error());
  other.join();
  const Status alone = sum(*ranks[0], a, std::chrono::milliseconds(200));
  ASSERT_FALSE(alone.ok());
  EXPECT_EQ(alone.error().code, ErrorCode::kTimeout);
  EXPECT_THAT(alone.error().message, HasSubstr("in a Group"));
}

// There are more ranks than fit into the parameters of a kernel. If each rank took as many blocks as it may, the GPU
// would not have enough blocks.
TEST(DeviceCall, TwelveRanksShareAGpu) {
  const Devices devices(12, 0);
  Communicators host = ranks_on(Devices(12, CommunicatorOptions::kNoDevice));
  Communicators gpus = ranks_on(devices);
  for (const std::size_t count : {std::size_t{3}, std::size_t{6'000}}) {
    const CallShape shape{.count = count};
    for (unsigned round = 0; round < 3; round += kSizeDivisor) {
      EXPECT_EQ(outcome(gpus, shape, devices), outcome(host, shape, {}));
    }
  }
}

TEST(DeviceCall, SeveralCommunicatorsAtOnce) {
  const Devices devices = {0, 0, 1};
  Communicators first = ranks_on(devices);
  Communicators second = ranks_on(devices);
  Communicators host = ranks_on(Devices(3, CommunicatorOptions::kNoDevice));
  const CallShape shape{.count = 5'000};
  const std::vector<Bytes> expected = outcome(host, shape, {});
  std::vector<std::thread> threads;
  for (Communicators* ranks : {&first, &second}) {
    threads.emplace_back([&, ranks] {
      for (int round = 0; round < 5; ++round) EXPECT_EQ(outcome(*ranks, shape, devices), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(DeviceCall, CommunicatorsThatAreSplitOff) {
  const Devices devices = {0, 0, 1, 1};
  Communicators ranks = ranks_on(devices);
  Communicators children(4);
  on_every_rank(ranks, [&](Communicator& rank) {
    auto child = rank.split(rank.rank() % 2 == 0 ? 0 : Communicator::kNoColour);
    ASSERT_TRUE(child.ok()) << to_string(child.error());
    children[static_cast<std::size_t>(rank.rank())] = std::move(*child);
  });
  Communicators pair;
  for (auto& child : children) {
    if (child != nullptr) pair.push_back(std::move(child));
  }
  ASSERT_EQ(pair.size(), 2U);
  Communicators host = ranks_on(Devices(2, CommunicatorOptions::kNoDevice));
  const CallShape shape{.kind = Kind::kAllGather, .count = 3'000};
  const unsigned before = launches();
  EXPECT_EQ(outcome(pair, shape, {0, 1}), outcome(host, shape, {}));
  EXPECT_GT(launches(), before);
}

// The calls of the survivors run on their GPUs, although the original communicator is broken.
TEST(DeviceCall, CommunicatorsThatAreShrunk) {
  Communicators ranks = ranks_on({0, 0, 1, 1});
  ranks[3]->abort();
  Communicators pair(2);
  std::vector<std::thread> threads;
  for (const std::size_t rank : {0U, 2U}) {
    threads.emplace_back([&, rank] {
      auto child = ranks[rank]->shrink(std::vector<std::int32_t>{1, 3});
      ASSERT_TRUE(child.ok()) << to_string(child.error());
      pair[rank / 2] = std::move(*child);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(pair[0] != nullptr && pair[1] != nullptr);
  EXPECT_TRUE(pair[0]->runs_on_devices());
  Communicators host = ranks_on(Devices(2, CommunicatorOptions::kNoDevice));
  const CallShape shape{.kind = Kind::kAllGather, .count = 3'000};
  const unsigned before = launches();
  EXPECT_EQ(outcome(pair, shape, {0, 1}), outcome(host, shape, {}));
  EXPECT_GT(launches(), before);
}

// The thread that sets the communicator up in the background has no CUDA context of its own.
TEST(DeviceCall, ARankOfCreateAsyncUsesTheGpuOfTheCaller) {
  const Gpu gpu(1);
  CommunicatorOptions options;
  options.rank = 0;
  options.size = 1;
  auto made = Communicator::create_async(options).wait();
  ASSERT_TRUE(made.ok()) << to_string(made.error());
  EXPECT_TRUE((*made)->runs_on_devices());
}

TEST(DeviceCall, HasAnAlgorithmOfItsOwn) {
  const Communicators ranks = ranks_on({0, 0});
  const auto chosen = [&](bool on_device) {
    return ranks[0]->auto_algorithm(Kind::kAllReduce, 65'536, DataType::kUint8, on_device);
  };
  EXPECT_EQ(chosen(true), Algorithm::kOneShot);
  EXPECT_NE(chosen(false), Algorithm::kOneShot);
}

// Checksums cover only messages that the host sends, so with checksums the host carries out the calls.
TEST(DeviceCall, OfRanksWithChecksumsIsCarriedOutByTheHost) {
  CommunicatorOptions options;
  options.checksum = true;
  Communicators ranks = ranks_on({0, 1}, options);
  EXPECT_FALSE(ranks[0]->runs_on_devices());
  Communicators host = ranks_on(Devices(2, CommunicatorOptions::kNoDevice));
  const CallShape shape{.kind = Kind::kAllReduce, .count = 3'000};
  const unsigned before = launches();
  EXPECT_EQ(outcome(ranks, shape, {0, 1}), outcome(host, shape, {}));
  EXPECT_EQ(launches(), before);
}

// Calls are captured into a graph and replayed. Each replay uses the contents that the buffer has at that time.
TEST(DeviceGraphs, AreReplayed) {
  Communicators ranks = ranks_on({0, 1});
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(rank.rank());
    const cuda::DeviceMemory memory = gpu.allocate(30'000);
    gpu.put(memory, Bytes(30'000, std::byte{1}));
    ASSERT_TRUE(rank.barrier().ok());  // a thread must not allocate memory while another one captures
    const auto call = [&] {
      return rank.all_reduce(pointer(memory), pointer(memory), 30'000, DataType::kUint8, ReduceOp::kSum, gpu.options());
    };
    const test::CapturedGraph graph(driver(), gpu.stream(), [&] {
      for (int i = 0; i < 2; ++i) {
        const Status status = call();
        ASSERT_TRUE(status.ok()) << to_string(status.error());
      }
    });
    EXPECT_EQ(gpu.get(memory), Bytes(30'000, std::byte{1})) << "the calls ran while they were captured";
    for (int i = 0; i < 2; ++i) graph.launch();
    EXPECT_EQ(gpu.get(memory), Bytes(30'000, std::byte{16}));
    ASSERT_TRUE(call().ok());  // a call between two replays
    graph.launch();
    EXPECT_EQ(gpu.get(memory), Bytes(30'000, std::byte{128}));
    EXPECT_TRUE(rank.async_status().ok());
  });
}

// Two ranks share a GPU and have a stream each. One thread captures the calls of both into one graph.
TEST(DeviceGraphs, TakeAGroupOfRanksOnOneGpu) {
  Communicators ranks = ranks_on({0, 0});
  const Gpu gpu(0);
  const Gpu second(0);
  const cuda::DriverApi& api = driver().api();
  const cuda::DeviceMemory a = gpu.allocate(10'000);
  const cuda::DeviceMemory b = gpu.allocate(10'000);
  gpu.put(a, Bytes(10'000, std::byte{1}));
  gpu.put(b, Bytes(10'000, std::byte{2}));
  const auto fork = *cuda::Event::create(driver());
  const auto join = *cuda::Event::create(driver());
  const auto both = [&] {
    Group group;
    const auto call_on = [](const cuda::DeviceMemory& memory) {
      return CollectiveCall{
          .input = pointer(memory), .output = pointer(memory), .count = 10'000, .type = DataType::kUint8};
    };
    EXPECT_TRUE(group.add(*ranks[0], call_on(a), gpu.options()).ok());
    EXPECT_TRUE(group.add(*ranks[1], call_on(b), second.options()).ok());
    const Status status = group.run();
    EXPECT_TRUE(status.ok()) << to_string(status.error());
  };
  both();  // makes the plans before the capture
  const test::CapturedGraph graph(driver(), gpu.stream(), [&] {
    ASSERT_TRUE(fork.record(gpu.stream()).ok());
    ASSERT_EQ(api.stream_wait_event(second.stream(), fork.handle(), 0), cuda::CUresult::kSuccess);
    both();
    ASSERT_TRUE(join.record(second.stream()).ok());
    ASSERT_EQ(api.stream_wait_event(gpu.stream(), join.handle(), 0), cuda::CUresult::kSuccess);
  });
  for (int i = 0; i < 3; ++i) graph.launch();
  EXPECT_EQ(gpu.get(a), Bytes(10'000, std::byte{24}));
  EXPECT_EQ(gpu.get(b), Bytes(10'000, std::byte{24}));
}

}  // namespace
}  // namespace tutti::testing

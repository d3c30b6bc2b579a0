// Tests of calls that the GPUs carry out between processes. The processes have one GPU each, or share GPUs. On a shared
// GPU, a kernel must not wait for a kernel of another process.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/device/calls/jobs_support.h"
#include "tests/support/patience.h"
#include "tests/support/shared_object.h"

namespace tutti::testing {
namespace {

unsigned launches() { return small_devices().calls("cuLaunchKernel"); }

// Runs all_gather and all_reduce of int32 and checks the results. Each rank computes the expected values itself.
void check_calls_of(bool on_gpus, Communicator& rank, const Gpu& gpu) {
  const auto ranks = static_cast<std::size_t>(rank.size());
  const auto me = static_cast<std::size_t>(rank.rank());
  const auto value = [](std::size_t r, std::size_t i) { return static_cast<std::int32_t>((r + 1) * 1000 + i % 997); };
  for (const std::size_t count : {std::size_t{1}, std::size_t{1'500}, std::size_t{20'000}}) {
    const std::size_t block = count * sizeof(std::int32_t);
    const cuda::DeviceMemory in = gpu.allocate(block);
    const cuda::DeviceMemory out = gpu.allocate(block * ranks);
    std::vector<std::int32_t> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = value(me, i);
    Bytes bytes(block);
    std::memcpy(bytes.data(), values.data(), block);
    gpu.put(in, bytes);
    const unsigned before = launches();
    Status status = rank.all_gather(pointer(in), pointer(out), count, DataType::kInt32, gpu.options());
    must(status.ok(), status.ok() ? "" : to_string(status.error()));
    must((launches() > before) == on_gpus, on_gpus ? "the host carried out the call" : "a GPU carried out the call");
    Bytes got = gpu.get(out);
    std::vector<std::int32_t> all(count * ranks);
    std::memcpy(all.data(), got.data(), got.size());
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t i = 0; i < count; ++i) must(all[r * count + i] == value(r, i), "all_gather");
    }
    for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kRing, Algorithm::kDoubleTree}) {
      gpu.put(in, bytes);
      status =
          rank.all_reduce(pointer(in), pointer(in), count, DataType::kInt32, ReduceOp::kSum, gpu.options(algorithm));
      must(status.ok(), status.ok() ? "" : to_string(status.error()));
      got = gpu.get(in);
      std::memcpy(values.data(), got.data(), block);
      for (std::size_t i = 0; i < count; ++i) {
        std::int32_t sum = 0;
        for (std::size_t r = 0; r < ranks; ++r) sum += value(r, i);
        must(values[i] == sum, "all_reduce " + std::string(to_string(algorithm)));
      }
    }
    status = rank.async_status();
    must(status.ok(), status.ok() ? "" : to_string(status.error()));
  }
}

void check_calls(Communicator& rank, const Gpu& gpu) { check_calls_of(true, rank, gpu); }

TEST(DeviceJobs, OneGpuForEachProcess) { EXPECT_TRUE(Job({0, 1, 2}).run(check_calls)); }
TEST(DeviceJobs, AllProcessesOnOneGpu) { EXPECT_TRUE(Job({0, 0, 0}).run(check_calls)); }
// The two ranks of the first process share a GPU and its hardware queues. In one queue, the stream of a rank that waits
// for the other rank could stand before the stream of that rank, so such calls go by the host.
TEST(DeviceJobs, AProcessWithTwoRanksSharesAGpuWithAnotherProcess) {
  const auto by_the_host = [](Communicator& rank, const Gpu& gpu) { check_calls_of(false, rank, gpu); };
  EXPECT_TRUE(Job(std::vector<Devices>{{0, 0}, {0}}).run(by_the_host));
  EXPECT_TRUE(Job(std::vector<Devices>{{0, 0}, {1}, {1}}).run(by_the_host)) << "all GPUs go in rounds or none";
}
TEST(DeviceJobs, SomeProcessesShareAGpu) { EXPECT_TRUE(Job({0, 0, 1, 1}).run(check_calls)); }

// Two communicators whose addresses are in another order on rank 0 than on rank 1.
struct CrossedPair {
  std::vector<std::unique_ptr<Communicator>> all;
  Communicator* first = nullptr;
  Communicator* second = nullptr;
};
// A new thread allocates in another region of addresses. The ranks take turns in using one.
CrossedPair make_crossed_pair(Communicator& rank) {
  CrossedPair made;
  made.all.push_back(*rank.duplicate());
  made.first = made.all.front().get();
  for (int i = 0; i < 50; ++i) {
    std::unique_ptr<Communicator> next;
    const auto make = [&] { next = *rank.duplicate(); };
    if (rank.rank() == i % 2)
      std::thread(make).join();
    else
      make();
    made.second = next.get();
    made.all.push_back(std::move(next));
    const std::uint8_t mine = std::less<>()(made.first, made.second) ? 1 : 0;
    std::array<std::uint8_t, 2> orders{};
    must(rank.all_gather(&mine, orders.data(), 1, DataType::kUint8).ok(), "all_gather");
    if (orders[0] != orders[1]) return made;
  }
  must(false, "the allocator gives all ranks the same order of addresses");
  return made;
}

// All calls of a rank are in one stream. If a Group made them in the order of the communicators' addresses, the stream
// of each rank would wait for a call that stands behind another one in the other rank's stream.
TEST(DeviceJobs, AGroupMakesCallsOfSeveralCommunicatorsInOneOrder) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's allocator gives all ranks addresses in one order";
#endif
  const auto body = [](Communicator& rank, const Gpu& gpu) {
    const CrossedPair pair = make_crossed_pair(rank);
    std::vector<cuda::DeviceMemory> memories;
    Group group;
    for (Communicator* each : {pair.first, pair.second}) {
      memories.push_back(gpu.allocate(6'000));
      gpu.put(memories.back(), Bytes(6'000, std::byte{1}));
      const CollectiveCall call{.input = pointer(memories.back()),
                                .output = pointer(memories.back()),
                                .count = 6'000,
                                .type = DataType::kUint8};
      must(group.add(*each, call, gpu.options()).ok(), "add");
    }
    const Status status = group.run();
    must(status.ok(), status.ok() ? "" : to_string(status.error()));
    for (const cuda::DeviceMemory& memory : memories) must(gpu.get(memory) == Bytes(6'000, std::byte{2}), "a sum");
    must(rank.barrier());
  };
  Job job({0, 0});
  job.may_keep_memory();  // rank 1 leaves the first communicator before rank 0
  EXPECT_TRUE(job.run(body, test::scaled(std::chrono::seconds(20))));
}

void check_graphs(Communicator& rank, const Gpu& gpu) {
  const cuda::DeviceMemory memory = gpu.allocate(6'000);
  gpu.put(memory, Bytes(6'000, std::byte{1}));
  const test::CapturedGraph graph(driver(), gpu.stream(), [&] {
    for (int i = 0; i < 2; ++i) {
      must(rank.all_reduce(pointer(memory), pointer(memory), 6'000, DataType::kUint8, ReduceOp::kSum, gpu.options()));
    }
  });
  for (int i = 0; i < 3; ++i) graph.launch();
  must(gpu.get(memory) == Bytes(6'000, std::byte{64}), "replays");
  const Status status = rank.async_status();
  must(status.ok(), status.ok() ? "" : to_string(status.error()));
}

TEST(DeviceJobs, GraphsOfProcessesWithGpusOfTheirOwn) { EXPECT_TRUE(Job({0, 1}).run(check_graphs)); }
TEST(DeviceJobs, GraphsOfProcessesOnOneGpu) { EXPECT_TRUE(Job({0, 0}).run(check_graphs)); }

// The process of rank 1 exits. The streams of the other ranks must continue, and the error must name rank 1.
void check_missing(Communicator& rank, const Gpu& gpu) {
  if (rank.rank() == 1) _exit(0);
  const cuda::DeviceMemory memory = gpu.allocate(4'096);
  auto work = rank.start({.input = pointer(memory), .output = pointer(memory), .count = 1'024}, gpu.options());
  must(work.ok(), "start");
  const Status status = work->wait();
  must(!status.ok() && status.error().code == ErrorCode::kPeerLost && status.error().rank == 1,
       status.ok() ? "no error" : to_string(status.error()));
  gpu.synchronize();
  must(!rank.async_status().ok(), "async_status() does not report the error");
}

TEST(DeviceJobs, AProcessThatDiedAmongThoseWithGpusOfTheirOwn) { EXPECT_TRUE(Job({0, 1, 2}).run(check_missing)); }
TEST(DeviceJobs, AProcessThatDiedAmongThoseOnOneGpu) { EXPECT_TRUE(Job({0, 0, 0}).run(check_missing)); }

// The number of ranks of a job that have finished their checks, in memory that all its processes share.
std::atomic<int>& done = test::shared_object<std::atomic<int>>();

void wait_until_done(Communicator& rank) {
  must(test::eventually([&] { return done == rank.size() - 1; }), "the other ranks did not finish");
}

// Rank 1 is running but does not make the call, so the calls of the others time out.
void check_late(Communicator& rank, const Gpu& gpu) {
  if (rank.rank() == 1) return wait_until_done(rank);
  const cuda::DeviceMemory memory = gpu.allocate(4'096);
  auto work = rank.start({.input = pointer(memory), .output = pointer(memory), .count = 1'024}, gpu.options());
  must(work.ok(), "start");
  const Status status = work->wait();
  must(!status.ok() && status.error().code == ErrorCode::kTimeout,
       status.ok() ? "no error" : to_string(status.error()));
  gpu.synchronize();
  ++done;
}

TEST(DeviceJobs, AProcessThatDoesNotCome) {
  for (const Devices& devices : {Devices{0, 1, 2}, Devices{0, 0, 0}}) {
    done = 0;
    EXPECT_TRUE(Job(devices).run(check_late, test::scaled(std::chrono::milliseconds(500))));
  }
}

// Rank 1 calls abort(). GPUs that wait for it must stop waiting.
void check_abort(Communicator& rank, const Gpu& gpu) {
  if (rank.rank() == 1) {
    // By now the others usually wait. The test is also correct if they do not wait yet.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    rank.abort();
    return wait_until_done(rank);
  }
  const cuda::DeviceMemory memory = gpu.allocate(4'096);
  auto work = rank.start({.input = pointer(memory), .output = pointer(memory), .count = 1'024}, gpu.options());
  must(work.ok(), "start");
  const Status status = work->wait();
  must(!status.ok() && status.error().code == ErrorCode::kAborted && status.error().rank == 1,
       status.ok() ? "no error" : to_string(status.error()));
  gpu.synchronize();
  ++done;
}

TEST(DeviceJobs, AnAbortEndsCallsOfThePeers) {
  for (const Devices& devices : {Devices{0, 1}, Devices{0, 0}}) {
    done = 0;
    EXPECT_TRUE(Job(devices).run(check_abort));
  }
}

// The driver refuses to allocate memory for the first call of rank 1, so this call fails, while the calls of its peers
// already wait for rank 1 in their streams. The peers must report that rank 1 is lost.
void check_refused(Communicator& rank, const Gpu& gpu) {
  const cuda::DeviceMemory memory = gpu.allocate(4'096);
  const CollectiveCall call{.input = pointer(memory), .output = pointer(memory), .count = 1'024};
  if (rank.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    small_devices().fail("cuMemAlloc", 1, cuda::CUresult::kOutOfMemory);
    const Status refused = rank.run(call, gpu.options());
    must(!refused.ok() && refused.error().code == ErrorCode::kDevice && refused.error().rank == 1,
         refused.ok() ? "no error" : to_string(refused.error()));
    return wait_until_done(rank);
  }
  auto work = rank.start(call, gpu.options());
  must(work.ok(), "start");
  const Status status = work->wait();
  must(!status.ok() && status.error().code == ErrorCode::kAborted && status.error().rank == 1,
       status.ok() ? "no error" : to_string(status.error()));
  gpu.synchronize();
  ++done;
}

TEST(DeviceJobs, ARankThatIsRefusedMemoryIsLostToItsPeers) {
  for (const Devices& devices : {Devices{0, 1}, Devices{0, 0}}) {
    done = 0;
    EXPECT_TRUE(Job(devices).run(check_refused));
  }
}

// A rank cannot open the memory of its peer during set-up. Then the host carries out the calls, and the memory that was
// allocated for calls by the GPUs must be freed; the Job checks for leaks at the end of each process.
TEST(DeviceJobs, ARankThatCannotReachItsPeerLeavesNoMemoryBehind) {
  done = 0;
  const auto body = [](Communicator& rank, const Gpu& gpu) {
    const cuda::DeviceMemory memory = gpu.allocate(4'096);
    const unsigned before = launches();
    must(rank.run({.input = pointer(memory), .output = pointer(memory), .count = 1'024}, gpu.options()));
    gpu.synchronize();
    must(launches() == before, "a kernel was launched: the host did not carry out the call");
  };
  const auto begin = [] {
    if (done++ == 0) small_devices().fail("cuIpcOpenMemHandle", 1, cuda::CUresult::kInvalidValue);
  };
  EXPECT_TRUE(Job({0, 1}).run(body, kLongTimeout, begin));
}

}  // namespace
}  // namespace tutti::testing

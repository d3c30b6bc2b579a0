// Tests of errors in calls that the GPUs carry out. Every rank must report the error and name its cause; the calls must
// not hang, and no driver objects may be leaked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <string>
#include <thread>

#include "tests/device/calls/calls_support.h"
#include "tests/support/patience.h"

namespace tutti::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Devices = std::vector<std::int32_t>;

const std::chrono::milliseconds kShortTimeout = test::scaled(std::chrono::seconds(1));

CommunicatorOptions short_timeout() {
  CommunicatorOptions options;
  options.timeout = kShortTimeout;
  return options;
}

Status sum(Communicator& rank, const cuda::DeviceMemory& memory, const CallOptions& options,
           DataType type = DataType::kUint8) {
  return rank.all_reduce(pointer(memory), pointer(memory), memory.bytes() / size_of(type), type, ReduceOp::kSum,
                         options);
}

TEST(DeviceArguments, AreNamedWhereTheyAreWrong) {
  Communicators ranks = ranks_on({0, 0});
  Communicator& rank = *ranks[0];
  const Gpu gpu(0);
  const cuda::DeviceMemory memory = gpu.allocate(4096);
  Bytes host(4096);
  Status status = rank.all_reduce(pointer(memory), host.data(), 16, DataType::kFloat32, ReduceOp::kSum, gpu.options());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.error().message, HasSubstr("input is memory of GPU 0, but output is host memory"));

  status = rank.all_reduce(static_cast<std::byte*>(pointer(memory)) + 2, pointer(memory), 16, DataType::kFloat32,
                           ReduceOp::kSum, gpu.options());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  {
    const Gpu other(1);
    const cuda::DeviceMemory far = other.allocate(4096);
    status = sum(rank, far, other.options());
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message, HasSubstr("memory of GPU 1, but this communicator's rank has GPU 0"));
    status = sum(rank, memory, other.options());
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message, HasSubstr("the stream belongs to another context"));
  }
  const cuda::CUcontext own = small_devices().create_context(0);
  {
    const auto scope = *cuda::ContextScope::enter(driver(), own);
    const auto there = *cuda::DeviceMemory::allocate(driver(), 4096);
    status = sum(rank, there, {});
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message, HasSubstr("another context of GPU 0"));
  }
  small_devices().destroy_context(own);
  // The rejected calls have no effect, so the next call is the first one for both ranks.
  gpu.put(memory, Bytes(4096, std::byte{1}));
  on_every_rank(ranks, [&](Communicator& each) {
    const Gpu its(0);
    const cuda::DeviceMemory fresh = its.allocate(512);
    its.put(fresh, Bytes(512, std::byte{1}));
    EXPECT_TRUE(sum(each, fresh, its.options()).ok());
    EXPECT_EQ(its.get(fresh), Bytes(512, std::byte{2}));
  });
}

TEST(DeviceArguments, ADeviceThatIsNotThere) {
  driver();
  CommunicatorOptions options;
  options.devices = {0, 99};
  auto ranks = Communicator::create_all(2, options);
  ASSERT_FALSE(ranks.ok());
  EXPECT_THAT(ranks.error().message, HasSubstr("device 99 was asked for; this machine has 4"));
  options.devices = {0};
  ranks = Communicator::create_all(2, options);
  ASSERT_FALSE(ranks.ok());
  EXPECT_THAT(ranks.error().message, HasSubstr("1 devices are given for 2 ranks"));
}

// The calls of ranks that share a GPU are compared before a kernel is launched, so the communicator remains usable.
TEST(DeviceFaults, RanksThatDisagreeOnOneGpuGoOnAfterwards) {
  Communicators ranks = ranks_on({0, 0});
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(0);
    const cuda::DeviceMemory memory = gpu.allocate(rank.rank() == 0 ? 256 : 512);
    gpu.put(memory, Bytes(memory.bytes(), std::byte{1}));
    auto work = rank.start(
        {.input = pointer(memory), .output = pointer(memory), .count = memory.bytes(), .type = DataType::kUint8},
        gpu.options());
    const Status status = work.ok() ? work->wait() : Status(work.error());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    EXPECT_THAT(status.error().message, HasSubstr("count"));
    gpu.synchronize();
    const cuda::DeviceMemory fresh = gpu.allocate(512);
    gpu.put(fresh, Bytes(512, std::byte{1}));
    const Status again = sum(rank, fresh, gpu.options());
    ASSERT_TRUE(again.ok()) << to_string(again.error());
    EXPECT_EQ(gpu.get(fresh), Bytes(512, std::byte{2}));
  });
}

TEST(DeviceFaults, RanksThatDisagreeOnSeveralGpus) {
  Communicators ranks = ranks_on({0, 1}, short_timeout());
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(rank.rank());
    const cuda::DeviceMemory memory = gpu.allocate(rank.rank() == 0 ? 256 : 512);
    auto work = rank.start(
        {.input = pointer(memory), .output = pointer(memory), .count = memory.bytes(), .type = DataType::kUint8},
        gpu.options());
    ASSERT_TRUE(work.ok());
    const Status status = work->wait();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
    EXPECT_EQ(status.error().scope, ErrorScope::kCommunicator);
    EXPECT_EQ(status.error().rank, 1 - rank.rank());
    gpu.synchronize();
    EXPECT_FALSE(rank.async_status().ok());
    const Status again = sum(rank, memory, gpu.options());
    EXPECT_FALSE(again.ok()) << "the counters of the GPUs differ after the error, so later calls must fail";
  });
}

class AMissingRank : public ::testing::TestWithParam<Devices> {};

TEST_P(AMissingRank, IsNamedWithinTheTimeout) {
  Communicators ranks = ranks_on(GetParam(), short_timeout());
  const Gpu gpu(GetParam()[0]);
  const cuda::DeviceMemory memory = gpu.allocate(1024);
  auto work = ranks[0]->start({.input = pointer(memory), .output = pointer(memory), .count = 256}, gpu.options());
  const Status status = work.ok() ? work->wait() : Status(work.error());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kTimeout);
  EXPECT_EQ(status.error().rank, 1);
  EXPECT_THAT(status.error().message, AnyOf(HasSubstr("ranks 1 of this process and GPU"),
                                            HasSubstr(std::to_string(kShortTimeout.count()) + " ms for rank 1")));
  gpu.synchronize();  // the stream must continue
  EXPECT_FALSE(ranks[0]->async_status().ok());
}

TEST_P(AMissingRank, DoesNotHoldUpAnAbort) {
  Communicators ranks = ranks_on(GetParam());
  const Gpu gpu(GetParam()[0]);
  const cuda::DeviceMemory memory = gpu.allocate(1024);
  std::thread other([&] {
    // By now the call usually waits. The test is also correct if it does not wait yet.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ranks[0]->abort();
  });
  auto work = ranks[0]->start({.input = pointer(memory), .output = pointer(memory), .count = 256}, gpu.options());
  const Status status = work.ok() ? work->wait() : Status(work.error());
  other.join();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kAborted) << to_string(status.error());
  gpu.synchronize();
}

TEST_P(AMissingRank, DoesNotHoldUpTheEndOfTheCommunicator) {
  const Gpu gpu(GetParam()[0]);
  const cuda::DeviceMemory memory = gpu.allocate(1024);
  Result<Work> work = Work();
  {
    Communicators ranks = ranks_on(GetParam(), short_timeout());
    work = ranks[0]->start({.input = pointer(memory), .output = pointer(memory), .count = 256}, gpu.options());
  }
  EXPECT_FALSE(work.ok() && work->wait().ok());
  gpu.synchronize();
}

// One rank passes host memory and the other device memory. Then one rank waits on the GPU and the other on the host,
// and the message of the timeout must name the likely cause.
TEST_P(AMissingRank, MayHavePassedMemoryOfAnotherKind) {
  Communicators ranks = ranks_on(GetParam(), short_timeout());
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(GetParam()[static_cast<std::size_t>(rank.rank())]);
    const cuda::DeviceMemory memory = gpu.allocate(1024);
    std::vector<float> host(256);
    void* buffer = rank.rank() == 0 ? pointer(memory) : host.data();
    auto work = rank.start({.input = buffer, .output = buffer, .count = 256}, gpu.options());
    const Status status = work.ok() ? work->wait() : Status(work.error());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kTimeout);
    EXPECT_THAT(status.error().message, HasSubstr("pass memory of one kind on all ranks"));
    gpu.synchronize();
  });
}

// The message must not mention the type of memory if the call has no memory arguments.
TEST_P(AMissingRank, OfABarrierHasPassedNoMemory) {
  Communicators ranks = ranks_on(GetParam(), short_timeout());
  const Status status = ranks[0]->barrier();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kTimeout);
  EXPECT_THAT(status.error().message, Not(HasSubstr("memory of one kind")));
}

INSTANTIATE_TEST_SUITE_P(Ranks, AMissingRank, ::testing::Values(Devices{0, 0}, Devices{0, 1}),
                         [](const auto& ranks) { return ranks.param[1] == 0 ? "OnOneGpu" : "OnAnother"; });

// If one rank has too little memory, set-up fails on all ranks, and no driver objects are leaked.
TEST(DeviceFaults, TooLittleMemoryAtSetUp) {
  const cuda::fake::Control& fake = small_devices();
  driver();
  static_cast<void>(fake.leaks());
  fake.set_memory_limit(1, 64 * 1024);
  CommunicatorOptions options;
  options.devices = {0, 1};
  auto ranks = Communicator::create_all(2, options);
  fake.set_memory_limit(1, std::size_t{1} << 30);
  ASSERT_FALSE(ranks.ok());
  EXPECT_THAT(ranks.error().message, HasSubstr("TUTTI_DEVICE_SLOT_BYTES"));
  EXPECT_THAT(ranks.error().message, HasSubstr("rank 1"));
  EXPECT_EQ(fake.leaks(), "");
}

TEST(DeviceFaults, NothingIsLeftBehind) {
  const cuda::fake::Control& fake = small_devices();
  driver();
  static_cast<void>(fake.leaks());
  {
    const Devices devices = {0, 0, 1};
    Communicators ranks = ranks_on(devices);
    static_cast<void>(outcome(ranks, {.count = 5'000}, devices));
    static_cast<void>(outcome(ranks, {.count = 5'000, .algorithm = Algorithm::kDoubleTree}, devices));
  }
  EXPECT_EQ(fake.leaks(), "");
}

// A communicator is destroyed while one of its calls has not begun, because work of the caller precedes the call in the
// stream. Destroying it must not wait for the caller's work (only up to its own timeouts). The memory that the call
// will read, i.e. its tables and the arenas of the peers, must remain.
TEST(DeviceFaults, ACommunicatorEndsBeforeItsCallHasBegun) {
  const cuda::fake::Control& fake = small_devices();
  Communicators ranks = ranks_on({0, 1});
  const std::vector<std::size_t> counts = {100, 7};
  const auto gather = [&](Communicator& rank, const Gpu& gpu, const cuda::DeviceMemory& memory) {
    auto* all = static_cast<std::int32_t*>(pointer(memory));
    const Status status =
        rank.all_gather_v(all + 100 * rank.rank(), all, {.counts = counts}, DataType::kInt32, gpu.options());
    EXPECT_TRUE(status.ok()) << to_string(status.error());
  };
  std::atomic<int> ended{0};
  std::thread late;  // lets the stream continue after the communicators were destroyed, or after a long timeout
  std::barrier<> step(2);
  on_every_rank(ranks, [&](Communicator& rank) {
    const auto me = static_cast<std::size_t>(rank.rank());
    const Gpu gpu(rank.rank());
    const cuda::DeviceMemory memory = gpu.allocate(4096);
    gather(rank, gpu, memory);
    gpu.synchronize();
    step.arrive_and_wait();
    const auto pinned = *cuda::PinnedMemory::allocate(driver(), 64);  // a copy of pageable memory would be synchronous
    if (me == 0) {
      fake.hold_copy("cuMemcpyHtoDAsync", 1);
      const auto copied = driver().api().memcpy_htod_async(memory.address(), pinned.bytes().data(), 64, gpu.stream());
      EXPECT_EQ(copied, cuda::CUresult::kSuccess);
      gather(rank, gpu, memory);
      late = std::thread([&] {
        EXPECT_TRUE(test::eventually([&] { return ended == 2; }))
            << "destroying a communicator waits for work of the caller's stream";
        fake.release();
      });
    }
    step.arrive_and_wait();
    ranks[me].reset();
    ++ended;
    gpu.synchronize();  // the call runs now and must finish
    step.arrive_and_wait();
  });
  late.join();
}

// If the devices have no peer access, the host carries out the calls, with the same results.
TEST(DeviceFaults, WithoutAccessBetweenDevicesTheHostDoesIt) {
  const cuda::fake::Control& fake = small_devices();
  driver();
  fake.set_peer_access(2, 3, false);
  const Devices devices = {2, 3};
  Communicators ranks = ranks_on(devices);
  fake.set_peer_access(2, 3, true);
  Communicators host = ranks_on(Devices(2, CommunicatorOptions::kNoDevice));
  const unsigned before = fake.calls("cuLaunchKernel");
  EXPECT_EQ(outcome(ranks, {.count = 5'000}, devices), outcome(host, {.count = 5'000}, {}));
  EXPECT_EQ(fake.calls("cuLaunchKernel"), before);
}

// Creates ranks on the devices, and returns what they log meanwhile. The log has warnings and errors only.
std::string log_of_creation(const Devices& devices, std::vector<Communicators>& made,
                            const CommunicatorOptions& options = {}) {
  ::testing::internal::CaptureStderr();
  made.push_back(ranks_on(devices, options));
  return ::testing::internal::GetCapturedStderr();
}

// Calls by the host are much slower, so if the user has not asked for them, rank 0 warns once for each communicator,
// and names the cause.
TEST(DeviceFallback, GpusThatCannotReachEachOtherCauseOneWarning) {
  const cuda::fake::Control& fake = small_devices();
  driver();
  std::vector<Communicators> made;
  fake.set_peer_access(2, 3, false);
  const std::string log = log_of_creation({3, 2}, made);
  fake.set_peer_access(2, 3, true);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_THAT(log, HasSubstr("tutti[0]: warn: calls on device memory are carried out by the host"));
  EXPECT_THAT(log, HasSubstr("rank 1: "));
  EXPECT_THAT(log, HasSubstr("reaching device 3 from device 2"));
  EXPECT_THAT(log, HasSubstr("nvidia-smi topo -p2p r"));
  EXPECT_THAT(log, HasSubstr("TUTTI_DEVICE_CALLS=staged"));
}

TEST(DeviceFallback, DeviceCodeThatCannotBeLoadedCausesOneWarning) {
  const cuda::fake::Control& fake = small_devices();
  driver();
  std::vector<Communicators> made;
  fake.fail("cuModuleLoadData", 1, cuda::CUresult::kNoBinaryForGpu);
  const std::string log = log_of_creation({2, 3}, made);
  fake.forget_faults();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_THAT(log, HasSubstr("tutti[0]: warn: calls on device memory are carried out by the host"));
  EXPECT_THAT(log, HasSubstr("cannot be loaded on device"));
  EXPECT_THAT(log, HasSubstr("update the driver"));
}

TEST(DeviceFallback, GpusWithTooFewBlocksCauseOneWarning) {
  constexpr std::size_t kMostCommunicators = 16;  // more than the blocks of a GPU are enough for
  std::vector<Communicators> made;
  std::string log;
  while (log.empty() && made.size() < kMostCommunicators) log = log_of_creation({0, 0, 1, 1}, made);
  EXPECT_GT(made.size(), 1u);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_THAT(log, HasSubstr("tutti[0]: warn: calls on device memory are carried out by the host"));
  EXPECT_THAT(log, HasSubstr("too few free blocks"));
}

std::atomic<int> ll128_launches = 0;

// Makes a call on two new ranks. Returns the number of launches of LL128.
int ll128_launches_of(const Devices& devices) {
  Communicators ranks = ranks_on(devices);
  ll128_launches = 0;
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(devices[static_cast<std::size_t>(rank.rank())]);
    const cuda::DeviceMemory memory = gpu.allocate(4096);
    gpu.put(memory, Bytes(4096, std::byte{1}));
    const Status status = sum(rank, memory, gpu.options());
    EXPECT_TRUE(status.ok()) << to_string(status.error());
    EXPECT_EQ(gpu.get(memory), Bytes(4096, std::byte{2}));
  });
  return ll128_launches;
}

// LL128 is not used if NVML does not say that NVLinks join the GPUs. Ranks on one GPU need no link.
TEST(DeviceFallback, Ll128WithoutNvLinkIsReplacedWithOneWarning) {
  cuda::fake::Control tapped = small_devices();
  tapped.register_kernel = [](cuda::fake::FakeKernel kernel) {
    if (kernel.name == "tutti_evaluate_ll128") {
      kernel.run = [run = kernel.run](const cuda::fake::FakeLaunch& launch) {
        ++ll128_launches;
        return run(launch);
      };
    }
    small_devices().register_kernel(std::move(kernel));
  };
  register_device_kernels(tapped, FakeDeviceOptions::from_environment());
  setenv("TUTTI_DEVICE_PROTOCOL", "ll128", 1);
  setenv("FAKE_NVML_NVLINK", "0", 1);
  std::vector<Communicators> made;
  const std::string log = log_of_creation({0, 1}, made);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_THAT(log, HasSubstr("tutti[0]: warn: TUTTI_DEVICE_PROTOCOL=ll128 needs NVLink between all GPUs"));
  EXPECT_EQ(log_of_creation({0, 0}, made), "");
  EXPECT_EQ(ll128_launches_of({0, 1}), 0);
  EXPECT_GT(ll128_launches_of({0, 0}), 0);
  unsetenv("FAKE_NVML_NVLINK");
  EXPECT_EQ(log_of_creation({0, 1}, made), "");
  EXPECT_GT(ll128_launches_of({0, 1}), 0);
  unsetenv("TUTTI_DEVICE_PROTOCOL");
}

TEST(DeviceFallback, CallsByTheHostThatTheUserAskedForCauseNoWarning) {
  std::vector<Communicators> made;
  CommunicatorOptions staged;
  staged.device_calls = "staged";
  EXPECT_EQ(log_of_creation({0, 1}, made, staged), "");
  EXPECT_EQ(log_of_creation({0, CommunicatorOptions::kNoDevice}, made), "") << "a rank without a GPU was asked for";
}

// The driver rejects the launch of one rank. Both ranks must then report an error.
TEST(DeviceFaults, AFailingLaunch) {
  const cuda::fake::Control& fake = small_devices();
  Communicators ranks = ranks_on({0, 1}, short_timeout());
  std::atomic<bool> failed = false;
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(rank.rank());
    const cuda::DeviceMemory memory = gpu.allocate(1024);
    if (rank.rank() == 1) fake.fail_here("cuLaunchKernel", cuda::CUresult::kLaunchOutOfResources);
    EXPECT_TRUE(rank.rank() == 1 ||
                test::eventually([&] { return failed.load(); }));  // the launch of rank 1 is to fail
    const Status status = sum(rank, memory, gpu.options());
    if (rank.rank() == 1) {
      failed = true;
      ASSERT_FALSE(status.ok());
      EXPECT_THAT(status.error().message, HasSubstr("launching"));
    }
    gpu.synchronize();
    const Status later = rank.async_status();
    EXPECT_FALSE(later.ok());
  });
  fake.forget_faults();
}

}  // namespace
}  // namespace tutti::testing

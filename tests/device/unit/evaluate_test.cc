// Tests of the evaluator kernels, launched by the fake driver. The ranks have one device each, with a stream and
// therefore an emulator of its own, or they share one device and one launch. Results are compared with those of the
// host executor. The buffers are in device memory. DeviceGroup has the other shared state in host memory, which kernels
// of the fake driver can access, too.
#include <algorithm>
#include <string>
#include <vector>

#include "algorithms/algorithms.h"
#include "kernels/device_group.h"
#include "plan/collective.h"
#include "tests/device/unit/evaluate_support.h"

namespace tutti::testing {
namespace {

using cuda::CUresult;
using device::Protocol;
using emu::Policy;

// The device resources of one rank. The order of the members matters, because they are destroyed in reverse order.
struct RankDevice {
  cuda::PrimaryContext primary;
  cuda::Module module;
  cuda::Stream stream;
  cuda::DeviceMemory memory;
};

class DeviceRanks : public FakeDeviceTest {
 protected:
  enum class Placement : std::uint8_t { kDeviceEach, kOneLaunch };

  RankDevice make_rank_device(int device, const RankBuffers& buffers) {
    auto primary = good(cuda::PrimaryContext::retain(driver(), device));
    const auto scope = good(cuda::ContextScope::enter(driver(), primary.context()));
    RankDevice rank_device{std::move(primary), load_module(), good(cuda::Stream::create(driver())),
                           good(cuda::DeviceMemory::allocate(driver(), buffers.memory.size()))};
    upload(buffers.memory.data(), buffers.memory.size(), rank_device.memory.address(), rank_device.stream);
    EXPECT_TRUE(rank_device.stream.synchronize().ok());
    return rank_device;
  }

  // Runs an all_reduce on `ranks` ranks, and compares all of their memory with that of ranks on the host.
  void run(std::uint32_t ranks, const GroupOptions& options, Placement placement, std::uint64_t count,
           std::uint64_t seed) {
    const Generator generator =
        find_generator({.kind = CollectiveKind::kAllReduce, .ranks = ranks}, Algorithm::kRing).value();
    DeviceGroup group(generator, options);
    CallOptions call;
    call.lengths.count = count;
    call.seed = seed;
    for (int round = 0; round < 2; ++round, ++call.seed) {  // the second round continues with the counters of the first
      const std::vector<RankBuffers> host = run_on_host(generator, call, group.max_chunk_bytes());
      std::vector<RankBuffers> gpu = make_buffers(generator.shape, call);
      group.set_call(call, gpu);
      std::vector<RankDevice> rank_devices;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        rank_devices.push_back(
            make_rank_device(placement == Placement::kDeviceEach ? static_cast<int>(rank) : 0, gpu[rank]));
        group.call(rank).input = on_device(rank_devices[rank].memory.address() + gpu[rank].input_at);
        group.call(rank).output = on_device(rank_devices[rank].memory.address() + gpu[rank].output_at);
      }
      start(group, options, placement, rank_devices);
      for (std::uint32_t rank = 0; rank < ranks; ++rank)
        finish(group, rank, rank_devices[rank], gpu[rank], rank_devices[0].stream);
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        EXPECT_TRUE(std::ranges::equal(gpu[rank].memory, host[rank].memory)) << "rank " << rank << ", seed " << seed;
      }
    }
  }

 private:
  void start(const DeviceGroup& group, const GroupOptions& options, Placement placement,
             std::vector<RankDevice>& rank_devices) {
    if (placement == Placement::kOneLaunch) {
      ASSERT_EQ(launch_evaluator(driver(), rank_devices[0].module, options.protocol, options.threads,
                                 rank_devices[0].stream.handle(), group.launch_of_all(DeviceGroup::Calls::kInline)),
                CUresult::kSuccess);
      return;
    }
    for (std::uint32_t rank = 0; rank < group.ranks(); ++rank) {
      const auto scope = good(cuda::ContextScope::enter(driver(), rank_devices[rank].primary.context()));
      ASSERT_EQ(launch_evaluator(driver(), rank_devices[rank].module, options.protocol, options.threads,
                                 rank_devices[rank].stream.handle(), group.launch_of_rank(rank)),
                CUresult::kSuccess);
    }
  }

  void finish(DeviceGroup& group, std::uint32_t rank, RankDevice& rank_device, RankBuffers& buffers,
              const cuda::Stream& launched) {
    ASSERT_TRUE(launched.synchronize().ok());
    const auto scope = good(cuda::ContextScope::enter(driver(), rank_device.primary.context()));
    ASSERT_TRUE(rank_device.stream.synchronize().ok());
    ASSERT_EQ(group.status(rank).failure, 0u) << "rank " << rank;
    ASSERT_TRUE(group.finished(rank)) << "rank " << rank;
    download(rank_device.memory.address(), buffers.memory.data(), buffers.memory.size(), rank_device.stream);
  }
};

TEST_F(DeviceRanks, WorldsThatWaitForEachOtherLeaveTheHostsBits) {
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128}) {
    for (const Policy policy : {Policy::kRoundRobin, Policy::kRandom, Policy::kPriority}) {
      for (const bool weak : {false, true}) {
        for (std::uint64_t seed = 1; seed <= 2; ++seed) {
          SCOPED_TRACE(std::string(evaluator_of(protocol)) + ", policy " + std::to_string(static_cast<int>(policy)) +
                       (weak ? ", weak" : ""));
          register_device_kernels(fake(), {.seed = 100 * seed, .policy = policy, .weak = weak});
          run(2, {.protocol = protocol, .slices = 2, .threads = 64}, Placement::kDeviceEach, 600 + 7 * seed, seed);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(DeviceRanks, RanksOfOneDeviceShareALaunch) {
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128}) {
    SCOPED_TRACE(evaluator_of(protocol));
    register_device_kernels(fake(), {.policy = Policy::kRandom, .weak = true});
    run(8, {.protocol = protocol, .slices = 4 / kSizeDivisor, .threads = 128 / kSizeDivisor}, Placement::kOneLaunch,
        3'000 / kSizeDivisor, 5);
  }
}

// The most frequent configuration of the runtime: few ranks with many threads.
TEST_F(DeviceRanks, BlocksOf512Threads) {
  register_device_kernels(fake(), FakeDeviceOptions::from_environment());
  run(2, {.slots = 4, .slot_bytes = 8192, .threads = 512}, Placement::kDeviceEach, 40'000, 9);
}

// Only one rank is launched. Its kernel must end with a timeout of its own, measured by the real clock.
TEST_F(DeviceRanks, ARankWhosePeerNeverComesFailsByItsDeadline) {
  register_device_kernels(fake(), {});
  const Generator generator =
      find_generator({.kind = CollectiveKind::kAllReduce, .ranks = 2}, Algorithm::kRing).value();
  DeviceGroup group(generator, {});
  CallOptions call;
  call.lengths.count = 10;
  std::vector<RankBuffers> buffers = make_buffers(generator.shape, call);
  group.set_call(call, buffers);
  group.call(0).timeout_ns = 100'000'000;
  const cuda::Module module = load_module();
  const auto stream = good(cuda::Stream::create(driver()));
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(launch_evaluator(driver(), module, Protocol::kSimple, 32, stream.handle(), group.launch_of_rank(0)),
            CUresult::kSuccess);
  ASSERT_TRUE(stream.synchronize().ok());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(100));
  EXPECT_EQ(group.failure(0).cause, device::Failure::kTimedOut);
  EXPECT_EQ(group.failure(0).peer, 1u);
}

// A kernel without a timeout that never finishes is ended by the fake device. The context then has an error, as with a
// real driver.
TEST_F(DeviceRanks, ALaunchThatIsStuckEndsAsATimeout) {
  register_device_kernels(fake(), {.stall_ms = 100});
  const Generator generator =
      find_generator({.kind = CollectiveKind::kAllReduce, .ranks = 2}, Algorithm::kRing).value();
  DeviceGroup group(generator, {});
  CallOptions call;
  call.lengths.count = 10;
  std::vector<RankBuffers> buffers = make_buffers(generator.shape, call);
  group.set_call(call, buffers);
  cuda::CUcontext lent = fake().create_context(0);
  {
    const auto scope = good(cuda::ContextScope::enter(driver(), lent));
    const cuda::Module module = load_module();
    const auto stream = good(cuda::Stream::create(driver()));
    ASSERT_EQ(launch_evaluator(driver(), module, Protocol::kSimple, 32, stream.handle(), group.launch_of_rank(0)),
              CUresult::kSuccess);
    const Status status = stream.synchronize();
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("CUDA_ERROR_LAUNCH_TIMEOUT"), std::string::npos) << status.error().message;
  }
  fake().destroy_context(lent);
  EXPECT_EQ(group.failure(0).cause, device::Failure::kNone);
}

}  // namespace
}  // namespace tutti::testing

// The evaluator launched by the driver: ranks on devices of their own, each in its stream and so in a world of its own,
// and ranks that share a device and a launch; against the host executor. Buffers lie in device memory; what the ranks
// share besides is DeviceGroup's, in host memory, which the double's kernels can use as well.
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

// Where a rank's part runs: members end in reverse.
struct Seat {
  cuda::PrimaryContext primary;
  cuda::Module module;
  cuda::Stream stream;
  cuda::DeviceMemory memory;
};

class DeviceRanks : public DeviceDoubleTest {
 protected:
  enum class Placement : std::uint8_t { kDeviceEach, kOneLaunch };

  Seat sit(int device, const RankBuffers& buffers) {
    auto primary = good(cuda::PrimaryContext::retain(driver(), device));
    const auto scope = good(cuda::ContextScope::enter(driver(), primary.context()));
    Seat seat{std::move(primary), load_module(), good(cuda::Stream::create(driver())),
              good(cuda::DeviceMemory::allocate(driver(), buffers.memory.size()))};
    upload(buffers.memory.data(), buffers.memory.size(), seat.memory.address(), seat.stream);
    EXPECT_TRUE(seat.stream.synchronize().ok());
    return seat;
  }

  // Runs the call on `ranks` ranks, and compares all of their memory with what the host leaves.
  void run(std::uint32_t ranks, const GroupOptions& options, Placement placement, std::uint64_t count,
           std::uint64_t seed) {
    const Generator generator =
        find_generator({.kind = CollectiveKind::kAllReduce, .ranks = ranks}, Algorithm::kRing).value();
    DeviceGroup group(generator, options);
    CallOptions call;
    call.lengths.count = count;
    call.seed = seed;
    for (int round = 0; round < 2; ++round, ++call.seed) {  // the second goes on with the first one's counters
      const std::vector<RankBuffers> host = run_on_host(generator, call, group.max_chunk_bytes());
      std::vector<RankBuffers> gpu = make_buffers(generator.shape, call);
      group.set_call(call, gpu);
      std::vector<Seat> seats;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        seats.push_back(sit(placement == Placement::kDeviceEach ? static_cast<int>(rank) : 0, gpu[rank]));
        group.call(rank).input = on_device(seats[rank].memory.address() + gpu[rank].input_at);
        group.call(rank).output = on_device(seats[rank].memory.address() + gpu[rank].output_at);
      }
      start(group, options, placement, seats);
      for (std::uint32_t rank = 0; rank < ranks; ++rank) finish(group, rank, seats[rank], gpu[rank], seats[0].stream);
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        EXPECT_TRUE(std::ranges::equal(gpu[rank].memory, host[rank].memory)) << "rank " << rank << ", seed " << seed;
      }
    }
  }

 private:
  void start(const DeviceGroup& group, const GroupOptions& options, Placement placement, std::vector<Seat>& seats) {
    if (placement == Placement::kOneLaunch) {
      ASSERT_EQ(launch_evaluator(driver(), seats[0].module, options.protocol, options.threads, seats[0].stream.handle(),
                                 group.launch_of_all(DeviceGroup::Calls::kInline)),
                CUresult::kSuccess);
      return;
    }
    for (std::uint32_t rank = 0; rank < group.ranks(); ++rank) {
      const auto scope = good(cuda::ContextScope::enter(driver(), seats[rank].primary.context()));
      ASSERT_EQ(launch_evaluator(driver(), seats[rank].module, options.protocol, options.threads,
                                 seats[rank].stream.handle(), group.launch_of_rank(rank)),
                CUresult::kSuccess);
    }
  }

  void finish(DeviceGroup& group, std::uint32_t rank, Seat& seat, RankBuffers& buffers, const cuda::Stream& launched) {
    ASSERT_TRUE(launched.synchronize().ok());
    const auto scope = good(cuda::ContextScope::enter(driver(), seat.primary.context()));
    ASSERT_TRUE(seat.stream.synchronize().ok());
    ASSERT_EQ(group.status(rank).failure, 0u) << "rank " << rank;
    ASSERT_TRUE(group.finished(rank)) << "rank " << rank;
    download(seat.memory.address(), buffers.memory.data(), buffers.memory.size(), seat.stream);
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
    run(8, {.protocol = protocol, .slices = 4 / kThinner, .threads = 128 / kThinner}, Placement::kOneLaunch,
        3'000 / kThinner, 5);
  }
}

// What the runtime will ask for most: few ranks, many threads.
TEST_F(DeviceRanks, BlocksOf512Threads) {
  register_device_kernels(fake(), DeviceDoubleOptions::from_environment());
  run(2, {.slots = 4, .slot_bytes = 8192, .threads = 512}, Placement::kDeviceEach, 40'000, 9);
}

// One rank alone: it tells so by its own deadline, which the real clock counts.
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

// One without a deadline is ended by the double, and takes the context with it, as a real one would.
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

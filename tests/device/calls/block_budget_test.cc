// Tests of BlockBudget: how communicators on the same GPUs share the resident blocks, so that their calls can reach the
// GPUs in different orders without a deadlock.
#include "device/native/block_budget.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/device/calls/jobs_support.h"
#include "tests/support/patience.h"

namespace tutti::testing {
namespace {

using detail::BlockBudget;
using detail::BlockLoan;
using Launches = BlockBudget::Launches;

cuda::CUuuid uuid_of(char first) {
  cuda::CUuuid uuid{};
  uuid.bytes[0] = first;
  return uuid;
}

std::uint32_t left_to_stay(const cuda::CUuuid& device) { return BlockBudget::left(device, 32).to_stay; }
std::uint32_t left_to_end(const cuda::CUuuid& device) { return BlockBudget::left(device, 32).to_end; }

TEST(BlockBudget, LeavesRoomForLaunchesThatEnd) {
  const cuda::CUuuid device = uuid_of(1);
  BlockBudget ends;
  ASSERT_TRUE(ends.take(device, 32, Launches::kEnd, 24));
  EXPECT_EQ(left_to_end(device), 32u) << "launches that end can wait for other launches that end";
  EXPECT_EQ(left_to_stay(device), 8u);
  BlockBudget stays;
  EXPECT_FALSE(stays.take(device, 32, Launches::kStay, 9));
  ASSERT_TRUE(stays.take(device, 32, Launches::kStay, 8));
  EXPECT_EQ(left_to_stay(device), 0u);
  EXPECT_EQ(left_to_end(device), 24u);
  EXPECT_EQ(left_to_end(uuid_of(2)), 32u) << "another device";
  BlockBudget smaller;
  EXPECT_FALSE(smaller.take(device, 32, Launches::kEnd, 25));
  ASSERT_TRUE(smaller.take(device, 32, Launches::kEnd, 2));
  ends = {};
  EXPECT_EQ(left_to_stay(device), 22u) << "32 - 8 - 2";
  BlockBudget moved = std::move(stays);
  stays = {};
  EXPECT_EQ(left_to_end(device), 24u);
  moved = {};
  EXPECT_EQ(left_to_end(device), 32u);
}

TEST(BlockBudget, KeepsOneBlockForCallsInRounds) { EXPECT_EQ(left_to_stay(uuid_of(3)), 31u); }

TEST(BlockLoan, TakesBlocksThatNobodyKeeps) {
  const cuda::CUuuid device = uuid_of(4);
  BlockBudget kept;
  ASSERT_TRUE(kept.take(device, 32, Launches::kStay, 4));
  BlockLoan first;
  EXPECT_EQ(first.raise(device, 32, 12, false), 12u);
  EXPECT_EQ(first.raise(device, 32, 8, false), 8u) << "the blocks of the loan serve one launch after the other";
  BlockLoan second;
  EXPECT_EQ(second.raise(device, 32, 12, false), 7u) << "32 - 4 kept - 1 for rounds - 12 lent - 8 for newcomers";
  first.lower(3);
  EXPECT_EQ(second.raise(device, 32, 20, false), 16u) << "32 - 4 - 1 - 3 - 8";
  second.lower(0);
  first.lower(0);
  EXPECT_EQ(left_to_stay(device), 27u);
}

TEST(BlockLoan, StaysForGraphs) {
  const cuda::CUuuid device = uuid_of(5);
  {
    BlockLoan loan;
    EXPECT_EQ(loan.raise(device, 32, 20, false), 20u);
    EXPECT_EQ(loan.raise(device, 32, 20, true), 12u) << "half of 32 - 1 - 8, rounded up";
    EXPECT_EQ(loan.raise(device, 32, 23, true), 12u) << "another graph";
    loan.lower(0);
    EXPECT_EQ(left_to_stay(device), 19u) << "32 - 1 - 12";
    EXPECT_EQ(left_to_end(device), 20u) << "32 - 12";
    BlockBudget ends;
    EXPECT_FALSE(ends.take(device, 32, Launches::kEnd, 21));
  }
  EXPECT_EQ(left_to_stay(device), 31u);
}

// A new communicator waits until lent blocks are returned. Meanwhile launches borrow nothing more.
TEST(BlockLoan, IsReturnedToANewCommunicator) {
  const cuda::CUuuid device = uuid_of(6);
  BlockLoan loan;
  ASSERT_EQ(loan.raise(device, 32, 22, false), 22u);
  EXPECT_EQ(left_to_stay(device), 31u);
  EXPECT_EQ(left_to_end(device), 32u);
  std::atomic<bool> took = false;
  BlockBudget kept;
  std::thread newcomer([&] { took = kept.take(device, 32, Launches::kStay, 16); });
  BlockLoan other;
  EXPECT_TRUE(test::eventually([&] {
    const bool waits = other.raise(device, 32, 1, false) == 0;
    other.lower(0);
    return waits || took;
  }));
  EXPECT_FALSE(took) << "the newcomer did not wait";
  EXPECT_EQ(loan.raise(device, 32, 22, false), 0u);
  EXPECT_EQ(loan.raise(device, 32, 1, true), 1u) << "a graph cannot wait";
  loan.lower(0);
  newcomer.join();
  EXPECT_TRUE(took);
  BlockBudget large;
  EXPECT_FALSE(large.take(device, 32, Launches::kStay, 16));
}

// Makes calls of `many` communicators over two GPUs, each in a stream of its own. One GPU gets the calls in ascending
// order and the other in descending order. If every communicator got all the blocks that it wants, the first ones would
// occupy one GPU and the last ones the other, a deadlock. Both ranks call this, in one process or in two.
void call_crosswise(std::size_t many, Communicator& rank, int device) {
  constexpr std::size_t kCount = 16'384;
  std::vector<Gpu> gpus;
  std::vector<cuda::DeviceMemory> memory;
  Communicators communicators;
  for (std::size_t i = 0; i < many; ++i) {
    auto made = rank.split(0, rank.rank());
    must(made.ok(), made.ok() ? "" : to_string(made.error()));
    communicators.push_back(*std::move(made));
    gpus.emplace_back(device);
    memory.push_back(gpus.back().allocate(kCount * sizeof(std::int32_t)));
    gpus.back().put(memory.back(), Bytes(memory.back().bytes(), std::byte{static_cast<unsigned char>(i + 1)}));
  }
  for (std::size_t turn = 0; turn < 2 * many; ++turn) {
    const std::size_t i = device == 0 ? turn % many : many - 1 - turn % many;
    const auto work = communicators[i]->start(
        {.input = pointer(memory[i]), .output = pointer(memory[i]), .count = kCount, .type = DataType::kInt32},
        gpus[i].options(Algorithm::kTwoShot));
    must(work.ok(), work.ok() ? "" : to_string(work.error()));
  }
  for (std::size_t i = 0; i < many; ++i) {
    const auto value = static_cast<unsigned char>(4 * (i + 1));
    const Bytes got = gpus[i].get(memory[i]);
    must(communicators[i]->async_status());
    must(got == Bytes(memory[i].bytes(), std::byte{value}), "communicator " + std::to_string(i));
  }
  const unsigned launches =
      small_devices().calls("cuLaunchKernel") + small_devices().calls("cuLaunchCooperativeKernel");
  must(launches >= 2 * many, "the host carried out some of the calls");
}

TEST(BlockBudgetJobs, ManyCommunicatorsOfOneProcessDoNotKeepEachOtherFromRunning) {
  EXPECT_TRUE(Job(std::vector<Devices>{{0, 1}}).run([](Communicator& rank, const Gpu&) {
    call_crosswise(20, rank, rank.rank());
  }));
}
TEST(BlockBudgetJobs, ManyCommunicatorsOfTwoProcessesDoNotKeepEachOtherFromRunning) {
  EXPECT_TRUE(Job(Devices{0, 1}).run([](Communicator& rank, const Gpu&) { call_crosswise(20, rank, rank.rank()); }));
}
// How many blocks the launches of the simple protocol in this process had: bit n is 1 if one of them had n.
std::atomic<std::uint64_t> seen_blocks = 0;

// Sets seen_blocks at each launch. Call it before ranks are created.
void count_blocks() {
  cuda::fake::Control tapped = small_devices();
  tapped.register_kernel = [](cuda::fake::FakeKernel kernel) {
    if (kernel.name == "tutti_evaluate_simple") {
      kernel.run = [run = kernel.run](const cuda::fake::FakeLaunch& launch) {
        seen_blocks |= std::uint64_t{1} << launch.grid[0];
        return run(launch);
      };
    }
    small_devices().register_kernel(std::move(kernel));
  };
  register_device_kernels(tapped, FakeDeviceOptions::from_environment());
  setenv("TUTTI_DEVICE_BLOCKS", "16", 1);
}

// Runs the job on GPUs that run this many blocks at once.
bool run_with_blocks(const char* blocks, const Job::Body& body) {
  setenv("FAKE_CUDA_BLOCKS", blocks, 1);
  const bool right = Job(Devices{0, 1}).run(body, kLongTimeout, count_blocks);
  unsetenv("FAKE_CUDA_BLOCKS");
  return right;
}

// Each call has 8 slices, and keeps 4 blocks. On each GPU the first two calls borrow 4 blocks and the third one 3, and
// the two GPUs get the calls in opposite orders. So the ranks of a call run with different numbers of blocks.
TEST(BlockBudgetJobs, CallsWithFewBorrowedBlocksDoNotKeepEachOtherFromRunning) {
  EXPECT_TRUE(run_with_blocks("44", [](Communicator& rank, const Gpu&) {
    call_crosswise(5, rank, rank.rank());
    must((seen_blocks & 0x0e0) != 0, "no launch had 5 to 7 blocks");
    must((seen_blocks & 0x100) != 0, "no launch had 8 blocks");
  }));
}

constexpr std::size_t kLongBytes = 160'000;  // a ring of two ranks divides them into 16 slices

Status sum_in_place(Communicator& rank, const Gpu& gpu, const cuda::DeviceMemory& memory) {
  return rank.all_reduce(pointer(memory), pointer(memory), memory.bytes(), DataType::kUint8, ReduceOp::kSum,
                         gpu.options(Algorithm::kRing));
}

constexpr std::uint64_t with_blocks(unsigned blocks) { return std::uint64_t{1} << blocks; }

// An H100 runs 132 blocks at once.
TEST(BlockBudgetJobs, TheThirteenthCommunicatorGetsAsManyBlocksAsTheFirst) {
  EXPECT_TRUE(run_with_blocks("132", [](Communicator& rank, const Gpu& gpu) {
    cuda::CUuuid uuid{};
    must(driver().api().device_get_uuid(&uuid, rank.rank()) == cuda::CUresult::kSuccess, "the UUID");
    const cuda::DeviceMemory memory = gpu.allocate(kLongBytes);
    Communicators communicators;
    for (std::uint32_t i = 1; i <= 13; ++i) {
      communicators.push_back(*rank.split(0, rank.rank()));
      gpu.put(memory, Bytes(kLongBytes, std::byte{1}));
      seen_blocks = 0;
      must(sum_in_place(*communicators.back(), gpu, memory));
      must(gpu.get(memory) == Bytes(kLongBytes, std::byte{2}), "a sum");
      must(seen_blocks == with_blocks(16), "communicator " + std::to_string(i) + " got other than 16 blocks");
      must(communicators.back()->async_status());
      // The communicators keep 4 blocks each, 1 is for calls in rounds, and 8 are never lent.
      const auto returned = [&] {
        BlockLoan probe;
        return probe.raise(uuid, 132, 132, false) == 132 - 4 * (i + 1) - 1 - 8;
      };
      must(test::eventually(returned), "a call has ended, and its blocks are not returned");
    }
    must(rank.barrier());
  }));
}

TEST(BlockBudgetJobs, ACapturedCallBorrowsHalfOfTheFreeBlocks) {
  EXPECT_TRUE(run_with_blocks("32", [](Communicator& rank, const Gpu& gpu) {
    const cuda::DeviceMemory memory = gpu.allocate(kLongBytes);
    gpu.put(memory, Bytes(kLongBytes, std::byte{1}));
    const test::CapturedGraph graph(driver(), gpu.stream(), [&] { must(sum_in_place(rank, gpu, memory)); });
    seen_blocks = 0;
    graph.launch();
    gpu.synchronize();
    must(seen_blocks == with_blocks(4 + (32 - 4 - 1 - 8 + 1) / 2), "the blocks of a replay");
    seen_blocks = 0;
    must(sum_in_place(rank, gpu, memory));
    gpu.synchronize();
    must(seen_blocks == with_blocks(16), "the blocks of a call beside a graph");
    graph.launch();
    must(gpu.get(memory) == Bytes(kLongBytes, std::byte{8}), "the sum of three calls");
    must(rank.async_status());
    must(rank.barrier());
  }));
}

// Two ranks of the process share a GPU and a third rank has another GPU, so their calls cannot run in rounds. When no
// blocks are left, the host must carry out the calls.
TEST(BlockBudgetJobs, RanksThatCannotGoInRoundsGoByTheHost) {
  const auto body = [](Communicator& rank, const Gpu& gpu) {
    Communicators communicators;
    for (int i = 0; i < 12; ++i) communicators.push_back(*rank.split(0, rank.rank()));
    const cuda::DeviceMemory memory = gpu.allocate(4'096);  // freeing it also waits for the calls of the other rank
    for (const auto& each : communicators) {
      gpu.put(memory, Bytes(4'096, std::byte{1}));
      must(each->all_reduce(pointer(memory), pointer(memory), 4'096, DataType::kUint8, ReduceOp::kSum, gpu.options()));
      must(gpu.get(memory) == Bytes(4'096, std::byte{3}), "a sum");
      must(each->async_status());
    }
    const unsigned launches =
        small_devices().calls("cuLaunchKernel") + small_devices().calls("cuLaunchCooperativeKernel");
    must(rank.barrier());
    must(launches > 0, "the GPUs carried out no call, not even the first one");
    must(launches < 2 * 12, "the GPUs carried out all calls");
  };
  EXPECT_TRUE(Job(std::vector<Devices>{{0, 0, 1}}).run(body));
}

}  // namespace
}  // namespace tutti::testing

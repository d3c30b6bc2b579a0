// Tests of BlockBudget: how communicators on the same GPUs share the resident blocks, so that their calls can reach the
// GPUs in different orders without a deadlock.
#include "device/native/block_budget.h"

#include <chrono>
#include <vector>

#include "tests/device/unit/jobs_support.h"

namespace tutti::testing {
namespace {

using detail::BlockBudget;
using Launches = BlockBudget::Launches;

cuda::CUuuid uuid_of(char first) {
  cuda::CUuuid uuid{};
  uuid.bytes[0] = first;
  return uuid;
}

TEST(DeviceRooms, LeaveRoomForWhatEnds) {
  const cuda::CUuuid device = uuid_of(1);
  BlockBudget ends;
  ASSERT_TRUE(ends.take(device, 32, Launches::kEnd, 24));
  EXPECT_EQ(BlockBudget::left(device, 32).to_end, 32u) << "launches that end can wait for other launches that end";
  EXPECT_EQ(BlockBudget::left(device, 32).to_stay, 4u) << "half of the remaining 8 blocks";
  BlockBudget stays;
  EXPECT_FALSE(stays.take(device, 32, Launches::kStay, 9));
  ASSERT_TRUE(stays.take(device, 32, Launches::kStay, 8));
  EXPECT_EQ(BlockBudget::left(device, 32).to_stay, 0u);
  EXPECT_EQ(BlockBudget::left(device, 32).to_end, 24u);
  EXPECT_EQ(BlockBudget::left(uuid_of(2), 32).to_end, 32u) << "another device";
  BlockBudget smaller;
  EXPECT_FALSE(smaller.take(device, 32, Launches::kEnd, 25));
  ASSERT_TRUE(smaller.take(device, 32, Launches::kEnd, 2));
  ends = {};
  EXPECT_EQ(BlockBudget::left(device, 32).to_stay, 11u) << "half of 32 - 8 - 2";
  BlockBudget moved = std::move(stays);
  stays = {};
  EXPECT_EQ(BlockBudget::left(device, 32).to_end, 24u);
  moved = {};
  EXPECT_EQ(BlockBudget::left(device, 32).to_end, 32u);
}

TEST(DeviceRooms, KeepOneBlockForWhatNeedsNone) {
  const cuda::CUuuid device = uuid_of(3);
  std::vector<BlockBudget> all;
  std::uint32_t taken = 0;
  while (const std::uint32_t left = BlockBudget::left(device, 33).to_stay) {
    all.emplace_back();
    ASSERT_TRUE(all.back().take(device, 33, Launches::kStay, left));
    taken += left;
  }
  EXPECT_EQ(taken, 32u);
  EXPECT_EQ(all.size(), 6u) << "16, 8, 4, 2, 1, 1";
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
        gpus[i].options());
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

TEST(DeviceRooms, ManyCommunicatorsOfOneProcessDoNotKeepEachOtherFromRunning) {
  EXPECT_TRUE(Job(std::vector<Devices>{{0, 1}})
                  .run([](Communicator& rank, const Gpu&) { call_crosswise(20, rank, rank.rank()); },
                       std::chrono::seconds(20)));
}
TEST(DeviceRooms, ManyCommunicatorsOfTwoProcessesDoNotKeepEachOtherFromRunning) {
  EXPECT_TRUE(Job(Devices{0, 1})
                  .run([](Communicator& rank, const Gpu&) { call_crosswise(20, rank, rank.rank()); },
                       std::chrono::seconds(20)));
}
// Two ranks of the process share a GPU and a third rank has another GPU, so their calls cannot run in rounds. When no
// blocks are left, the host must carry out the calls.
TEST(DeviceRooms, RanksThatCannotGoInRoundsGoByTheHost) {
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
  EXPECT_TRUE(Job(std::vector<Devices>{{0, 0, 1}}).run(body, std::chrono::seconds(20)));
}

}  // namespace
}  // namespace tutti::testing

// Several communicators on the same GPUs, whose calls come to each GPU in another order.
#include "runtime/device_room.h"

#include <chrono>
#include <vector>

#include "device_double/calls_support.h"

namespace tutti::testing {
namespace {

using detail::DeviceRoom;
using detail::Launches;

cuda::CUuuid uuid_of(char first) {
  cuda::CUuuid uuid{};
  uuid.bytes[0] = first;
  return uuid;
}

TEST(DeviceRooms, LeaveRoomForWhatEnds) {
  const cuda::CUuuid device = uuid_of(1);
  DeviceRoom ends;
  ASSERT_TRUE(ends.take(device, 32, Launches::kEnd, 24));
  EXPECT_EQ(DeviceRoom::left(device, 32).to_end, 32u) << "what ends waits for what ends";
  EXPECT_EQ(DeviceRoom::left(device, 32).to_stay, 4u) << "half of 8";
  DeviceRoom stays;
  EXPECT_FALSE(stays.take(device, 32, Launches::kStay, 9));
  ASSERT_TRUE(stays.take(device, 32, Launches::kStay, 8));
  EXPECT_EQ(DeviceRoom::left(device, 32).to_stay, 0u);
  EXPECT_EQ(DeviceRoom::left(device, 32).to_end, 24u);
  EXPECT_EQ(DeviceRoom::left(uuid_of(2), 32).to_end, 32u) << "another device";
  DeviceRoom smaller;
  EXPECT_FALSE(smaller.take(device, 32, Launches::kEnd, 25));
  ASSERT_TRUE(smaller.take(device, 32, Launches::kEnd, 2));
  ends = {};
  EXPECT_EQ(DeviceRoom::left(device, 32).to_stay, 11u) << "half of 32 - 8 - 2";
  DeviceRoom moved = std::move(stays);
  stays = {};
  EXPECT_EQ(DeviceRoom::left(device, 32).to_end, 24u);
  moved = {};
  EXPECT_EQ(DeviceRoom::left(device, 32).to_end, 32u);
}

TEST(DeviceRooms, KeepOneBlockForWhatNeedsNone) {
  const cuda::CUuuid device = uuid_of(3);
  std::vector<DeviceRoom> all;
  std::uint32_t taken = 0;
  while (const std::uint32_t left = DeviceRoom::left(device, 33).to_stay) {
    all.emplace_back();
    ASSERT_TRUE(all.back().take(device, 33, Launches::kStay, left));
    taken += left;
  }
  EXPECT_EQ(taken, 32u);
  EXPECT_EQ(all.size(), 6u) << "16, 8, 4, 2, 1, 1";
}

// Calls of `many` communicators over two GPUs, which come to one in ascending, to the other in descending order, each
// in a stream of its own. Were every one given what it wants, the first ones would fill one GPU and the last ones the
// other.
void run_crosswise(std::size_t many, Communicators& ranks) {
  constexpr std::size_t kCount = 16'384;
  std::vector<unsigned> launched(ranks.size());
  on_every_rank(ranks, [&](Communicator& rank) {
    const auto me = static_cast<std::size_t>(rank.rank());
    std::vector<Gpu> gpus;
    std::vector<cuda::DeviceMemory> memory;
    Communicators communicators;
    for (std::size_t i = 0; i < many; ++i) {
      auto made = rank.split(0, rank.rank());
      ASSERT_TRUE(made.ok()) << to_string(made.error());
      communicators.push_back(*std::move(made));
      gpus.emplace_back(static_cast<int>(me));
      memory.push_back(gpus.back().allocate(kCount * sizeof(std::int32_t)));
      gpus.back().put(memory.back(), Bytes(memory.back().bytes(), std::byte{static_cast<unsigned char>(i + 1)}));
    }
    for (std::size_t turn = 0; turn < 2 * many; ++turn) {
      const std::size_t i = me == 0 ? turn % many : many - 1 - turn % many;
      const auto work = communicators[i]->start(
          {.input = pointer(memory[i]), .output = pointer(memory[i]), .count = kCount, .type = DataType::kInt32},
          gpus[i].options());
      ASSERT_TRUE(work.ok()) << to_string(work.error());
    }
    for (std::size_t i = 0; i < many; ++i) {
      const auto value = static_cast<unsigned char>(4 * (i + 1));
      EXPECT_EQ(gpus[i].get(memory[i]), Bytes(memory[i].bytes(), std::byte{value})) << "communicator " << i;
      const Status status = communicators[i]->async_status();
      EXPECT_TRUE(status.ok()) << to_string(status.error());
    }
  });
}

TEST(DeviceRooms, ManyCommunicatorsOnTwoGpusDoNotKeepEachOtherFromRunning) {
  const cuda::fake::Control& fake = small_devices();
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(20);
  Communicators ranks = ranks_on({0, 1}, options);
  const unsigned before = fake.calls("cuLaunchKernel") + fake.calls("cuLaunchCooperativeKernel");
  run_crosswise(20, ranks);
  EXPECT_GE(fake.calls("cuLaunchKernel") + fake.calls("cuLaunchCooperativeKernel") - before, 80u) << "by the GPUs";
}

}  // namespace
}  // namespace tutti::testing

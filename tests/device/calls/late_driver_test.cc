// A program that loads the CUDA driver after its first calls on host memory. It has one test, because a process cannot
// unload the driver; with the fake driver.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/device/calls/staged.h"

namespace tutti::test {
namespace {

Bytes one(std::int32_t value) {
  Bytes bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

// Short calls on host memory take a path of their own, once a call of the same kind has been made. They must notice
// that a later buffer is device memory, even if the call passes no stream. The host can read the memory of the fake
// device, so the result alone does not show it: the call must also have put its two callbacks into the stream of each
// rank.
TEST(LateDriver, ShortCallsRecogniseDeviceMemory) {
  ASSERT_EQ(cuda::Driver::loaded(), nullptr) << "this program must not load the driver before the test does";
  Communicators ranks = make_ranks(2);
  on_every_rank(ranks, [](Communicator& rank) {
    std::int32_t value = 1;
    for (int call = 0; call < 3; ++call) {
      ASSERT_TRUE(rank.all_reduce(&value, &value, 1, DataType::kInt32, ReduceOp::kSum).ok());
    }
    EXPECT_EQ(value, 8);
  });
  ASSERT_EQ(cuda::Driver::loaded(), nullptr) << "a call on host memory must not load the driver";
  driver();
  const unsigned before = fake().calls("cuLaunchHostFunc");
  on_every_rank(ranks, [](Communicator& rank) {
    const Gpu gpu(rank.rank());
    const cuda::DeviceMemory memory = gpu.allocate(sizeof(std::int32_t));
    gpu.put(memory, one(rank.rank() + 1));
    const Status status = rank.all_reduce(pointer(memory), pointer(memory), 1, DataType::kInt32, ReduceOp::kSum);
    EXPECT_TRUE(status.ok()) << to_string(status.error());
    EXPECT_EQ(driver().api().stream_synchronize(nullptr), cuda::CUresult::kSuccess);
    EXPECT_EQ(gpu.get(memory), one(3));
  });
  EXPECT_EQ(fake().calls("cuLaunchHostFunc"), before + 4) << "device memory was taken for host memory";
}

}  // namespace
}  // namespace tutti::test

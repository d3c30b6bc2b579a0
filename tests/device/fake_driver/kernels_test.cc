// Tests of the fake driver: launches of kernels. Arguments are copied, kernels run at the same time if the device has
// enough free blocks, and a failed kernel breaks its context.
#include <cstring>

#include "tests/device/unit/driver_support.h"
#include "tests/support/patience.h"

namespace tutti::cuda {
namespace {

class KernelsTest : public CudaTest {
 protected:
  CUfunction function(const char* name) { return good(module_->function(name)); }
  void define(std::string name, std::vector<std::size_t> argument_bytes,
              std::function<CUresult(const fake::FakeLaunch&)> run) {
    fake().register_kernel({std::move(name), std::move(argument_bytes), std::move(run)});
  }
  void load() { module_.emplace(module()); }
  void TearDown() override {
    module_.reset();
    CudaTest::TearDown();
  }

  std::optional<Module> module_;
};

TEST_F(KernelsTest, ArgumentsAreThoseOfTheTimeOfTheLaunch) {
  define("store", {sizeof(std::uint64_t), sizeof(int)}, [](const fake::FakeLaunch& launch) {
    const auto address = *static_cast<std::uint64_t*>(launch.arguments[0]);
    const int value = *static_cast<int*>(launch.arguments[1]) * static_cast<int>(launch.grid[0] * launch.block[0]);
    std::memcpy(std::bit_cast<void*>(address), &value, sizeof(value));
    return CUresult::kSuccess;
  });
  load();
  const auto stream = good(Stream::create(driver()));
  const auto memory = good(DeviceMemory::allocate(driver(), 64));
  Gate gate;
  gate.put(api(), stream.handle());
  std::uint64_t address = memory.address();
  int value = 3;
  ASSERT_EQ(launch(function("store"), stream.handle(), {&address, &value}, 2), CUresult::kSuccess);
  address = 0;
  value = 0;
  gate.open();
  int result = 0;
  ASSERT_EQ(api().memcpy_dtoh_async(&result, memory.address(), sizeof(result), stream.handle()), CUresult::kSuccess);
  EXPECT_EQ(result, 3 * 2 * 32);
}

// Three kernels wait for each other, so they finish only if all of them run at the same time.
TEST_F(KernelsTest, LaunchesOfSeveralStreamsAndDevicesRunAtOnce) {
  std::atomic<int> arrived{0};
  define("meet", {sizeof(int)}, [&arrived](const fake::FakeLaunch& launch) {
    const int all = *static_cast<int*>(launch.arguments[0]);
    ++arrived;
    return test::eventually([&] { return arrived >= all; }) ? CUresult::kSuccess : CUresult::kLaunchTimeout;
  });
  load();
  auto primary = good(PrimaryContext::retain(driver(), 1));
  const auto first = good(Stream::create(driver()));
  const auto second = good(Stream::create(driver()));
  int all = 3;
  ASSERT_EQ(launch(function("meet"), first.handle(), {&all}, 8), CUresult::kSuccess);
  ASSERT_EQ(launch(function("meet"), second.handle(), {&all}, 8), CUresult::kSuccess);
  {
    const auto scope = good(ContextScope::enter(driver(), primary.context()));
    const auto far_module = module();
    const auto far = good(Stream::create(driver()));
    ASSERT_EQ(launch(good(far_module.function("meet")), far.handle(), {&all}, 16), CUresult::kSuccess);
    EXPECT_TRUE(far.synchronize().ok());
  }
  EXPECT_TRUE(first.synchronize().ok());
  EXPECT_TRUE(second.synchronize().ok());
}

TEST_F(KernelsTest, AKernelThatFindsNoRoomWaitsForTheOneBeforeIt) {
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  define("count", {}, [&](const fake::FakeLaunch&) {
    const int now = ++running;
    int before = most;
    while (before < now && !most.compare_exchange_weak(before, now)) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // time in which another one could wrongly run
    --running;
    return CUresult::kSuccess;
  });
  load();
  std::vector<Stream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(good(Stream::create(driver())));
  for (const Stream& stream : streams) {
    ASSERT_EQ(launch(function("count"), stream.handle(), {}, 9), CUresult::kSuccess);  // the device has 16 blocks
  }
  for (const Stream& stream : streams) EXPECT_TRUE(stream.synchronize().ok());
  EXPECT_EQ(most, 1);
  most = 0;
  ASSERT_EQ(launch(function("count"), streams[0].handle(), {}, 1000),
            CUresult::kSuccess);  // more blocks than the device has
  EXPECT_TRUE(streams[0].synchronize().ok());
  EXPECT_EQ(most, 1);
}

TEST_F(KernelsTest, AFailedKernelLosesTheContextAndNothingElse) {
  define("trip", {}, [](const fake::FakeLaunch&) { return CUresult::kIllegalAddress; });
  CUcontext lent = fake().create_context(0);
  {
    const auto scope = good(ContextScope::enter(driver(), lent));
    const auto loaded = module();
    const auto stream = good(Stream::create(driver()));
    const auto memory = good(DeviceMemory::allocate(driver(), 64));
    ASSERT_EQ(launch(good(loaded.function("trip")), stream.handle(), {}), CUresult::kSuccess);
    const Status status = stream.synchronize();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().scope, ErrorScope::kProcess);
    EXPECT_NE(status.error().message.find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos);
    EXPECT_FALSE(DeviceMemory::allocate(driver(), 64).ok());  // the context remains broken
  }
  EXPECT_TRUE(DeviceMemory::allocate(driver(), 64).ok());  // the primary context still works
  fake().destroy_context(lent);
}

TEST_F(KernelsTest, MisuseIsRefused) {
  define("nothing", {sizeof(int)}, [](const fake::FakeLaunch&) { return CUresult::kSuccess; });
  load();
  CUfunction nothing = function("nothing");
  EXPECT_EQ(nothing, function("nothing"));
  const auto stream = good(Stream::create(driver()));
  int value = 0;
  std::array<void*, 1> arguments = {&value};
  const auto with = [&](unsigned grid, unsigned block, unsigned shared_bytes, void** given) {
    return api().launch_kernel(nothing, grid, 1, 1, block, 1, 1, shared_bytes, stream.handle(), given, nullptr);
  };
  EXPECT_EQ(with(0, 32, 0, arguments.data()), CUresult::kInvalidValue);
  EXPECT_EQ(with(1, 1025, 0, arguments.data()), CUresult::kInvalidValue);
  EXPECT_EQ(with(1, 32, 100'000, arguments.data()), CUresult::kInvalidValue);
  EXPECT_EQ(with(1, 32, 0, nullptr), CUresult::kInvalidValue);
  EXPECT_EQ(api().func_set_attribute(nothing, FunctionAttribute::kMaxDynamicSharedBytes, 100'000), CUresult::kSuccess);
  EXPECT_EQ(with(1, 32, 100'000, arguments.data()), CUresult::kSuccess);
  int blocks = 0;
  EXPECT_EQ(api().occupancy_max_active_blocks(&blocks, nothing, 512, 0), CUresult::kSuccess);
  EXPECT_EQ(blocks, 2);
  auto primary = good(PrimaryContext::retain(driver(), 1));
  {
    const auto scope = good(ContextScope::enter(driver(), primary.context()));
    const auto far = good(Stream::create(driver()));
    EXPECT_EQ(launch(nothing, far.handle(), {&value}),
              CUresult::kInvalidHandle);  // the module belongs to another context
  }
  module_.reset();
  EXPECT_EQ(with(1, 32, 0, arguments.data()), CUresult::kInvalidHandle);  // unloaded
}

}  // namespace
}  // namespace tutti::cuda

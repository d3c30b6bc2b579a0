// Tests of the classes that own driver objects. They must release the objects after success, after a failure half way,
// and must also work if the context or the driver ended before them.
#include "cuda/resources.h"

#include <gmock/gmock.h>

#include <cstring>

#include "tests/device/unit/driver_support.h"

namespace tutti::cuda {
namespace {

using testing::HasSubstr;

class ResourcesTest : public CudaTest {};

TEST_F(ResourcesTest, GiveBackWhatTheyHold) {
  {
    const auto stream = good(Stream::create(driver()));
    const auto event = good(Event::create(driver()));
    const auto memory = good(DeviceMemory::allocate(driver(), 1000));
    const auto pinned = good(PinnedMemory::allocate(driver(), 1000));
    std::vector<std::byte> own(5000);
    const auto registered = good(RegisteredMemory::add(driver(), own));
    const auto loaded = module();
    EXPECT_EQ(memory.address() % 256, 0U);
    EXPECT_EQ(pinned.bytes().size(), 1000U);
    EXPECT_EQ(registered.device_address(), address_of(own.data()));
    const std::string held = fake().leaks();
    for (const char* what : {"stream", "event", "device memory", "pinned memory", "registered host memory", "module"}) {
      EXPECT_THAT(held, HasSubstr(what));
    }
  }
  EXPECT_THAT(fake().leaks(), HasSubstr("primary context"));
  leave();
  EXPECT_EQ(fake().leaks(), "");
}

TEST_F(ResourcesTest, WhatGoesWithThePrimaryContextIsALeak) {
  CUdeviceptr address = 0;
  CUevent event = nullptr;
  ASSERT_EQ(api().mem_alloc(&address, 64), CUresult::kSuccess);
  ASSERT_EQ(api().event_create(&event, 0), CUresult::kSuccess);
  leave();
  const std::string lost = fake().leaks();
  EXPECT_THAT(lost, HasSubstr("device memory"));
  EXPECT_THAT(lost, HasSubstr("event"));
  EXPECT_EQ(fake().leaks(), "");  // each leak is reported once
}

TEST_F(ResourcesTest, EndInTheirContextWhereverTheyAreEnded) {
  auto stream = good(Stream::create(driver()));
  auto memory = good(DeviceMemory::allocate(driver(), 64));
  std::thread([stream = std::move(stream), memory = std::move(memory)] {
  }).join();  // destroys them in a thread without a context
  EXPECT_THAT(fake().leaks(), testing::Not(HasSubstr("stream")));
  EXPECT_THAT(fake().leaks(), testing::Not(HasSubstr("device memory")));
}

TEST_F(ResourcesTest, MoveLeavesNothingToEndTwice) {
  auto first = good(DeviceMemory::allocate(driver(), 64));
  auto second = good(DeviceMemory::allocate(driver(), 64));
  const CUdeviceptr address = second.address();
  first = std::move(second);
  EXPECT_EQ(first.address(), address);
  const unsigned frees = fake().calls("cuMemFree");
  { const auto third = std::move(first); }
  EXPECT_EQ(fake().calls("cuMemFree"), frees + 1);
}

TEST_F(ResourcesTest, FailuresOnTheWayLeakNothingAndAreNamed) {
  fake().fail("cuMemHostGetDevicePointer", 1, CUresult::kInvalidValue);
  const auto pinned = PinnedMemory::allocate(driver(), 4096);
  ASSERT_FALSE(pinned.ok());
  EXPECT_THAT(pinned.error().message, HasSubstr("cuMemHostGetDevicePointer fails: CUDA_ERROR_INVALID_VALUE"));
  EXPECT_THAT(fake().leaks(), testing::Not(HasSubstr("pinned")));
  fake().fail("cuMemHostGetDevicePointer", 1, CUresult::kInvalidValue);
  std::vector<std::byte> own(64);
  EXPECT_FALSE(RegisteredMemory::add(driver(), own).ok());
  EXPECT_THAT(fake().leaks(), testing::Not(HasSubstr("registered")));
  fake().fail("cuStreamCreateWithPriority", 1, CUresult::kOutOfMemory);
  EXPECT_FALSE(Stream::create(driver()).ok());
  EXPECT_FALSE(Module::load(driver(), "no image at all").ok());
  EXPECT_FALSE(module().function("no_such_kernel").ok());
}

TEST_F(ResourcesTest, OutOfDeviceMemorySaysHowMuchAndWhatToDo) {
  fake().set_memory_limit(0, 1 << 20);
  const auto held = good(DeviceMemory::allocate(driver(), 900'000));
  const auto refused = DeviceMemory::allocate(driver(), 200'000);
  fake().set_memory_limit(0, 1 << 30);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("cuMemAlloc of 200000 bytes fails: CUDA_ERROR_OUT_OF_MEMORY"));
  EXPECT_THAT(refused.error().message, HasSubstr("free device or pinned memory"));
}

TEST_F(ResourcesTest, OutliveTheirContext) {
  leave();
  CUcontext lent = fake().create_context(1);
  auto scope = std::optional(good(ContextScope::enter(driver(), lent)));
  {
    const auto stream = good(Stream::create(driver()));
    const auto event = good(Event::create(driver()));
    const auto memory = good(DeviceMemory::allocate(driver(), 64));
    const auto pinned = good(PinnedMemory::allocate(driver(), 64));
    const auto loaded = module();
    fake().destroy_context(lent);
    EXPECT_FALSE(event.record(stream.handle()).ok());
  }
  scope.reset();
  EXPECT_EQ(fake().leaks(), "");
}

TEST_F(ResourcesTest, OutliveThePrimaryContextThatSomebodyReset) {
  const auto memory = good(DeviceMemory::allocate(driver(), 64));
  fake().destroy_context(context());
  leave();
}

TEST_F(ResourcesTest, OutliveTheDriver) {
  {
    const auto stream = good(Stream::create(driver()));
    const auto memory = good(DeviceMemory::allocate(driver(), 64));
    fake().set_deinitialized(true);
  }
  EXPECT_FALSE(driver().device_count().ok());
  fake().set_deinitialized(false);
  EXPECT_THAT(fake().leaks(), HasSubstr("device memory"));  // it could not be freed
  fake().destroy_context(context());
}

TEST_F(ResourcesTest, ARefusalWithoutThatExcuseIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // runs in a new process, so that it can initialize the driver
  EXPECT_DEATH(
      {
        const auto memory = good(DeviceMemory::allocate(driver(), 64));
        fake().fail("cuMemFree", 1, CUresult::kInvalidValue);
      },
      "giving back what the CUDA driver had handed out fails: CUDA_ERROR_INVALID_VALUE");
}

}  // namespace
}  // namespace tutti::cuda

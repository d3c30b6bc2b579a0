// Tests of Driver: its version and devices, the text of errors, and contexts.
#include "cuda/driver.h"

#include <gmock/gmock.h>

#include <thread>

#include "tests/device/unit/driver_support.h"

namespace tutti::cuda {
namespace {

using testing::HasSubstr;

class DriverTest : public CudaTest {};

TEST_F(DriverTest, OpensOnceAndStaysTheSame) {
  EXPECT_EQ(*Driver::open(), &driver());
  EXPECT_EQ(Driver::loaded(), &driver());
  EXPECT_EQ(driver().version(), 13000);
  EXPECT_EQ(*driver().device_count(), 2);
}

TEST_F(DriverTest, HasEveryFunctionOfTheTable) {
  int functions = 0;
  for_each_function(api(), [&](const char* name, int, const auto& function) {
    EXPECT_NE(function, nullptr) << name;
    ++functions;
  });
  EXPECT_EQ(functions * sizeof(void*), sizeof(DriverApi));  // for_each_function() visits every member
}

TEST_F(DriverTest, ErrorsNameTheCallAndTheDriversWord) {
  EXPECT_TRUE(driver().check(CUresult::kSuccess, "cuMemAlloc").ok());
  const Status status = driver().check(CUresult::kOutOfMemory, "cuMemAlloc of 64 bytes");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kDevice);
  EXPECT_EQ(status.error().scope, ErrorScope::kCall);
  EXPECT_THAT(status.error().message, HasSubstr("cuMemAlloc of 64 bytes fails: CUDA_ERROR_OUT_OF_MEMORY (2, "));
  EXPECT_EQ(driver().error(CUresult::kIllegalAddress, "x").scope, ErrorScope::kProcess);
  EXPECT_THAT(driver().error(static_cast<CUresult>(4711), "x").message, HasSubstr("an unknown error (4711"));
}

TEST_F(DriverTest, CallsBeforeAContextAreRefused) {
  leave();
  const auto stream = Stream::create(driver());
  ASSERT_FALSE(stream.ok());
  EXPECT_THAT(stream.error().message, HasSubstr("CUDA_ERROR_INVALID_CONTEXT"));
  CUdevice device = -1;
  EXPECT_EQ(api().ctx_get_device(&device), CUresult::kInvalidContext);
}

TEST_F(DriverTest, ScopesNestAndEachDeviceHasItsPrimaryContext) {
  auto other = good(PrimaryContext::retain(driver(), 1));
  EXPECT_NE(other.context(), context());
  CUdevice device = -1;
  {
    const auto scope = good(ContextScope::enter(driver(), other.context()));
    EXPECT_EQ(api().ctx_get_device(&device), CUresult::kSuccess);
    EXPECT_EQ(device, 1);
  }
  EXPECT_EQ(api().ctx_get_device(&device), CUresult::kSuccess);
  EXPECT_EQ(device, 0);
  auto again = good(PrimaryContext::retain(driver(), 1));
  EXPECT_EQ(again.context(), other.context());
}

TEST_F(DriverTest, DevicesThatAreNotThereAreRefusedByName) {
  const auto primary = PrimaryContext::retain(driver(), 7);
  ASSERT_FALSE(primary.ok());
  EXPECT_THAT(primary.error().message, HasSubstr("device 7 fails: CUDA_ERROR_INVALID_DEVICE"));
}

TEST_F(DriverTest, DevicesTellWhatTheyAre) {
  std::array<char, 32> id{};
  ASSERT_EQ(api().device_get_pci_bus_id(id.data(), id.size(), 1), CUresult::kSuccess);
  EXPECT_STREQ(id.data(), "0000:11:00.0");
  CUuuid first;
  CUuuid second;
  ASSERT_EQ(api().device_get_uuid(&first, 0), CUresult::kSuccess);
  ASSERT_EQ(api().device_get_uuid(&second, 1), CUresult::kSuccess);
  EXPECT_NE(first, second);
  int can = 0;
  ASSERT_EQ(api().device_can_access_peer(&can, 0, 1), CUresult::kSuccess);
  EXPECT_EQ(can, 1);
  fake().set_peer_access(0, 1, false);
  ASSERT_EQ(api().device_can_access_peer(&can, 0, 1), CUresult::kSuccess);
  EXPECT_EQ(can, 0);
  ASSERT_EQ(api().device_get_p2p_attribute(&can, P2pAttribute::kAccessSupported, 1, 0), CUresult::kSuccess);
  EXPECT_EQ(can, 1);  // the other direction
  auto other = good(PrimaryContext::retain(driver(), 1));
  EXPECT_EQ(api().ctx_enable_peer_access(other.context(), 0), CUresult::kPeerAccessUnsupported);
  fake().set_peer_access(0, 1, true);
  EXPECT_EQ(api().ctx_enable_peer_access(other.context(), 0), CUresult::kSuccess);
  EXPECT_EQ(api().ctx_enable_peer_access(other.context(), 0), CUresult::kPeerAccessAlreadyEnabled);
}

TEST_F(DriverTest, EveryFunctionCanBeMadeToFail) {
  fake().fail("cuDeviceGetCount", 2, CUresult::kUnknown);
  EXPECT_TRUE(driver().device_count().ok());
  EXPECT_FALSE(driver().device_count().ok());
  EXPECT_TRUE(driver().device_count().ok());
}

TEST_F(DriverTest, AFunctionCanBeMadeToFailInOneThread) {
  fake().fail_here("cuDeviceGetCount", CUresult::kUnknown);
  std::thread([this] { EXPECT_TRUE(driver().device_count().ok()); }).join();
  EXPECT_FALSE(driver().device_count().ok());
  EXPECT_TRUE(driver().device_count().ok());
}

}  // namespace
}  // namespace tutti::cuda

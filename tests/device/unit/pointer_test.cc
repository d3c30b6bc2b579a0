// Tests of classify(): which type of memory a pointer points to.
#include "cuda/pointer.h"

#include "tests/device/unit/driver_support.h"

namespace tutti::cuda {
namespace {

class PointerTest : public CudaTest {};

const void* pointer(CUdeviceptr address) { return std::bit_cast<const void*>(address); }

TEST_F(PointerTest, HostMemoryIsTheHosts) {
  const int local = 0;
  EXPECT_EQ(good(classify(driver(), &local)), PointerInfo{});
  EXPECT_EQ(good(classify(driver(), nullptr)), PointerInfo{});
  EXPECT_EQ(good(classify(&local)), PointerInfo{});
}

TEST_F(PointerTest, DeviceMemoryNamesItsDeviceAndContext) {
  const auto memory = good(DeviceMemory::allocate(driver(), 1024));
  const PointerInfo expected{MemoryKind::kDevice, 0, context(), true};
  EXPECT_EQ(good(classify(driver(), pointer(memory.address()))), expected);
  EXPECT_EQ(good(classify(driver(), pointer(memory.address() + 1023))), expected);
  EXPECT_EQ(good(classify(driver(), pointer(memory.address() + 1024))), PointerInfo{});
  EXPECT_EQ(good(classify(pointer(memory.address()))), expected);
  auto other = good(PrimaryContext::retain(driver(), 1));
  const auto scope = good(ContextScope::enter(driver(), other.context()));
  const auto far = good(DeviceMemory::allocate(driver(), 1024));
  EXPECT_EQ(good(classify(driver(), pointer(far.address()))),
            (PointerInfo{MemoryKind::kDevice, 1, other.context(), true}));
  EXPECT_EQ(good(classify(driver(), pointer(memory.address()))), expected);  // independent of the current context
}

TEST_F(PointerTest, PinnedAndRegisteredMemoryArePinned) {
  const auto pinned = good(PinnedMemory::allocate(driver(), 64));
  std::vector<std::byte> own(64);
  const auto registered = good(RegisteredMemory::add(driver(), own));
  const PointerInfo expected{MemoryKind::kPinned, 0, context()};
  EXPECT_EQ(good(classify(driver(), pinned.bytes().data())), expected);
  EXPECT_EQ(good(classify(driver(), own.data() + 63)), expected);
}

TEST_F(PointerTest, ManagedMemoryIsManaged) {
  CUdeviceptr address = 0;
  ASSERT_EQ(api().mem_alloc_managed(&address, 64, kManagedGlobal), CUresult::kSuccess);
  EXPECT_EQ(good(classify(driver(), pointer(address))), (PointerInfo{MemoryKind::kManaged, 0, context()}));
  EXPECT_EQ(api().mem_free(address), CUresult::kSuccess);
}

TEST_F(PointerTest, MemoryThatWasFreedIsTheHostsAgain) {
  CUdeviceptr address = 0;
  {
    const auto memory = good(DeviceMemory::allocate(driver(), 1024));
    address = memory.address();
  }
  EXPECT_EQ(good(classify(driver(), pointer(address))), PointerInfo{});
}

TEST_F(PointerTest, TheDriversRefusalIsPassedOn) {
  fake().fail("cuPointerGetAttributes", 1, CUresult::kInvalidContext);
  EXPECT_FALSE(classify(driver(), this).ok());
}

}  // namespace
}  // namespace tutti::cuda

// Tests of the classes for virtual memory: adjacent mappings, memory that is shared through a file descriptor, and
// ShareableMemory, which can be registered later.
#include "cuda/virtual_memory.h"

#include <cstdlib>

#include "cuda/pointer.h"
#include "tests/device/unit/driver_support.h"

namespace tutti::cuda {
namespace {

constexpr std::size_t kGranule = std::size_t{2} << 20U;

class VirtualMemoryTest : public CudaTest {
 protected:
  void set(CUdeviceptr address, unsigned char value, std::size_t bytes) {
    const auto stream = good(Stream::create(driver()));
    ASSERT_EQ(api().memset_d8_async(address, value, bytes, stream.handle()), CUresult::kSuccess);
    ASSERT_TRUE(stream.synchronize().ok());
  }
  unsigned char get(CUdeviceptr address) {
    const auto stream = good(Stream::create(driver()));
    unsigned char value = 0;
    EXPECT_EQ(api().memcpy_dtoh_async(&value, address, 1, stream.handle()), CUresult::kSuccess);
    EXPECT_TRUE(stream.synchronize().ok());
    return value;
  }
  PhysicalMemory create(std::size_t bytes = kGranule) { return good(PhysicalMemory::create(driver(), 0, bytes)); }
};

TEST_F(VirtualMemoryTest, AllocationsLieSideBySide) {
  EXPECT_EQ(good(granularity(driver(), 0)), kGranule);
  auto mapped = good(MappedMemory::reserve(driver(), 3 * kGranule));
  ASSERT_TRUE(mapped.map(create(2 * kGranule), 2 * kGranule).ok());
  ASSERT_TRUE(mapped.map(create(), kGranule).ok());  // the memory remains as long as it is mapped
  EXPECT_EQ(mapped.mapped(), 3 * kGranule);
  ASSERT_TRUE(mapped.allow(std::vector<int>{0}).ok());
  set(mapped.address(), 7, 3 * kGranule);
  EXPECT_EQ(get(mapped.address()), 7);
  EXPECT_EQ(get(mapped.address() + 3 * kGranule - 1), 7);
  const MappedMemory moved = std::move(mapped);
  set(moved.address() + 2 * kGranule - 1, 8, 2);
  EXPECT_EQ(get(moved.address() + 2 * kGranule), 8);
}

TEST_F(VirtualMemoryTest, MemoryIsFoundByItsAddressAndMappedAgain) {
  auto first = good(MappedMemory::reserve(driver(), kGranule));
  ASSERT_TRUE(first.map(create(), kGranule).ok());
  ASSERT_TRUE(first.allow(std::vector<int>{0}).ok());
  const auto found = good(PhysicalMemory::behind(driver(), first.address() + 100));
  ASSERT_TRUE(found);
  EXPECT_EQ(good(found->properties()).device, 0);
  EXPECT_TRUE(good(found->properties()).shareable);
  auto second = good(MappedMemory::reserve(driver(), kGranule));
  ASSERT_TRUE(second.map(*found, kGranule).ok());
  ASSERT_TRUE(second.allow(std::vector<int>{0, 1}).ok());
  set(first.address() + 5, 42, 1);
  EXPECT_EQ(get(second.address() + 5), 42);
  const auto plain = good(DeviceMemory::allocate(driver(), 64));
  EXPECT_FALSE(good(PhysicalMemory::behind(driver(), plain.address())));
}

TEST_F(VirtualMemoryTest, WhatWasNotMadeToBeSharedSaysSo) {
  const CUmemAllocationProp alone{.requested_handle_types = MemHandleType::kNone, .location = {}};
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(api().mem_create(&handle, kGranule, &alone, 0), CUresult::kSuccess);
  CUdeviceptr address = 0;
  ASSERT_EQ(api().mem_address_reserve(&address, kGranule, 0, 0, 0), CUresult::kSuccess);
  ASSERT_EQ(api().mem_map(address, kGranule, 0, handle, 0), CUresult::kSuccess);
  {
    const auto found = good(PhysicalMemory::behind(driver(), address));
    ASSERT_TRUE(found);
    EXPECT_FALSE(good(found->properties()).shareable);
    EXPECT_FALSE(found->share().ok());
  }
  EXPECT_EQ(api().mem_unmap(address, kGranule), CUresult::kSuccess);
  EXPECT_EQ(api().mem_address_free(address, kGranule), CUresult::kSuccess);
  EXPECT_EQ(api().mem_release(handle), CUresult::kSuccess);
}

// Each step of the allocation fails once. Nothing may be leaked; the fixture checks this, too.
TEST_F(VirtualMemoryTest, AnAllocationThatFailsHalfWayIsGivenBack) {
  for (const char* step : {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    fake().fail(step, 1, CUresult::kOutOfMemory);
    const auto memory = ShareableMemory::allocate(driver(), 1000);
    ASSERT_FALSE(memory.ok()) << step;
    EXPECT_NE(memory.error().message.find(step), std::string::npos) << memory.error().message;
    EXPECT_EQ(fake().leaks().find("memory"), std::string::npos) << step;
    EXPECT_EQ(fake().leaks().find("addresses"), std::string::npos) << step;
  }
}

TEST_F(VirtualMemoryTest, ShareableMemoryIsMappedWhereThereIsVirtualMemory) {
  CUdeviceptr released = 0;
  {
    auto memory = good(ShareableMemory::allocate(driver(), 1000));
    auto other = good(ShareableMemory::allocate(driver(), kGranule + 1));
    EXPECT_TRUE(good(PhysicalMemory::behind(driver(), memory.address())));
    EXPECT_EQ(memory.address() % 256, 0U);
    set(memory.address(), 3, 1000);
    set(other.address(), 4, kGranule + 1);
    {
      const auto far = good(PrimaryContext::retain(driver(), 1));
      const auto scope = good(ContextScope::enter(driver(), far.context()));
      set(memory.address(), 5, 1);  // other devices can use the memory, too
    }
    EXPECT_EQ(get(memory.address()), 5);
    EXPECT_EQ(get(other.address() + kGranule), 4);
    released = memory.release();
  }
  EXPECT_EQ(get(released), 5);
  const Status inside = ShareableMemory::free(driver(), released + 256);
  ASSERT_FALSE(inside.ok());
  EXPECT_EQ(inside.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(get(released), 5);
  EXPECT_TRUE(ShareableMemory::free(driver(), released).ok());
  const Status again = ShareableMemory::free(driver(), released);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(VirtualMemoryTest, ShareableMemoryIsPlainWhereThereIsNone) {
  setenv("FAKE_CUDA_VMM", "0", 1);
  const auto physical = PhysicalMemory::create(driver(), 0, kGranule);
  ASSERT_FALSE(physical.ok());
  EXPECT_EQ(physical.error().code, ErrorCode::kUnsupported);
  auto memory = good(ShareableMemory::allocate(driver(), 1000));
  EXPECT_TRUE(good(classify(driver(), std::bit_cast<void*>(memory.address()))).plain);
  const CUdeviceptr address = good(ShareableMemory::allocate(driver(), 64)).release();
  set(address, 9, 64);
  {
    const auto other = good(PrimaryContext::retain(driver(), 1));
    const auto scope = good(ContextScope::enter(driver(), other.context()));
    EXPECT_TRUE(ShareableMemory::free(driver(), address).ok());
  }
  unsetenv("FAKE_CUDA_VMM");
}

}  // namespace
}  // namespace tutti::cuda

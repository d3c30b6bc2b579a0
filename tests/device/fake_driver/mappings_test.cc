// Tests of the fake driver: virtual memory management, i.e. physical memory, reserved addresses, mappings and access.
#include <unistd.h>

#include "cuda/pointer.h"
#include "tests/device/unit/driver_support.h"

namespace tutti::cuda {
namespace {

constexpr std::size_t kBytes = std::size_t{2} << 20U;

class MappingsTest : public CudaTest {
 protected:
  static constexpr CUmemAllocationProp kOnDevice0 = {};

  CUmemGenericAllocationHandle create(std::size_t bytes = kBytes) {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(api().mem_create(&handle, bytes, &kOnDevice0, 0), CUresult::kSuccess);
    return handle;
  }
  CUdeviceptr reserve(std::size_t bytes = kBytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(api().mem_address_reserve(&address, bytes, 0, 0, 0), CUresult::kSuccess);
    return address;
  }
  CUresult allow_access(CUdeviceptr address, int device) {
    const CUmemAccessDesc access{{MemLocationType::kDevice, device}, MemAccess::kReadWrite};
    return api().mem_set_access(address, kBytes, &access, 1);
  }
};

TEST_F(MappingsTest, MappedMemoryIsUsableOnceAccessIsGiven) {
  std::size_t granularity = 0;
  ASSERT_EQ(api().mem_get_allocation_granularity(&granularity, &kOnDevice0, MemGranularity::kMinimum),
            CUresult::kSuccess);
  EXPECT_EQ(granularity, kBytes);
  const CUmemGenericAllocationHandle handle = create();
  const CUdeviceptr address = reserve();
  EXPECT_EQ(address % granularity, 0U);
  ASSERT_EQ(api().mem_map(address, kBytes, 0, handle, 0), CUresult::kSuccess);
  const auto stream = good(Stream::create(driver()));
  EXPECT_EQ(api().memset_d8_async(address, 1, 4, stream.handle()), CUresult::kInvalidValue);
  ASSERT_EQ(allow_access(address, 0), CUresult::kSuccess);
  ASSERT_EQ(api().memset_d8_async(address, 1, 4, stream.handle()), CUresult::kSuccess);
  std::uint32_t word = 0;
  ASSERT_EQ(api().memcpy_dtoh_async(&word, address, 4, stream.handle()), CUresult::kSuccess);
  EXPECT_EQ(word, 0x01010101U);
  EXPECT_EQ(good(classify(driver(), std::bit_cast<void*>(address))), (PointerInfo{MemoryKind::kDevice, 0, nullptr}));
  CUipcMemHandle ipc;
  EXPECT_EQ(api().ipc_get_mem_handle(&ipc, address), CUresult::kInvalidValue);
  EXPECT_EQ(api().mem_release(handle), CUresult::kSuccess);  // the memory remains as long as it is mapped
  EXPECT_EQ(api().mem_address_free(address, kBytes), CUresult::kInvalidValue);
  EXPECT_EQ(api().mem_unmap(address, kBytes), CUresult::kSuccess);
  EXPECT_EQ(api().mem_address_free(address, kBytes), CUresult::kSuccess);
}

TEST_F(MappingsTest, OneMemoryMayLieAtSeveralAddresses) {
  const CUmemGenericAllocationHandle handle = create();
  const CUdeviceptr addresses = reserve(2 * kBytes);
  for (const CUdeviceptr address : {addresses, addresses + kBytes}) {
    ASSERT_EQ(api().mem_map(address, kBytes, 0, handle, 0), CUresult::kSuccess);
    ASSERT_EQ(allow_access(address, 0), CUresult::kSuccess);
  }
  const auto stream = good(Stream::create(driver()));
  ASSERT_EQ(api().memset_d8_async(addresses, 7, 4, stream.handle()), CUresult::kSuccess);
  std::uint32_t word = 0;
  ASSERT_EQ(api().memcpy_dtoh_async(&word, addresses + kBytes, 4, stream.handle()), CUresult::kSuccess);
  EXPECT_EQ(word, 0x07070707U);
  for (const CUdeviceptr address : {addresses, addresses + kBytes}) {
    EXPECT_EQ(api().mem_unmap(address, kBytes), CUresult::kSuccess);
  }
  EXPECT_EQ(api().mem_address_free(addresses, 2 * kBytes), CUresult::kSuccess);
  EXPECT_EQ(api().mem_release(handle), CUresult::kSuccess);
}

TEST_F(MappingsTest, AMappingIsTracedToItsMemory) {
  const CUmemGenericAllocationHandle handle = create();
  const CUdeviceptr address = reserve(2 * kBytes);
  CUmemGenericAllocationHandle found = 0;
  EXPECT_EQ(api().mem_retain_allocation_handle(&found, std::bit_cast<void*>(address)), CUresult::kInvalidValue);
  ASSERT_EQ(api().mem_map(address, kBytes, 0, handle, 0), CUresult::kSuccess);
  EXPECT_EQ(api().mem_release(handle), CUresult::kSuccess);
  ASSERT_EQ(api().mem_retain_allocation_handle(&found, std::bit_cast<void*>(address + 99)), CUresult::kSuccess);
  CUmemAllocationProp properties{.requested_handle_types = MemHandleType::kNone, .location = {.id = 7}};
  ASSERT_EQ(api().mem_get_allocation_properties(&properties, found), CUresult::kSuccess);
  EXPECT_EQ(properties.requested_handle_types, MemHandleType::kPosixFd);
  EXPECT_EQ(properties.location.id, 0);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  ASSERT_EQ(api().mem_map(address + kBytes, kBytes, 0, found, 0), CUresult::kSuccess);
  ASSERT_EQ(api().mem_get_address_range(&base, &bytes, address + kBytes + 1), CUresult::kSuccess);
  EXPECT_EQ(base, address + kBytes) << "the range must be that of one mapping, not of all adjacent mappings";
  EXPECT_EQ(bytes, kBytes);
  const CUmemAccessDesc access{};
  EXPECT_EQ(api().mem_set_access(address, kBytes + 1, &access, 1), CUresult::kInvalidValue);
  EXPECT_EQ(api().mem_set_access(address, 2 * kBytes, &access, 1), CUresult::kSuccess);
  EXPECT_EQ(api().mem_unmap(address, 2 * kBytes), CUresult::kInvalidValue);
  EXPECT_EQ(api().mem_unmap(address, kBytes), CUresult::kSuccess);
  EXPECT_EQ(api().mem_set_access(address, 2 * kBytes, &access, 1), CUresult::kInvalidValue);
  EXPECT_EQ(api().mem_unmap(address + kBytes, kBytes), CUresult::kSuccess);
  EXPECT_EQ(api().mem_release(found), CUresult::kSuccess);
  EXPECT_EQ(api().mem_address_free(address, 2 * kBytes), CUresult::kSuccess);
}

TEST_F(MappingsTest, MemoryCountsUntilItsLastMappingIsGone) {
  fake().set_memory_limit(0, kBytes);
  CUmemGenericAllocationHandle second = 0;
  const CUmemGenericAllocationHandle handle = create();
  EXPECT_EQ(api().mem_create(&second, kBytes, &kOnDevice0, 0), CUresult::kOutOfMemory);
  const CUdeviceptr address = reserve();
  ASSERT_EQ(api().mem_map(address, kBytes, 0, handle, 0), CUresult::kSuccess);
  EXPECT_EQ(api().mem_release(handle), CUresult::kSuccess);
  EXPECT_EQ(api().mem_create(&second, kBytes, &kOnDevice0, 0), CUresult::kOutOfMemory);
  EXPECT_EQ(api().mem_unmap(address, kBytes), CUresult::kSuccess);
  EXPECT_EQ(api().mem_create(&second, kBytes, &kOnDevice0, 0), CUresult::kSuccess);
  EXPECT_EQ(api().mem_release(second), CUresult::kSuccess);
  EXPECT_EQ(api().mem_address_free(address, kBytes), CUresult::kSuccess);
  fake().set_memory_limit(0, std::size_t{1} << 30U);
}

TEST_F(MappingsTest, MisuseIsRefused) {
  const CUmemGenericAllocationHandle handle = create();
  const CUdeviceptr address = reserve();
  CUmemGenericAllocationHandle odd = 0;
  EXPECT_EQ(api().mem_create(&odd, 4096, &kOnDevice0, 0), CUresult::kInvalidValue);
  EXPECT_EQ(api().mem_map(address + kBytes, kBytes, 0, handle, 0), CUresult::kInvalidValue);
  EXPECT_EQ(api().mem_map(address, 2 * kBytes, 0, handle, 0), CUresult::kInvalidValue);
  EXPECT_EQ(api().mem_map(address, kBytes, 0, handle + 16, 0), CUresult::kInvalidValue);
  ASSERT_EQ(api().mem_map(address, kBytes, 0, handle, 0), CUresult::kSuccess);
  EXPECT_EQ(api().mem_map(address, kBytes, 0, handle, 0), CUresult::kInvalidValue);
  fake().set_peer_access(1, 0, false);
  EXPECT_EQ(allow_access(address, 1), CUresult::kInvalidDevice);
  fake().set_peer_access(1, 0, true);
  EXPECT_EQ(allow_access(address, 1), CUresult::kSuccess);
  EXPECT_EQ(allow_access(address, 5), CUresult::kInvalidDevice);
  EXPECT_EQ(api().mem_unmap(address, kBytes), CUresult::kSuccess);
  EXPECT_EQ(api().mem_unmap(address, kBytes), CUresult::kInvalidValue);
  EXPECT_EQ(api().mem_address_free(address, kBytes), CUresult::kSuccess);
  EXPECT_EQ(api().mem_release(handle), CUresult::kSuccess);
  EXPECT_EQ(api().mem_release(handle), CUresult::kInvalidValue);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  EXPECT_EQ(api().mem_import_from_shareable_handle(&odd, std::bit_cast<void*>(std::intptr_t{pipes[0]}),
                                                   MemHandleType::kPosixFd),
            CUresult::kInvalidValue);
  close(pipes[0]);
  close(pipes[1]);
}

}  // namespace
}  // namespace tutti::cuda

// Tests of the driver of this machine: the assumptions about virtual memory on which the registration of mapped memory
// depends (device/native/exported_memory.h). The driver must find the range and the allocation of a mapping from an
// address, a file descriptor must represent the allocation, and two mappings of one allocation must be the same memory.
// The test uses one process, because a descriptor works in the same way between processes.
#include "cuda/virtual_memory.h"

#include <array>
#include <bit>
#include <cstddef>
#include <vector>

#include "cuda/pointer.h"
#include "tests/device/hardware/support.h"

namespace tutti::test {
namespace {

class GpuVirtualMemory : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    const auto granule = cuda::granularity(gpu().driver(), 0);
    if (!granule && granule.error().code == ErrorCode::kUnsupported) {
      GTEST_SKIP() << "not run: " << to_string(granule.error());
    }
    ASSERT_TRUE(granule.ok()) << to_string(granule.error());
    granule_ = *granule;
  }

  template <class T>
  static T good(Result<T> result) {
    EXPECT_TRUE(result.ok()) << to_string(result.error());
    return std::move(result).value();
  }
  static void good(const Status& status) { EXPECT_TRUE(status.ok()) << to_string(status.error()); }

  // Maps the allocations `parts` one after another. granules[i] is the size of part i, in granules.
  cuda::MappedMemory map(const std::vector<cuda::PhysicalMemory>& parts, const std::vector<std::size_t>& granules) {
    std::size_t bytes = 0;
    for (const std::size_t one : granules) bytes += one * granule_;
    auto mapped = good(cuda::MappedMemory::reserve(gpu().driver(), bytes));
    for (std::size_t i = 0; i < parts.size(); ++i) good(mapped.map(parts[i], granules[i] * granule_));
    const std::array own = {0};
    good(mapped.allow(own));
    return mapped;
  }

  std::size_t granule_ = 0;
};

// The data that is written and read crosses the boundary between the two allocations.
TEST_F(GpuVirtualMemory, AFileBringsTheSameMemoryToOtherAddresses) {
  const cuda::Driver& driver = gpu().driver();
  const auto scope = good(cuda::ContextScope::enter(driver, gpu().context()));
  const std::vector<std::size_t> granules = {1, 2};
  std::vector<cuda::PhysicalMemory> own;
  std::vector<cuda::PhysicalMemory> imported;
  for (const std::size_t one : granules) {
    own.push_back(good(cuda::PhysicalMemory::create(driver, 0, one * granule_)));
    imported.push_back(good(cuda::PhysicalMemory::import(driver, good(own.back().share()))));
  }
  const cuda::MappedMemory here = map(own, granules);
  const cuda::MappedMemory there = map(imported, granules);
  ASSERT_NE(here.address(), there.address());
  std::vector<std::byte> bytes(2 * granule_);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 >> 3);
  good(gpu().put(here.address() + granule_ / 2, bytes));
  std::vector<std::byte> got(bytes.size());
  good(gpu().get(got, there.address() + granule_ / 2));
  EXPECT_EQ(got, bytes);
}

TEST_F(GpuVirtualMemory, AMappingIsFoundByItsAddress) {
  const cuda::Driver& driver = gpu().driver();
  const auto scope = good(cuda::ContextScope::enter(driver, gpu().context()));
  std::vector<cuda::PhysicalMemory> own;
  own.push_back(good(cuda::PhysicalMemory::create(driver, 0, granule_)));
  own.push_back(good(cuda::PhysicalMemory::create(driver, 0, 2 * granule_)));
  const cuda::MappedMemory mapped = map(own, {1, 2});
  const cuda::CUdeviceptr second = mapped.address() + granule_;
  cuda::CUdeviceptr base = 0;
  std::size_t bytes = 0;
  ASSERT_EQ(driver.api().mem_get_address_range(&base, &bytes, second + 100), cuda::CUresult::kSuccess);
  EXPECT_EQ(base, second);
  EXPECT_EQ(bytes, 2 * granule_);
  const void* pointer = std::bit_cast<const void*>(second + 100);
  const auto where = good(cuda::classify(driver, pointer));
  EXPECT_EQ(where.kind, cuda::MemoryKind::kDevice);
  EXPECT_EQ(where.device, 0);
  EXPECT_TRUE(where.context == nullptr || where.context == gpu().context());
  EXPECT_FALSE(where.plain);
  EXPECT_FALSE(good(cuda::is_pool_memory(driver, pointer)));
  const auto found = good(cuda::PhysicalMemory::behind(driver, second + 100));
  ASSERT_TRUE(found);
  EXPECT_EQ(good(found->properties()).device, 0);
  EXPECT_TRUE(good(found->properties()).shareable);
}

TEST_F(GpuVirtualMemory, MemoryThatCannotBeMappedIsKnown) {
  const cuda::Driver& driver = gpu().driver();
  const auto scope = good(cuda::ContextScope::enter(driver, gpu().context()));
  std::vector<std::byte> own(granule_);
  EXPECT_EQ(good(cuda::classify(driver, own.data())), cuda::PointerInfo{});
  const auto pointer_of = [](const std::byte* at) -> const void* { return at; };
  const auto pinned = good(cuda::PinnedMemory::allocate(driver, 64));
  const auto registered = good(cuda::RegisteredMemory::add(driver, own));
  for (const void* const pointer : {pointer_of(pinned.bytes().data()), pointer_of(own.data() + 63)}) {
    const auto where = good(cuda::classify(driver, pointer));
    EXPECT_EQ(where.kind, cuda::MemoryKind::kPinned);
    EXPECT_FALSE(where.plain);
  }
  cuda::CUdeviceptr managed = 0;
  ASSERT_EQ(driver.api().mem_alloc_managed(&managed, 64, cuda::kManagedGlobal), cuda::CUresult::kSuccess);
  const auto where = good(cuda::classify(driver, std::bit_cast<const void*>(managed)));
  EXPECT_EQ(where.kind, cuda::MemoryKind::kManaged);
  EXPECT_FALSE(where.plain);
  EXPECT_EQ(driver.api().mem_free(managed), cuda::CUresult::kSuccess);
}

TEST_F(GpuVirtualMemory, MemoryToBeSharedIsFreedByItsAddress) {
  const cuda::Driver& driver = gpu().driver();
  const auto scope = good(cuda::ContextScope::enter(driver, gpu().context()));
  const cuda::CUdeviceptr address = good(cuda::ShareableMemory::allocate(driver, granule_ + 1)).release();
  const std::vector<std::byte> bytes(granule_ + 1, std::byte{7});
  good(gpu().put(address, bytes));
  good(gpu().synchronize());
  EXPECT_FALSE(cuda::ShareableMemory::free(driver, address + granule_).ok());
  good(cuda::ShareableMemory::free(driver, address));
  EXPECT_FALSE(cuda::ShareableMemory::free(driver, address).ok());
  const auto plain = good(gpu().allocate(1000));
  EXPECT_TRUE(good(cuda::classify(driver, std::bit_cast<const void*>(plain.address()))).plain);
}

}  // namespace
}  // namespace tutti::test

// Tests of registered memory that was mapped with the virtual memory functions (cuMemMap): one allocation or several
// adjacent ones, between processes and between GPUs. Memory that cannot be shared, and failures during the
// registration, must be reported on all ranks and must leak nothing.
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/virtual_memory.h"
#include "tests/device/calls/windows_support.h"

namespace tutti::testing {
namespace {

constexpr std::size_t kGranule = std::size_t{2} << 20;

std::byte* byte_at(cuda::CUdeviceptr address) { return reinterpret_cast<std::byte*>(address); }

// Maps adjacent allocations on `device`, with access for `device`. granules[i] is the size of allocation i, in
// granules.
cuda::MappedMemory mapped(int device, const std::vector<std::size_t>& granules) {
  std::size_t all = 0;
  for (const std::size_t one : granules) all += one;
  auto memory = cuda::MappedMemory::reserve(driver(), all * kGranule).value();
  for (const std::size_t one : granules) {
    const auto physical = cuda::PhysicalMemory::create(driver(), device, one * kGranule);
    must(physical.ok(), "physical memory");
    must(memory.map(*physical, one * kGranule));
  }
  must(memory.allow(std::vector<int>{device}));
  return memory;
}

int device_of_current() {
  int device = -1;
  must(driver().api().ctx_get_device(&device) == cuda::CUresult::kSuccess, "device");
  return device;
}

std::ptrdiff_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator{});
}

class MappedWindows : public ::testing::TestWithParam<std::vector<Devices>> {
 protected:
  static bool run(const Job::Body& body) {
    return Job(GetParam()).run(body, kLongTimeout, [] { SlotInspector::begin(); });
  }
};

// The ranks' memory consists of allocations of different sizes, and every buffer crosses the boundary between two
// allocations of some rank.
TEST_P(MappedWindows, CarryCallsPastTheSlots) {
  EXPECT_TRUE(run([](Communicator& rank, const Gpu& gpu) {
    const auto ranks = static_cast<std::size_t>(rank.size());
    const auto me = static_cast<std::size_t>(rank.rank());
    std::vector<std::size_t> granules(me + 1, 1);
    granules.push_back(2);
    const cuda::MappedMemory memory = mapped(device_of_current(), granules);
    std::byte* middle = byte_at(memory.address() + (me + 1) * kGranule);
    std::byte* in = middle - kBlock / 2;
    std::byte* out = middle + kBlock / 2;
    gather(rank, gpu, in, out);
    mark_slots(rank);
    {
      const Memory window = registered(rank, in - 64, (ranks + 2) * kBlock);
      gather(rank, gpu, in, out);
      must(all_untouched(rank), "all_gather used slots");
      gather(rank, gpu, nullptr, in);
      must(all_untouched(rank), "all_gather in place used slots");
      sum(rank, gpu, in, out, Algorithm::kOneShot);
      must(all_untouched(rank), "all_reduce used slots");
      for (const Algorithm algorithm : {Algorithm::kTwoShot, Algorithm::kRing, Algorithm::kDoubleTree}) {
        sum(rank, gpu, in, out, algorithm);
        sum(rank, gpu, out, out, algorithm);
      }
      must(rank.barrier());
    }
    gather(rank, gpu, in, out);
    must(rank.barrier());
  }));
}

// Even ranks register mapped memory (from ShareableMemory), and odd ranks memory of cuMemAlloc.
TEST_P(MappedWindows, MeetPlainOnes) {
  EXPECT_TRUE(run([](Communicator& rank, const Gpu& gpu) {
    const auto ranks = static_cast<std::size_t>(rank.size());
    const auto shareable = cuda::ShareableMemory::allocate(driver(), (ranks + 1) * kBlock).value();
    const cuda::DeviceMemory plain = gpu.allocate((ranks + 1) * kBlock);
    std::byte* in = byte_at(rank.rank() % 2 == 0 ? shareable.address() : plain.address());
    gather(rank, gpu, in, in + kBlock);
    for (int round = 0; round < 3; ++round) {
      const Memory window = registered(rank, in, (ranks + 1) * kBlock);
      mark_slots(rank);
      gather(rank, gpu, in, in + kBlock);
      must(all_untouched(rank), "all_gather used slots");
      sum(rank, gpu, in, in + kBlock, Algorithm::kTwoShot);
      must(rank.barrier());
    }
    must(rank.barrier());
  }));
}

INSTANTIATE_TEST_SUITE_P(Processes, MappedWindows, ::testing::ValuesIn(kProcesses),
                         [](const auto& its) { return name_of(its.param); });

// Two ranks exchange at most 64 file descriptors in a round, so this registration needs several rounds. No file may
// stay open afterwards.
TEST(MappedWindowsOfManyParts, AreMappedInOrder) {
  EXPECT_TRUE(Job(Devices{0, 1}).run([](Communicator& rank, const Gpu& gpu) {
    const std::size_t parts = rank.rank() == 0 ? 130 : 3;
    const cuda::MappedMemory memory = mapped(device_of_current(), std::vector<std::size_t>(parts, 1));
    // The buffers cross boundaries near the begin and the end of the memory, so that the result is wrong if the parts
    // are mapped in the wrong order.
    std::byte* in = byte_at(memory.address() + (parts - 1) * kGranule) - kBlock / 2;
    std::byte* out = byte_at(memory.address() + kGranule) - kBlock;
    sum(rank, gpu, in, out, Algorithm::kOneShot);
    gather(rank, gpu, in, out);  // makes the plans, which are kept and have memory (files) of their own
    const auto before = open_files();
    {
      const Memory window = registered(rank, byte_at(memory.address()), parts * kGranule);
      must(rank.barrier());
      // The fake driver keeps one file open for every mapping.
      const auto peers = static_cast<std::ptrdiff_t>(rank.rank() == 0 ? 3 : 130);
      must(open_files() == before + peers, "files that stay open");
      sum(rank, gpu, in, out, Algorithm::kOneShot);
      gather(rank, gpu, in, out);
      must(rank.barrier());
    }
    must(open_files() == before, "files that stay open after the end");
    must(rank.barrier());
  }));
}

// GPUs of one process. Each GPU maps the memory of the other GPUs at addresses of its own.
TEST(MappedWindowsOfOneProcess, AreMappedForTheOtherGpus) {
  EXPECT_TRUE(Job(std::vector<Devices>{Devices{0, 1, 1}}).run([](Communicator& rank, const Gpu& gpu) {
    const cuda::MappedMemory memory = mapped(device_of_current(), {1, 1});
    std::byte* in = byte_at(memory.address() + kGranule) - kBlock / 2;
    sum(rank, gpu, in, in + kBlock, Algorithm::kTwoShot);
    must(rank.barrier());
    const unsigned maps = small_devices().calls("cuMemMap");
    must(rank.barrier());
    {
      const Memory window = registered(rank, in, 4 * kBlock);
      must(rank.barrier());
      // Rank 0 maps two parts of each of two allocations (4 mappings). Ranks 1 and 2 share a GPU; each of them maps the
      // two parts of rank 0 (4 more).
      must(small_devices().calls("cuMemMap") == maps + 8, "mappings");
      must(rank.barrier());
      sum(rank, gpu, in, in + kBlock, Algorithm::kTwoShot);
      gather(rank, gpu, in, in + kBlock);
      must(rank.barrier());
    }
    must(rank.barrier());
  }));
}

TEST(MappedWindowErrors, AreToldOnAllRanks) {
  EXPECT_TRUE(Job(Devices{0, 1, 2}).run([](Communicator& rank, const Gpu& gpu) {
    const cuda::DriverApi& api = driver().api();
    const cuda::MappedMemory memory = mapped(rank.rank(), {1, 1});
    std::byte* data = byte_at(memory.address());
    {
      const cuda::CUmemAllocationProp alone{.requested_handle_types = cuda::MemHandleType::kNone,
                                            .location = {.id = rank.rank()}};
      cuda::CUmemGenericAllocationHandle handle = 0;
      cuda::CUdeviceptr address = 0;
      must(api.mem_create(&handle, kGranule, &alone, 0) == cuda::CUresult::kSuccess, "create");
      must(api.mem_address_reserve(&address, kGranule, 0, 0, 0) == cuda::CUresult::kSuccess, "reserve");
      must(api.mem_map(address, kGranule, 0, handle, 0) == cuda::CUresult::kSuccess, "map");
      const auto window = rank.register_memory(rank.rank() == 1 ? byte_at(address) : data, kBlock);
      must(refused(window, rank.rank() == 1 ? ErrorCode::kUnsupported : ErrorCode::kSystem,
                   "created without a handle type that other processes can map: give cuMemCreate"),
           "memory without a handle");
      must(rank.rank() == 1 || window.error().rank == 1, "which rank");
      must(api.mem_unmap(address, kGranule) == cuda::CUresult::kSuccess, "unmap");
      must(api.mem_address_free(address, kGranule) == cuda::CUresult::kSuccess, "free");
      must(api.mem_release(handle) == cuda::CUresult::kSuccess, "release");
    }
    must(refused(rank.register_memory(data, 2 * kGranule + 1), ErrorCode::kInvalidArgument, "bytes at"), "too long");
    {
      auto partly = cuda::MappedMemory::reserve(driver(), 2 * kGranule).value();
      for (const int device : {rank.rank(), (rank.rank() + 1) % 3}) {
        must(partly.map(cuda::PhysicalMemory::create(driver(), device, kGranule).value(), kGranule));
      }
      must(partly.allow(std::vector<int>{rank.rank()}));
      auto window = rank.register_memory(byte_at(partly.address() + kGranule) - 64, 128);
      must(refused(window, ErrorCode::kInvalidArgument, "memory of GPU"), "two GPUs");
    }
    // Each step of the registration fails once, on rank 2. The Job checks for leaks at its end.
    sum(rank, gpu, data, data + kGranule - 64, Algorithm::kOneShot);
    const auto before = open_files();
    for (const char* step : {"cuMemRetainAllocationHandle", "cuMemExportToShareableHandle", "cuMemAddressReserve",
                             "cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"}) {
      if (rank.rank() == 2) small_devices().fail(step, 1, cuda::CUresult::kNotSupported);
      const auto window = rank.register_memory(data, 2 * kGranule);
      must(!window.ok() && window.error().message.find(step) != std::string::npos, step);
      must(rank.rank() == 2 || window.error().rank == 2, "which rank");
    }
    {
      const Memory window = registered(rank, data, 2 * kGranule);
      sum(rank, gpu, data, data + kGranule - 64, Algorithm::kOneShot);
      must(rank.barrier());
    }
    // Descriptors that a failed registration left unread are closed when the next ones arrive.
    must(open_files() == before, "files that stay open");
    must(rank.barrier());
  }));
}

}  // namespace
}  // namespace tutti::testing

// Tests of registered device memory (windows). Data in registered memory goes directly between processes and not
// through the slots of the connections. Buffers that are not registered must work, too. Registrations end and are made
// again, and errors of a registration must be reported on all ranks.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "tests/device/calls/windows_support.h"

namespace tutti::testing {
namespace {

class DeviceWindows : public ::testing::TestWithParam<std::vector<Devices>> {
 protected:
  static bool run(const Job::Body& body) {
    return Job(GetParam()).run(body, kLongTimeout, [] { SlotInspector::begin(); });
  }
};

// The buffers are not at the start of an allocation, and the windows of the ranks have different lengths.
TEST_P(DeviceWindows, CarryCallsPastTheSlots) {
  EXPECT_TRUE(run([](Communicator& rank, const Gpu& gpu) {
    const auto ranks = static_cast<std::size_t>(rank.size());
    const std::size_t extra = 64 * static_cast<std::size_t>(rank.rank() + 1);
    const cuda::DeviceMemory memory = gpu.allocate(extra + (ranks + 1) * kBlock);
    std::byte* in = at(memory, extra);
    std::byte* out = in + kBlock;
    gather(rank, gpu, in, out);
    mark_slots(rank);
    gather(rank, gpu, in, out);
    must(!all_untouched(rank), "without windows, data between processes must go through slots");
    const Memory window = registered(rank, at(memory, extra / 2), memory.bytes() - extra / 2);
    mark_slots(rank);
    gather(rank, gpu, in, out);
    must(all_untouched(rank), "all_gather used slots");
    gather(rank, gpu, nullptr, out);
    must(all_untouched(rank), "all_gather in place used slots");
    sum(rank, gpu, in, out, Algorithm::kOneShot);
    must(all_untouched(rank), "all_reduce used slots");
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kRing,
                                      Algorithm::kDoubleTree, Algorithm::kRecursiveDoubling}) {
      sum(rank, gpu, in, out, algorithm);
      sum(rank, gpu, out, out, algorithm);
    }
    gather(rank, gpu, in, out, Algorithm::kRing);
  }));
}

// Both buffers of odd ranks are outside the window, or only one of the two.
TEST_P(DeviceWindows, MeetBuffersThatAreInNone) {
  EXPECT_TRUE(run([](Communicator& rank, const Gpu& gpu) {
    const auto ranks = static_cast<std::size_t>(rank.size());
    const cuda::DeviceMemory memory = gpu.allocate((ranks + 1) * kBlock);
    const cuda::DeviceMemory other = gpu.allocate((ranks + 1) * kBlock);
    gather(rank, gpu, at(other), at(other, kBlock));
    const Memory window = registered(rank, at(memory), memory.bytes());
    mark_slots(rank);
    const bool odd = rank.rank() % 2 != 0;
    gather(rank, gpu, at(odd ? other : memory), at(odd ? other : memory, kBlock));
    must(rank.barrier());
    for (std::int32_t peer = 0; peer < rank.size(); peer += 2) {
      must(peer == rank.rank() || untouched(rank, peer), "data in a window went through slots");
    }
    must(rank.barrier());
    for (const Algorithm algorithm : {Algorithm::kTwoShot, Algorithm::kRing, Algorithm::kDoubleTree}) {
      sum(rank, gpu, at(odd ? other : memory), at(odd ? memory : other, kBlock), algorithm);
      sum(rank, gpu, at(odd ? memory : other), at(odd ? memory : other), algorithm);
    }
    // Only part of the buffers is in a window.
    gather(rank, gpu, at(memory), at(other, kBlock));
    const cuda::DeviceMemory small = gpu.allocate(kBlock);
    const Memory half = registered(rank, at(small), kBlock / 2);
    sum(rank, gpu, at(small), at(memory), Algorithm::kOneShot);
  }));
}

TEST_P(DeviceWindows, EndAndComeAgain) {
  EXPECT_TRUE(run([](Communicator& rank, const Gpu& gpu) {
    const auto ranks = static_cast<std::size_t>(rank.size());
    const cuda::DeviceMemory in = gpu.allocate(kBlock);
    const cuda::DeviceMemory out = gpu.allocate(ranks * kBlock);
    const Memory window_of_out = registered(rank, at(out), out.bytes());
    for (int round = 0; round < 3; ++round) {
      // Also register another part of the same allocation. It is then mapped a second time.
      Memory window_of_in = registered(rank, at(in), kBlock);
      const Memory again = registered(rank, at(out, 128), 1024);
      gather(rank, gpu, at(in), at(out));
      mark_slots(rank);
      gather(rank, gpu, at(in), at(out));
      must(all_untouched(rank), "all_gather used slots");
      window_of_in = Memory();
      gather(rank, gpu, at(in), at(out), Algorithm::kRing);
      sum(rank, gpu, at(in), at(out), Algorithm::kTwoShot);
    }
    {
      std::optional<cuda::DeviceMemory> gone(gpu.allocate(2 * kBlock));
      Memory window = registered(rank, at(*gone), gone->bytes());
      sum(rank, gpu, at(*gone), at(*gone, kBlock), Algorithm::kOneShot);
      window = Memory();
      must(rank.barrier());
    }
    sum(rank, gpu, at(in), at(out), Algorithm::kOneShot);
  }));
}

// A communicator may be destroyed before its registrations.
TEST_P(DeviceWindows, OutliveTheirCommunicator) {
  EXPECT_TRUE(run([](Communicator& rank, const Gpu& gpu) {
    const cuda::DeviceMemory memory = gpu.allocate(2 * kBlock);
    Memory window;
    {
      auto child = rank.duplicate();
      must(child.ok(), "duplicate");
      window = registered(**child, at(memory), memory.bytes());
      sum(**child, gpu, at(memory), at(memory, kBlock), Algorithm::kOneShot);
      must(rank.barrier());  // no rank destroys its communicator before all have checked their results
    }
    must(rank.barrier());
    window = Memory();
    sum(rank, gpu, at(memory), at(memory, kBlock), Algorithm::kOneShot);
  }));
}

INSTANTIATE_TEST_SUITE_P(Processes, DeviceWindows, ::testing::ValuesIn(kProcesses),
                         [](const auto& its) { return name_of(its.param); });

TEST(DeviceWindowErrors, AreToldOnAllRanks) {
  EXPECT_TRUE(Job(Devices{0, 1, 2}).run([](Communicator& rank, const Gpu& gpu) {
    const cuda::DeviceMemory memory = gpu.allocate(2 * kBlock);
    {
      const Gpu other(3);
      const cuda::DeviceMemory far = other.allocate(kBlock);
      const auto window = rank.register_memory(rank.rank() == 1 ? pointer(far) : pointer(memory), kBlock);
      must(refused(window, rank.rank() == 1 ? ErrorCode::kInvalidArgument : ErrorCode::kSystem,
                   "memory of GPU 3, but this communicator's rank has GPU 1"),
           "memory of another GPU");
      must(rank.rank() == 1 || window.error().rank == 1, "which rank");
    }
    must(refused(rank.register_memory(pointer(memory), memory.bytes() + (std::size_t{1} << 30)),
                 ErrorCode::kInvalidArgument, "bytes at"),
         "too long");
    must(refused(rank.register_memory(pointer(memory), 0), ErrorCode::kInvalidArgument, "bytes is 0"), "nothing");
    {
      const cuda::DriverApi& api = driver().api();
      cuda::CUdeviceptr managed = 0;
      must(api.mem_alloc_managed(&managed, kBlock, cuda::kManagedGlobal) == cuda::CUresult::kSuccess, "managed");
      must(refused(rank.register_memory(reinterpret_cast<void*>(managed), kBlock), ErrorCode::kUnsupported,
                   "are managed memory, which other ranks cannot map: allocate them with cuMemAlloc"),
           "managed memory");
      must(api.mem_free(managed) == cuda::CUresult::kSuccess, "free");
      const cuda::CUdeviceptr pooled = small_devices().allocate_from_pool(kBlock);
      must(refused(rank.register_memory(reinterpret_cast<void*>(pooled), kBlock), ErrorCode::kUnsupported,
                   "are memory of a pool (cuMemAllocAsync), which other ranks cannot map"),
           "memory of a pool");
      must(api.mem_free(pooled) == cuda::CUresult::kSuccess, "free");
    }
    if (rank.rank() == 2) small_devices().fail("cuIpcOpenMemHandle", 2, cuda::CUresult::kMapFailed);
    const auto unmapped = rank.register_memory(pointer(memory), kBlock);
    must(
        !unmapped.ok() && unmapped.error().message.find("mapping the registered memory of rank 1") != std::string::npos,
        "a refused mapping");
    const Memory window = registered(rank, at(memory), memory.bytes());
    sum(rank, gpu, at(memory), at(memory, kBlock), Algorithm::kOneShot);
  }));
}

// Host memory is registered for calls on host memory. This registration is local: the other rank need not register.
TEST(DeviceWindowErrors, HostMemoryIsRegisteredAsEver) {
  EXPECT_TRUE(Job(Devices{0, 1}).run([](Communicator& rank, const Gpu& gpu) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t bytes = 32 * page;
    void* host = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(host != MAP_FAILED, "mmap");
    {
      std::optional<Memory> window;
      if (rank.rank() == 0) window = registered(rank, host, bytes);
      auto* values = static_cast<std::uint8_t*>(host);
      std::fill_n(values, bytes, static_cast<std::uint8_t>(rank.rank() + 1));
      must(rank.all_reduce(host, host, bytes, DataType::kUint8, ReduceOp::kSum));
      must(std::all_of(values, values + bytes, [](std::uint8_t v) { return v == 3; }), "host");
      const cuda::DeviceMemory memory = gpu.allocate(2 * kBlock);
      const Memory device_window = registered(rank, at(memory), memory.bytes());
      sum(rank, gpu, at(memory), at(memory, kBlock), Algorithm::kOneShot);
      must(rank.all_reduce(host, host, bytes, DataType::kUint8, ReduceOp::kSum));
      must(std::all_of(values, values + bytes, [](std::uint8_t v) { return v == 6; }), "host");
    }
    munmap(host, bytes);
  }));
}

TEST(DeviceWindowErrors, TheTableIsFull) {
  EXPECT_TRUE(Job(Devices{0, 0}).run([](Communicator& rank, const Gpu& gpu) {
    const cuda::DeviceMemory memory = gpu.allocate(2 * kBlock);
    std::vector<Memory> windows;
    for (std::size_t i = 0; i < 64; ++i) windows.push_back(registered(rank, at(memory, i), 256));
    must(refused(rank.register_memory(pointer(memory), 256), ErrorCode::kUnsupported, "64 registrations"), "the 65th");
    windows[40] = Memory();
    windows[17] = Memory();
    windows[17] = registered(rank, at(memory), memory.bytes());
    sum(rank, gpu, at(memory), at(memory, kBlock), Algorithm::kOneShot);
    sum(rank, gpu, at(memory, kBlock), at(memory, kBlock), Algorithm::kTwoShot);
    // If a registration has ended on one rank only, its number is not free yet. One other number is free.
    if (rank.rank() == 0) windows[3] = Memory();
    windows[40] = registered(rank, at(memory), 256);
    must(refused(rank.register_memory(pointer(memory), 256), ErrorCode::kUnsupported, "64 registrations"), "again");
    if (rank.rank() == 1) windows[3] = Memory();
    windows[3] = registered(rank, at(memory), 256);
  }));
}

// Rank 1 uses a window that rank 0 has released. Rank 0 must report this as an error, and must not access unmapped
// memory.
TEST(DeviceWindowErrors, ARankThatReleasesBeforeTheOthersSaysSo) {
  EXPECT_TRUE(Job(Devices{0, 1}).run([](Communicator& rank, const Gpu& gpu) {
    const cuda::DeviceMemory memory = gpu.allocate(2 * kBlock);
    Memory window = registered(rank, at(memory), memory.bytes());
    sum(rank, gpu, at(memory), at(memory, kBlock), Algorithm::kOneShot);
    if (rank.rank() == 0) window = Memory();
    auto work =
        rank.start({.input = at(memory), .output = at(memory, kBlock), .count = kCount, .type = DataType::kInt32},
                   gpu.options(Algorithm::kOneShot));
    must(work.ok(), "start");
    const Status status = work->wait();
    must(!status.ok(), "no error");
    if (rank.rank() == 0) {
      must(status.error().code == ErrorCode::kInvalidArgument && status.error().rank == 1 &&
               status.error().message.find("whose registration has ended here") != std::string::npos,
           to_string(status.error()));
    }
    gpu.synchronize();
  }));
}

TEST(DeviceWindowErrors, WhereTheHostCarriesCallsOut) {
  const auto staged = [] { setenv("TUTTI_DEVICE_CALLS", "staged", 1); };
  const auto body = [](Communicator& rank, const Gpu& gpu) {
    const cuda::DeviceMemory memory = gpu.allocate(4096);
    must(refused(rank.register_memory(pointer(memory), 4096), ErrorCode::kUnsupported,
                 "the host carries out this communicator's calls"),
         "staged");
  };
  EXPECT_TRUE(Job(Devices{0, 0}).run(body, kLongTimeout, staged));
}

// All ranks are in one process. Without a window they read each other's memory by its address; with a window they use
// the number of the window.
TEST(DeviceWindowsOfOneProcess, CarryCalls) {
  for (const Devices& devices : {Devices{0, 1, 2}, Devices{0, 0}}) {
    EXPECT_TRUE(Job(std::vector<Devices>{devices}).run([](Communicator& rank, const Gpu& gpu) {
      const cuda::DeviceMemory memory = gpu.allocate((static_cast<std::size_t>(rank.size()) + 1) * kBlock + 16);
      for (int round = 0; round < 2; ++round) {
        const Memory window = registered(rank, at(memory, 8), memory.bytes() - 8);
        for (const std::size_t offset : {std::size_t{0}, std::size_t{16}}) {
          sum(rank, gpu, at(memory, offset), at(memory, kBlock + offset), Algorithm::kTwoShot);
        }
        gather(rank, gpu, at(memory), at(memory, kBlock));
      }
    }));
  }
}

}  // namespace
}  // namespace tutti::testing

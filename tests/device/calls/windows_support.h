// Helpers for tests of registered device memory. They make calls, check the results, and find out whether the data went
// through the slots of the connections or directly between the registered buffers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/call.h"
#include "kernels/device/program.h"
#include "tests/device/calls/jobs_support.h"

namespace tutti::testing {

inline constexpr std::size_t kCount =
    20'000;  // int32 elements; long enough for the protocol that uses registered memory
inline constexpr std::size_t kBlock = kCount * sizeof(std::int32_t);

// Finds the connections' slots of the ranks in this process. It wraps the kernel of the simple protocol and reads the
// arguments of each launch.
class SlotInspector {
 public:
  static SlotInspector& instance() {  // a global object, because the wrapped kernel has no argument to pass it in
    static SlotInspector tap;
    return tap;
  }

  // Wraps the kernel. Call it before ranks are created.
  static void begin() {
    cuda::fake::Control tapped = small_devices();
    tapped.register_kernel = [](cuda::fake::FakeKernel kernel) {
      if (kernel.name == "tutti_evaluate_simple") {
        kernel.run = [run = kernel.run](const cuda::fake::FakeLaunch& launch) {
          instance().inspect(*static_cast<const device::Launch*>(launch.arguments[0]));
          return run(launch);
        };
      }
      small_devices().register_kernel(std::move(kernel));
    };
    register_device_kernels(tapped, FakeDeviceOptions::from_environment());
  }

  // The slots in which `rank` receives from `peer`, for the connections that the rank's last call used.
  std::vector<std::span<std::byte>> slots(std::uint32_t rank, std::uint32_t peer) {
    const std::scoped_lock lock(mutex_);
    const LinkTable& seen = tables_[rank];
    must(seen.links != nullptr, "no launch was seen");
    std::vector<std::span<std::byte>> all;
    for (std::uint32_t c = 0; c < seen.connections; ++c) {
      const device::Link& link = seen.links[device::link_index(c, seen.ranks, peer, false)];
      all.emplace_back(link.slots, (link.slot_mask + 1) * link.slot_bytes);
    }
    return all;
  }

 private:
  struct LinkTable {
    const device::Link* links = nullptr;
    std::uint32_t ranks = 0;
    std::uint32_t connections = 0;
  };
  void inspect(const device::Launch& launch) {
    const std::scoped_lock lock(mutex_);
    for (std::uint32_t i = 0; i < launch.call_count; ++i) {
      const device::Call& call = device::call_of(launch, i);
      LinkTable& seen = tables_[call.program->rank];
      seen = {call.links, call.program->rank_count, launch.slices * call.program->lanes};
    }
  }
  std::mutex mutex_;
  std::map<std::uint32_t, LinkTable> tables_;  // the last call of each rank
};

inline constexpr std::byte kUntouched{0xa5};

// Fills all slots of this rank with kUntouched. The two barriers ensure that no call is in progress meanwhile.
inline void mark_slots(Communicator& rank) {
  must(rank.barrier());
  for (std::int32_t peer = 0; peer < rank.size(); ++peer) {
    if (peer == rank.rank()) continue;
    for (const auto slots :
         SlotInspector::instance().slots(static_cast<std::uint32_t>(rank.rank()), static_cast<std::uint32_t>(peer)))
      std::ranges::fill(slots, kUntouched);
  }
  must(rank.barrier());
}

// Whether no byte was received from `peer` through slots since mark_slots().
inline bool untouched(Communicator& rank, std::int32_t peer) {
  bool all = true;
  for (const auto slots :
       SlotInspector::instance().slots(static_cast<std::uint32_t>(rank.rank()), static_cast<std::uint32_t>(peer)))
    all &= std::ranges::all_of(slots, [](std::byte b) { return b == kUntouched; });
  return all;
}

// Whether this rank received nothing through slots from any peer. Barriers are needed here, too, because a rank that
// continues with its next call writes into the slots.
inline bool all_untouched(Communicator& rank) {
  must(rank.barrier());
  bool all = true;
  for (std::int32_t peer = 0; peer < rank.size(); ++peer) all &= peer == rank.rank() || untouched(rank, peer);
  must(rank.barrier());
  return all;
}

inline std::byte* at(const cuda::DeviceMemory& memory, std::size_t offset = 0) {
  return static_cast<std::byte*>(pointer(memory)) + offset;
}

inline std::int32_t value(std::int32_t rank, std::size_t i) {
  return (rank + 1) * 1000 + static_cast<std::int32_t>(i % 997);
}

inline void fill(const Gpu& gpu, std::byte* to, std::int32_t rank) {
  std::vector<std::int32_t> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = value(rank, i);
  const auto address = reinterpret_cast<cuda::CUdeviceptr>(to);
  must(driver().api().memcpy_htod_async(address, values.data(), kBlock, gpu.stream()) == cuda::CUresult::kSuccess,
       "copy");
  gpu.synchronize();
}

inline std::vector<std::int32_t> get(const Gpu& gpu, const std::byte* from, std::size_t count) {
  std::vector<std::int32_t> values(count);
  const auto address = reinterpret_cast<cuda::CUdeviceptr>(from);
  must(driver().api().memcpy_dtoh_async(values.data(), address, count * sizeof(std::int32_t), gpu.stream()) ==
           cuda::CUresult::kSuccess,
       "copy");
  gpu.synchronize();
  return values;
}

// Runs an all_gather and checks the result. If `in` is null, the call is in place.
inline void gather(Communicator& rank, const Gpu& gpu, std::byte* in, std::byte* out,
                   Algorithm algorithm = Algorithm::kDirect) {
  if (in == nullptr) in = out + static_cast<std::size_t>(rank.rank()) * kBlock;
  fill(gpu, in, rank.rank());
  must(rank.all_gather(in, out, kCount, DataType::kInt32, gpu.options(algorithm)));
  const auto got = get(gpu, out, kCount * static_cast<std::size_t>(rank.size()));
  for (std::size_t i = 0; i < got.size(); ++i)
    must(got[i] == value(static_cast<std::int32_t>(i / kCount), i % kCount), "all_gather");
  must(rank.async_status());
}

// Runs an all_reduce and checks the result.
inline void sum(Communicator& rank, const Gpu& gpu, std::byte* in, std::byte* out, Algorithm algorithm) {
  fill(gpu, in, rank.rank());
  must(rank.all_reduce(in, out, kCount, DataType::kInt32, ReduceOp::kSum, gpu.options(algorithm)));
  const auto got = get(gpu, out, kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    std::int32_t expected = 0;
    for (std::int32_t r = 0; r < rank.size(); ++r) expected += value(r, i);
    must(got[i] == expected, "all_reduce " + std::string(to_string(algorithm)));
  }
  must(rank.async_status());
}

inline Memory registered(Communicator& rank, void* data, std::size_t bytes) {
  auto memory = rank.register_memory(data, bytes);
  must(memory.ok(), memory.ok() ? "" : to_string(memory.error()));
  must(memory->data() == data && memory->size() == bytes, "what was registered");
  return *std::move(memory);
}

inline bool refused(const Result<Memory>& memory, ErrorCode code, const std::string& words) {
  if (memory.ok()) return false;
  if (memory.error().code != code || memory.error().scope != ErrorScope::kCall) {
    fprintf(stderr, "%s\n", to_string(memory.error()).c_str());
    return false;
  }
  return memory.error().message.find(words) != std::string::npos;
}

// The jobs to test: for each process, the devices of its ranks. ThreadSanitizer observes only one process. If a rank of
// another process orders a read and a later write of two ranks in this process (as in a ring), ThreadSanitizer does not
// see the order and reports a race. Therefore the job that has two GPUs in one process and a second process is left
// out.
inline const std::vector<std::vector<Devices>> kProcesses = {
    {{0}, {1}, {2}}, {{0}, {0}, {0}}, {{0}, {0}, {1}}, {{0, 0}, {1, 1}},
#if !defined(__SANITIZE_THREAD__)
    {{0, 1}, {2}},
#endif
};
inline std::string name_of(const std::vector<Devices>& processes) {
  std::string name;
  for (const Devices& devices : processes) {
    name += "With";
    for (const std::int32_t device : devices) name += std::to_string(device);
  }
  return name;
}

}  // namespace tutti::testing

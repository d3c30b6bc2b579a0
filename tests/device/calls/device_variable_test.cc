// Tests of calls with blocks of different lengths, carried out by the GPUs: all_gather_v and reduce_scatter_v.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "tests/device/calls/jobs_support.h"

namespace tutti::testing {
namespace {

using Counts = std::vector<std::size_t>;

struct VariableCall {
  CollectiveKind kind = CollectiveKind::kAllGather;
  Counts counts;
  // The number of unused elements before each block. If it is not 0, the call has displacements, and the blocks are in
  // memory in reverse order.
  std::size_t gap = 0;
  bool in_place = false;
};

Counts displacements_of(const VariableCall& call) {
  Counts all(call.counts.size());
  std::size_t at = 0;
  for (std::size_t i = all.size(); i-- > 0;) {
    all[i] = at + call.gap;
    at = all[i] + call.counts[i];
  }
  return all;
}

std::size_t elements_of(const VariableCall& call) {
  return std::accumulate(call.counts.begin(), call.counts.end(), call.counts.size() * call.gap);
}

// Makes the call on `memory`, which first has the buffer for all blocks and then the buffer for this rank's own block.
Status run(Communicator& rank, const VariableCall& call, void* memory, const CallOptions& options) {
  const auto me = static_cast<std::size_t>(rank.rank());
  auto* all = static_cast<std::int32_t*>(memory);
  const Counts displacements = call.gap > 0 ? displacements_of(call) : Counts{};
  std::size_t start = 0;
  for (std::size_t i = 0; i < me; ++i) start += call.counts[i];
  if (call.gap > 0) start = displacements[me];
  std::int32_t* own = call.in_place ? all + start : all + elements_of(call);
  const BlockCounts blocks{.counts = call.counts, .displacements = displacements};
  if (call.kind == CollectiveKind::kAllGather) return rank.all_gather_v(own, all, blocks, DataType::kInt32, options);
  return rank.reduce_scatter_v(all, own, blocks, DataType::kInt32, ReduceOp::kSum, options);
}

std::size_t bytes_of(const VariableCall& call) {
  return (elements_of(call) + *std::max_element(call.counts.begin(), call.counts.end()) + 4) * sizeof(std::int32_t);
}

// Makes the call and returns the buffers of all ranks after it. `devices` is empty if the ranks have no GPUs.
std::vector<Bytes> outcome_of(Communicators& ranks, const VariableCall& call, const Devices& devices) {
  std::vector<Bytes> buffers(ranks.size());
  on_every_rank(ranks, [&](Communicator& rank) {
    const auto me = static_cast<std::size_t>(rank.rank());
    Bytes& buffer = buffers[me];
    buffer = random_bits(bytes_of(call), static_cast<std::uint32_t>(me));
    if (devices.empty()) {
      const Status status = run(rank, call, buffer.data(), {});
      EXPECT_TRUE(status.ok()) << to_string(status.error());
      return;
    }
    const Gpu gpu(devices[me]);
    const cuda::DeviceMemory memory = gpu.allocate(buffer.size());
    gpu.put(memory, buffer);
    const Status status = run(rank, call, pointer(memory), gpu.options());
    EXPECT_TRUE(status.ok()) << to_string(status.error());
    buffer = gpu.get(memory);
    const Status later = rank.async_status();
    EXPECT_TRUE(later.ok()) << to_string(later.error());
  });
  return buffers;
}

unsigned launches() {
  return small_devices().calls("cuLaunchKernel") + small_devices().calls("cuLaunchCooperativeKernel");
}

class DeviceVariableCalls : public ::testing::TestWithParam<Devices> {};

TEST_P(DeviceVariableCalls, GiveTheBitsOfTheHost) {
  const Devices& devices = GetParam();
  Communicators host = ranks_on(Devices(devices.size(), CommunicatorOptions::kNoDevice));
  Communicators gpus = ranks_on(devices);
  const std::vector<Counts> lengths = {{5, 1, 7, 3}, {0, 30'001, 2, 900}, {20'000, 0, 0, 1}, {0, 0, 0, 0}};
  for (const auto kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    for (Counts counts : lengths) {
      counts.resize(devices.size(), 11);
      for (const std::size_t gap : {std::size_t{0}, std::size_t{3}}) {
        for (const bool in_place : {false, true}) {
          const VariableCall call{.kind = kind, .counts = counts, .gap = gap, .in_place = in_place};
          const unsigned before = launches();
          EXPECT_EQ(outcome_of(gpus, call, devices), outcome_of(host, call, {}))
              << to_string(kind) << " of " << counts[0] << ", " << counts[1] << " gap " << gap
              << (in_place ? " in place" : "");
          const bool any = std::accumulate(counts.begin(), counts.end(), std::size_t{0}) > 0;
          EXPECT_EQ(launches() > before, any) << "the host must carry out empty calls, and the GPUs all others";
        }
      }
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<Devices>& info) {
  std::string name = "On";
  for (const std::int32_t device : info.param) name += std::to_string(device);
  return name;
}
INSTANTIATE_TEST_SUITE_P(Ranks, DeviceVariableCalls,
                         ::testing::Values(Devices{0, 0}, Devices{0, 1, 2}, Devices{0, 0, 1, 1},
                                           Devices(9, 0)),  // more ranks than fit into a kernel's parameters
                         name_of);

// With a single rank, the displacement of its only block must be used, too.
TEST(DeviceVariableCall, OfOneRankHasItsDisplacement) {
  for (const std::int32_t device : {CommunicatorOptions::kNoDevice, std::int32_t{0}}) {
    Communicators alone = ranks_on({device});
    const Devices devices = device == CommunicatorOptions::kNoDevice ? Devices{} : Devices{device};
    for (const auto kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
      const VariableCall call{.kind = kind, .counts = {5}, .gap = 3};
      Bytes wanted = random_bits(bytes_of(call), 0);
      const std::size_t block = 3 * sizeof(std::int32_t);
      const std::size_t own = elements_of(call) * sizeof(std::int32_t);
      const bool gathers = kind == CollectiveKind::kAllGather;
      std::copy_n(wanted.begin() + static_cast<std::ptrdiff_t>(gathers ? own : block), 5 * sizeof(std::int32_t),
                  wanted.begin() + static_cast<std::ptrdiff_t>(gathers ? block : own));
      EXPECT_EQ(outcome_of(alone, call, devices).front(), wanted) << to_string(kind) << " on " << device;
      const VariableCall in_place{.kind = kind, .counts = {5}, .gap = 3, .in_place = true};
      EXPECT_EQ(outcome_of(alone, in_place, devices).front(), random_bits(bytes_of(in_place), 0));
    }
  }
}

// Processes with registered memory, of which only rank 1 passes displacements. Peers must not write directly into the
// output buffer of rank 1 at the positions that they use themselves.
void check_processes(Communicator& rank, const Gpu& gpu) {
  const Counts counts = {4'000, 7, 9'000};
  const VariableCall plain{.counts = counts};
  const VariableCall spread{.counts = counts, .gap = 2};
  const auto me = static_cast<std::size_t>(rank.rank());
  const VariableCall& own = me == 1 ? spread : plain;
  const cuda::DeviceMemory memory = gpu.allocate(bytes_of(spread));
  auto registered = rank.register_memory(pointer(memory), memory.bytes());
  must(registered.ok(), registered.ok() ? "" : to_string(registered.error()));
  const std::size_t own_at = elements_of(own) * sizeof(std::int32_t);
  for (int round = 0; round < 20; ++round) {
    Bytes bytes(memory.bytes(), std::byte{0x55});
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(own_at), counts[me] * sizeof(std::int32_t),
                static_cast<std::byte>(16 * round + static_cast<int>(me)));
    gpu.put(memory, bytes);
    const unsigned before = launches();
    must(run(rank, own, pointer(memory), gpu.options()));
    must(launches() > before, "no kernel was launched: the host carried out the call");
    const Bytes got = gpu.get(memory);
    must(rank.async_status());
    std::size_t start = 0;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      const std::size_t at = own.gap > 0 ? displacements_of(own)[r] : start;
      start += counts[r];
      for (std::size_t i = 0; i < counts[r] * sizeof(std::int32_t); ++i) {
        must(got[at * sizeof(std::int32_t) + i] == static_cast<std::byte>(16 * round + static_cast<int>(r)), "a block");
      }
    }
  }
  must(rank.barrier());  // all ranks are done before any registration ends
}

TEST(DeviceVariableJobs, OneGpuForEachProcess) { EXPECT_TRUE(Job({0, 1, 2}).run(check_processes)); }
TEST(DeviceVariableJobs, AllProcessesOnOneGpu) { EXPECT_TRUE(Job({0, 0, 0}).run(check_processes)); }

// The tables of lengths of a captured call must remain valid. Later calls with other lengths, or without tables, must
// not free them.
TEST(DeviceVariableCall, IsReplayed) {
  const Devices devices = {0, 1};
  Communicators ranks = ranks_on(devices);
  on_every_rank(ranks, [&](Communicator& rank) {
    const Gpu gpu(devices[static_cast<std::size_t>(rank.rank())]);
    const VariableCall captured{.counts = {100, 900}};
    const cuda::DeviceMemory memory = gpu.allocate(bytes_of(captured));
    const test::CapturedGraph graph(driver(), gpu.stream(), [&] {
      const Status recorded = run(rank, captured, pointer(memory), gpu.options());
      ASSERT_TRUE(recorded.ok()) << to_string(recorded.error());
    });
    for (int round = 0; round < 12; ++round) {
      const Status plain =
          rank.all_reduce(pointer(memory), pointer(memory), 5, DataType::kInt32, ReduceOp::kSum, gpu.options());
      ASSERT_TRUE(plain.ok()) << to_string(plain.error());
      const VariableCall other{.counts = {static_cast<std::size_t>(round + 1), 5}};
      const cuda::DeviceMemory elsewhere = gpu.allocate(bytes_of(other));
      const Status status = run(rank, other, pointer(elsewhere), gpu.options());
      ASSERT_TRUE(status.ok()) << to_string(status.error());
      gpu.put(memory, Bytes(memory.bytes(), static_cast<std::byte>(10 * round + rank.rank())));
      graph.launch();
      const Bytes got = gpu.get(memory);
      EXPECT_EQ(got[0], static_cast<std::byte>(10 * round));
      EXPECT_EQ(got[399], static_cast<std::byte>(10 * round));
      EXPECT_EQ(got[400], static_cast<std::byte>(10 * round + 1));
      EXPECT_EQ(got[3999], static_cast<std::byte>(10 * round + 1));
    }
    const Status status = rank.async_status();
    EXPECT_TRUE(status.ok()) << to_string(status.error());
  });
}

}  // namespace
}  // namespace tutti::testing

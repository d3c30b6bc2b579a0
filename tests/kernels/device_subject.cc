// Comparison of plans on emulated GPUs with the host executor: see device_subject.h.
#include "device_subject.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "algorithms/algorithms.h"
#include "kernels/device/evaluate.h"
#include "plan/collective.h"
#include "support.h"

namespace tutti::testing {

using device::Protocol;
using emu::Emulator;
using emu::Policy;

std::string name_of(Protocol protocol) {
  if (protocol == Protocol::kSimple) return "Simple";
  return protocol == Protocol::kLl ? "Ll" : "Ll128";
}

DeviceGroup::Kernel kernel_of(Protocol protocol) {
  switch (protocol) {
    case Protocol::kSimple: return [](const device::Launch& launch) { device::evaluate<Protocol::kSimple>(launch); };
    case Protocol::kLl: return [](const device::Launch& launch) { device::evaluate<Protocol::kLl>(launch); };
    case Protocol::kLl128: break;
  }
  return [](const device::Launch& launch) { device::evaluate<Protocol::kLl128>(launch); };
}

// A line has 128 bytes; the first one of a slot is the header. LL stores 16 bytes at a time.
std::uint64_t small_slot(Protocol protocol) {
  if (protocol == Protocol::kSimple) return 128;
  return protocol == Protocol::kLl ? 128 + 16 * 16 : 128 + 2 * 128;
}

Generator generator_of(CollectiveKind kind, Algorithm algorithm, std::uint32_t ranks, std::uint32_t root) {
  Collective collective{.kind = kind, .ranks = ranks, .root = root};
  return find_generator(collective, algorithm).value();
}

emu::Options schedule(std::uint64_t seed, Policy policy, bool weak) {
  emu::Options options;
  options.seed = seed;
  options.policy = policy;
  options.weak = weak;
  options.yield_log2 = policy == Policy::kRoundRobin ? 64 : 5;
  return options;
}

void expect_same_memory(const std::vector<RankBuffers>& host, const std::vector<RankBuffers>& gpu,
                        const std::string& what) {
  for (std::size_t rank = 0; rank < host.size(); ++rank) {
    const auto at = std::mismatch(host[rank].memory.begin(), host[rank].memory.end(), gpu[rank].memory.begin()).first;
    ASSERT_EQ(at - host[rank].memory.begin(), std::ssize(host[rank].memory))
        << what << ": rank " << rank << ": the first different byte; the output begins at " << host[rank].output_at;
  }
}

Subject::Subject(CollectiveKind kind, Algorithm algorithm, std::uint32_t ranks, const GroupOptions& options,
                 std::uint32_t root)
    : generator(generator_of(kind, algorithm, ranks, root)),
      group(options),
      name(std::string(to_string(kind)) + " " + std::string(to_string(algorithm)) + " of " + std::to_string(ranks) +
           ", " + name_of(options.protocol) + ", " + std::to_string(options.slices) + " slices") {}

CallOptions Subject::call(double tiles, std::uint64_t seed) const {
  const auto types = all_data_types();
  CallOptions call;
  call.type = types[seed % types.size()];
  call.op =
      reduces(generator.shape.collective.kind) ? all_reduce_ops()[seed / 2 % all_reduce_ops().size()] : ReduceOp::kSum;
  const std::uint64_t elements = max_chunk_bytes() / size_of(call.type) * generator.shape.chunks;
  call.lengths.count = static_cast<std::uint64_t>(static_cast<double>(elements) * tiles) + seed % 5;
  if (generator.shape.collective.kind == CollectiveKind::kBarrier) call.lengths.count = 0;
  call.in_place = seed % 3 == 0;
  call.seed = seed;
  return call;
}

void Subject::run(DeviceGroup& device, const CallOptions& call, const emu::Options& options, std::size_t plan) const {
  const std::vector<RankBuffers> host = run_on_host(generator, call, max_chunk_bytes());
  std::vector<RankBuffers> gpu = make_buffers(generator.shape, call);
  device.set_call(call, gpu, plan);
  Emulator emulator(options);
  if (options.seed % 4 == 0)
    device.launch_together(emulator, kernel_of(group.protocol),
                           options.seed % 8 == 0 ? DeviceGroup::Calls::kInline : DeviceGroup::Calls::kInMemory);
  else
    device.launch_all(emulator, kernel_of(group.protocol));
  const std::string what = name + ", seed " + std::to_string(options.seed);
  ASSERT_EQ(emulator.run(), Emulator::RunResult::kIdle) << what << ": " << emulator.report();
  ASSERT_EQ(emulator.overtaking(), 0u) << what << ": stores that earlier loads of other blocks may still see";
  for (std::uint32_t rank = 0; rank < device.ranks(); ++rank) {
    ASSERT_EQ(device.status(rank).failure, 0u) << what;
    ASSERT_TRUE(device.finished(rank)) << what;
  }
  expect_same_memory(host, gpu, what);
}

}  // namespace tutti::testing

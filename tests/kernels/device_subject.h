// Helpers for the tests of the device evaluator. They run a plan on emulated GPUs and with the host executor, and
// compare the results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device_group.h"
#include "plan/plan.h"
#include "tests/device/emulator/emulator.h"

namespace tutti::testing {

std::string name_of(device::Protocol protocol);
DeviceGroup::Kernel kernel_of(device::Protocol protocol);

// Returns a slot size of a few lines, so that small messages are divided into several tiles.
std::uint64_t small_slot(device::Protocol protocol);

Generator generator_of(CollectiveKind kind, Algorithm algorithm, std::uint32_t ranks, std::uint32_t root = 0);
emu::Options schedule(std::uint64_t seed, emu::Policy policy, bool weak);

void expect_same_memory(const std::vector<RankBuffers>& host, const std::vector<RankBuffers>& gpu,
                        const std::string& what);

// Compares the plan of a generator on the device with the same plan on the host, for one call after another.
struct Subject {
  Generator generator;
  GroupOptions group;
  std::string name;

  Subject(CollectiveKind kind, Algorithm algorithm, std::uint32_t ranks, const GroupOptions& options,
          std::uint32_t root = 0);

  std::uint64_t max_chunk_bytes() const { return device::payload_bytes(group.protocol, group.slot_bytes); }

  // Makes a call with about `tiles` tiles. The data type, the operation, and whether it is in place depend on the seed.
  CallOptions call(double tiles, std::uint64_t seed) const;
  // Runs the call on `device`, whose plan number `plan` must be that of the generator, and checks that all memory is
  // equal bit by bit to that of the host.
  void run(DeviceGroup& device, const CallOptions& call, const emu::Options& options, std::size_t plan = 0) const;
};

}  // namespace tutti::testing

// A plan on emulated GPUs against the same plan by the host executor: what the tests of the device evaluator share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device_group.h"
#include "plan/plan.h"
#include "tests/device/emulator/world.h"

namespace tutti::testing {

std::string name_of(device::Protocol protocol);
DeviceGroup::Kernel kernel_of(device::Protocol protocol);

// Slots of a few lines, so that small messages make several tiles.
std::uint64_t small_slot(device::Protocol protocol);

Generator generator_of(CollectiveKind kind, Algorithm algorithm, std::uint32_t ranks, std::uint32_t root = 0);
emu::Options schedule(std::uint64_t seed, emu::Policy policy, bool weak);

void expect_same_memory(const std::vector<RankBuffers>& host, const std::vector<RankBuffers>& gpu,
                        const std::string& what);

// A generator's plan on the device, call after call, against the host.
struct Subject {
  Generator generator;
  GroupOptions group;
  std::string name;

  Subject(CollectiveKind kind, Algorithm algorithm, std::uint32_t ranks, const GroupOptions& options,
          std::uint32_t root = 0);

  std::uint64_t max_chunk_bytes() const { return device::payload_bytes(group.protocol, group.slot_bytes); }

  // About `tiles` tiles; type, operation and place follow from the seed.
  CallOptions call(double tiles, std::uint64_t seed) const;
  // Checks that `device`, whose plan number `plan` is the generator's, leaves the bits of the host.
  void run(DeviceGroup& device, const CallOptions& call, const emu::Options& options, std::size_t plan = 0) const;
};

}  // namespace tutti::testing

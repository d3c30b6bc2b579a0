// Tests of launches that never wait, with barriers between them (executor/device_rounds.h), on emulated GPUs. After the
// computed number of rounds, every rank's call must have finished with the right bits. If a launch sees only the posts
// of earlier rounds, one round fewer must not be enough.
#include "executor/device_rounds.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "algorithms/algorithms.h"
#include "device_group.h"
#include "device_subject.h"
#include "kernels/device/call.h"
#include "plan/collective.h"

namespace tutti::testing {
namespace {

using device::Protocol;
using emu::Emulator;
using emu::Policy;

struct Setting {
  std::uint32_t slots = 2;
  std::uint32_t slices = 1;
  double tiles = 2.3;
  bool windows = false;
  bool in_place = false;
  bool defers_posts = false;
  std::uint64_t seed = 1;
};

bool all_finished(const DeviceGroup& device) {
  for (std::uint32_t rank = 0; rank < device.ranks(); ++rank) {
    if (!device.finished(rank)) return false;
  }
  return true;
}

// Runs two calls and checks their results. Returns whether a call had already finished on all ranks one round before
// the computed number.
bool ends_early(const Subject& subject, const Setting& setting) {
  DeviceGroup device(subject.generator, subject.group);
  CallOptions call = subject.call(setting.tiles, setting.seed);
  call.type = DataType::kFloat32;  // with a float32 sum, values are published whenever that is possible
  call.op = ReduceOp::kSum;
  call.in_place = setting.in_place;
  bool early = false;
  for (int repeats = 0; repeats < 2; ++repeats) {  // the second call continues with the counters of the first
    const std::vector<RankBuffers> host = run_on_host(subject.generator, call, subject.max_chunk_bytes());
    std::vector<RankBuffers> gpu = make_buffers(subject.generator.shape, call);
    device.set_call(call, gpu);
    for (std::uint32_t rank = 0; rank < device.ranks(); ++rank) device.call(rank).stop_after_ns = 0;
    const std::uint64_t rounds = device_rounds(
        subject.generator, device::tiles_of_slice(device.call(0).geometry.tiles, 0, setting.slices), setting.slots,
        setting.windows ? DeviceRounds::Draining::kPublished : DeviceRounds::Draining::kNothing);
    Emulator emulator(schedule(setting.seed, static_cast<Policy>(setting.seed % 3), setting.seed % 2 == 0));
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      early |= round > 1 && round == rounds && all_finished(device);
      device.launch_all(emulator, kernel_of(Protocol::kSimple),
                        round == 1 ? DeviceGroup::Start::kBegin : DeviceGroup::Start::kResume);
      EXPECT_EQ(emulator.run(), Emulator::RunResult::kIdle) << subject.name << ": " << emulator.report();
      if (setting.defers_posts) device.deliver_posts();
    }
    const std::string what = subject.name + ", rounds " + std::to_string(rounds);
    for (std::uint32_t rank = 0; rank < device.ranks(); ++rank) EXPECT_EQ(device.status(rank).failure, 0u) << what;
    EXPECT_TRUE(all_finished(device)) << what;
    expect_same_memory(host, gpu, what);
    call.seed += 1000;
  }
  return early;
}

class Rounds : public ::testing::TestWithParam<CollectiveKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Rounds, ::testing::ValuesIn(all_collectives().begin(), all_collectives().end()),
                         [](const auto& test) { return std::string(to_string(test.param)); });

// The bits of a mixture of settings.
constexpr std::uint32_t kFourSlots = 1, kWindows = 2, kInPlace = 4, kTwoSlices = 8, kDefersPosts = 16;

Setting setting_of(std::uint32_t mixture, std::uint64_t seed) {
  return {.slots = mixture & kFourSlots ? 4u : 2u,
          .slices = mixture & kTwoSlices ? 2u : 1u,
          .windows = (mixture & kWindows) != 0,
          .in_place = (mixture & kInPlace) != 0,
          .defers_posts = (mixture & kDefersPosts) != 0,
          .seed = seed};
}

// Returns nothing if the plan needs more slots than the setting has.
std::optional<Subject> subject_of(CollectiveKind kind, Algorithm algorithm, std::uint32_t ranks,
                                  const Setting& setting) {
  Subject subject(kind, algorithm, ranks,
                  {.slots = setting.slots,
                   .slot_bytes = small_slot(Protocol::kSimple),
                   .slices = setting.slices,
                   .windows = setting.windows,
                   .defers_posts = setting.defers_posts});
  if (setting.slots < subject.generator.shape.slots) return std::nullopt;
  return subject;
}

// The long test runs all mixtures. The short test runs a few, which differ from plan to plan.
TEST_P(Rounds, AreEnoughForEveryAlgorithm) {
  const CollectiveKind kind = GetParam();
  std::uint64_t seed = 1;
  for (const Algorithm algorithm : algorithms_of(kind)) {
    for (const std::uint32_t ranks : {2u, 3u, 4u, 8u}) {
      const std::uint32_t every = TUTTI_ROUNDS > 1 ? 1 : ranks == 2 ? 3 : ranks == 8 ? 31 : 7;
      for (std::uint32_t mixture = seed % every; mixture < 32; mixture += every, ++seed) {
        const Setting setting = setting_of(mixture, seed);
        const auto subject = subject_of(kind, algorithm, ranks, setting);
        if (subject.has_value()) ends_early(*subject, setting);
        if (HasFatalFailure() || HasNonfatalFailure()) return;
      }
    }
  }
}

// If a launch sees only the posts of earlier rounds, the computed number is exact.
TEST_P(Rounds, AreNotOneTooMany) {
  const CollectiveKind kind = GetParam();
  int exact = 0;
  for (const Algorithm algorithm : algorithms_of(kind)) {
    for (const std::uint32_t ranks : {2u, 3u, 4u, 8u}) {
      for (std::uint32_t mixture = 0; mixture <= (kFourSlots | kWindows); ++mixture) {
        if (TUTTI_ROUNDS == 1 && ranks == 8 && mixture != kWindows) continue;
        const Setting setting = setting_of(mixture | kDefersPosts, 1 + mixture);
        const auto subject = subject_of(kind, algorithm, ranks, setting);
        if (!subject.has_value()) continue;
        EXPECT_FALSE(ends_early(*subject, setting)) << subject->name << ", mixture " << mixture;
        if (HasFatalFailure()) return;
        ++exact;
      }
    }
  }
  EXPECT_GT(exact, 0);
}

}  // namespace
}  // namespace tutti::testing

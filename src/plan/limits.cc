// Counts the channels, steps and messages of a plan, and estimates the cost of its verification without verifying
// it.
#include "plan/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/assert.h"
#include "plan/collective.h"
#include "tutti/plan.h"

namespace tutti {
namespace {

// Limit on the number of chunks of one tile: inputs, outputs and scratch of all ranks. A verification with two
// tiles needs up to about 90 bytes for each of these chunks, so at most about 400 MB.
constexpr std::uint64_t kMostChunks = std::uint64_t{1} << 22;
// Limit on the memory of all vector clocks of one verification: 2 GiB.
constexpr std::uint64_t kMostClockBytes = std::uint64_t{2} << 30;
// Limit on the number of clock entries that are read by all joins of vector clocks together, in the verifications with
// windows. One core reads about 10^9 entries per second, so this is about a minute.
constexpr std::uint64_t kMostClockWords = std::uint64_t{1} << 36;
// How often the verifications with windows run each step: 2 tiles x 2 calls x 2 modes (in place or not).
constexpr std::uint64_t kVisits = 8;

Error beyond(std::string_view what, std::uint64_t had, std::uint64_t most) {
  return {.code = ErrorCode::kUnsupported,
          .message = fmt::format("the plan is too large: {} {}, at most {} are supported", had, what, most)};
}

Status at_most(std::string_view what, std::uint64_t had, std::uint64_t most) {
  if (had > most) return beyond(what, had, most);
  return {};
}

struct Sizes {
  std::uint64_t channels = 0;
  std::uint64_t steps = 0;
  std::uint64_t messages = 0;
  std::uint64_t waits = 0;
  std::uint64_t connections = 0;
};

Status count(const Plan& plan, Sizes& sizes) {
  std::uint64_t ends = 0;
  std::uint64_t listed = 0;
  for (const RankPlan& rank : plan.ranks) {
    TUTTI_TRY(at_most("channels of a rank", rank.channels.size(), PlanLimits::kChannels));
    sizes.channels += rank.channels.size();
    for (const Channel& channel : rank.channels) {
      sizes.waits += channel.after.size();
      ends += channel.ports.size();
      for (const Step& step : channel.steps) {
        const bool local = step.source.space != Space::kNone;
        TUTTI_TRY(at_most("operands of a step", step.receive_count + (local ? 1u : 0u), PlanLimits::kOperands));
        TUTTI_TRY(at_most("sends of a step", step.send_count, PlanLimits::kOperands));
        // The verifier handles each equation of a run like a step, and each value of a message like a message. So a
        // step with a run of n chunks counts as n steps, and each of its messages as n messages.
        sizes.steps += step.run;
        listed += (std::uint64_t{step.receive_count} + step.send_count) * step.run;
      }
    }
  }
  sizes.messages = (listed + 1) / 2;
  sizes.connections = (ends + 1) / 2;
  return {};
}

Status check_chunks(const PlanShape& shape) {
  TUTTI_TRY(at_most("chunks of a block", shape.chunks, kMostChunks));
  TUTTI_TRY(at_most("chunks of scratch", shape.scratch_chunks, kMostChunks));
  std::uint64_t chunks = 0;
  for (std::uint32_t rank = 0; rank < shape.collective.ranks; ++rank) {
    const std::uint64_t blocks =
        std::uint64_t{input_blocks(shape.collective, rank).count} + output_blocks(shape.collective, rank).count;
    chunks += blocks * shape.chunks + shape.scratch_chunks;
  }
  return at_most("chunks of all ranks", chunks, kMostChunks);
}

// Checks the memory and time of the vector clocks (plan/verify/races.h) in the verifications with windows. There
// is one clock for each channel, two for each rank, and one for each step while a message, a credit or a wait still
// needs its clock. Each clock has one entry per channel of all ranks.
Status check_clocks(const Plan& plan, const Sizes& sizes) {
  const std::uint64_t under_way =
      std::min(kVisits * sizes.steps, 2 * sizes.connections * plan.shape.slots + 2 * sizes.waits);
  const std::uint64_t clocks = sizes.channels + 2 * plan.ranks.size() + under_way;
  const std::uint64_t bytes = clocks * sizes.channels * sizeof(std::uint32_t);
  TUTTI_TRY(at_most("MiB of vector clocks", bytes >> 20, kMostClockBytes >> 20));
  const std::uint64_t joins = sizes.steps + 2 * sizes.messages + sizes.waits;
  return at_most("million steps of a proof", kVisits * joins * sizes.channels / 1'000'000, kMostClockWords / 1'000'000);
}

}  // namespace

Status check_limits(const Plan& plan) {
  const PlanShape& shape = plan.shape;
  TUTTI_TRY(at_most("ranks", std::max<std::uint64_t>(plan.ranks.size(), shape.collective.ranks), PlanLimits::kRanks));
  TUTTI_TRY(at_most("slots", shape.slots, PlanLimits::kSlots));
  TUTTI_TRY(at_most("lanes", shape.lanes, PlanLimits::kLanes));
  TUTTI_TRY(check_chunks(shape));
  Sizes sizes;
  TUTTI_TRY(count(plan, sizes));
  TUTTI_TRY(at_most("steps", sizes.steps, PlanLimits::kSteps));
  TUTTI_TRY(at_most("messages of a tile", sizes.messages, PlanLimits::kMessages));
  TUTTI_TRY(at_most("waits", sizes.waits, PlanLimits::kMessages));
  return check_clocks(plan, sizes);
}

}  // namespace tutti

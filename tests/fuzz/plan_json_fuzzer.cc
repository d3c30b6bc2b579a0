// Fuzzes plans in JSON files (plan/formats/json.h). Errors must have messages, a parsed plan must be the same after
// it was written and read again, and the verifier must accept any plan as input.
#include "plan/formats/json.h"
#include "plan/verify/verify.h"
#include "support.h"

namespace {

using namespace tutti;
using fuzz::demand;

// limit for plans that are verified, because the time of the verifier grows faster than the plan
constexpr std::size_t kMostSteps = 200;
constexpr std::uint32_t kMostRanks = 16;
constexpr std::uint32_t kMostChunks = 64;

bool is_small(const Plan& plan) {
  std::size_t steps = 0;
  for (const RankPlan& rank : plan.ranks) {
    for (const Channel& channel : rank.channels) steps += channel.steps.size();
  }
  return steps <= kMostSteps && plan.ranks.size() <= kMostRanks && plan.shape.chunks <= kMostChunks &&
         plan.shape.scratch_chunks <= kMostChunks;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto read = parse_plan({reinterpret_cast<const char*>(data), size});
  if (!read) {
    demand(!read.error().message.empty(), "an error has a message");
    demand(read.error().code == ErrorCode::kInvalidPlan || read.error().code == ErrorCode::kUnsupported, "known codes");
    return 0;
  }
  const auto again = parse_plan(to_json(*read));
  demand(again.ok(), "written text can be read");
  demand(again->plan == read->plan && again->name == read->name && again->comment == read->comment,
         "the plan read back is the same");
  if (!is_small(read->plan)) return 0;
  const auto proved = verify(read->plan);
  if (!proved) demand(!proved.error().message.empty(), "an error has a message and a known code");
  demand(verify(again->plan).ok() == proved.ok(), "both plans are accepted or refused");
  return 0;
}

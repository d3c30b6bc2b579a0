// A round of set-up in which every rank sends its result or its error.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "job/job_context.h"

namespace tutti {
namespace {

// The error of a rank that has lost another rank in a step (kPeerLost), has waited for it in vain (kTimeout), or has
// ended the wait early (kAborted, set_up_has_failed()), after a round that has failed with the error `round`.
//
// A round learns of a rank that has ended or failed before another rank can end because of that, so its error names the
// cause. But if it only reports that time is over, it does not know which of the silent ranks is late, and which ones
// wait for it. The step does.
Error after_failed_round(const Error& round, const Error& step) {
  const bool early = step.code == ErrorCode::kAborted;
  if (round.code == ErrorCode::kTimeout && step.rank >= 0) {
    if (!early) return step;
    return {round.code, round.scope, step.rank,
            fmt::format("{}; this rank waited for rank {}", round.message, step.rank)};
  }
  return early || round.rank >= 0 || step.rank < 0 || round.code == ErrorCode::kAborted ? round : step;
}

}  // namespace

// Each blob starts with '+' (success), '!' (this rank has a fault), or "?N|" (this rank has lost rank N, or has waited
// for it in vain). After this mark follows the text of the result or of the error.
Result<std::vector<std::string>> gather_or_fail(const Gather& gather, const Result<std::string>& result) {
  const bool lost_another =
      !result && (result.error().code == ErrorCode::kTimeout || result.error().code == ErrorCode::kPeerLost ||
                  result.error().code == ErrorCode::kAborted);
  std::string own = result ? "+" : lost_another ? fmt::format("?{}|", result.error().rank) : "!";
  auto blobs = gather(own + (result ? *result : result.error().message.substr(0, 1024)));
  if (!result && !lost_another) return result.error();
  if (!blobs) return lost_another ? after_failed_round(blobs.error(), result.error()) : blobs.error();
  // The fault of a rank has priority over the reports of the ranks that missed it.
  for (const char mark : {'!', '?'}) {
    if (mark == '?' && !result) return result.error();
    for (std::size_t rank = 0; rank < blobs->size(); ++rank) {
      const std::string& blob = (*blobs)[rank];
      if (!blob.starts_with(mark)) continue;
      const std::size_t words = mark == '!' ? 1 : blob.find('|') + 1;
      const std::int64_t culprit = mark == '!' ? static_cast<std::int64_t>(rank) : std::atoll(blob.c_str() + 1);
      const bool known = culprit >= 0 && culprit < static_cast<std::int64_t>(blobs->size());
      return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, known ? static_cast<std::int32_t>(culprit) : -1,
                   fmt::format("set-up failed on rank {}: {}", rank, blob.substr(words))};
    }
  }
  for (std::string& blob : *blobs) blob.erase(0, std::min<std::size_t>(blob.size(), 1));
  return blobs;
}

}  // namespace tutti

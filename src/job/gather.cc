// A round of set-up in which every rank sends its result or its error.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "job/job_context.h"

namespace tutti {
namespace {

// The error of a rank whose step has failed with the error `step` because of another rank, after a round that has
// failed with the error `round`. The step has lost the other rank (kPeerLost), has waited for it in vain (kTimeout), or
// has ended the wait early because the set-up has failed (kAborted, see gather_or_fail()).
//
// If the round failed because a rank has ended or failed, its error names that rank, which is the cause. But if the
// round timed out, its error does not show which of the silent ranks is late, and which ones only wait for that rank.
// The error of the step shows it.
Error after_failed_round(const Error& round, const Error& step) {
  const bool over = round.code == ErrorCode::kTimeout;
  const bool names_cause = !over && (round.rank >= 0 || round.code == ErrorCode::kAborted);
  if (names_cause || step.rank < 0) return round;
  if (step.code != ErrorCode::kAborted) {
    return {step.code, step.scope, step.rank, fmt::format("{}; {}", step.message, round.message)};
  }
  if (!over) return round;
  return {round.code, round.scope, step.rank,
          fmt::format("{}; this rank waited for rank {}", round.message, step.rank)};
}

// Whether an error with this code means that this rank has no fault: it has lost another rank, has waited for one in
// vain, or has ended its wait because the set-up has failed.
bool is_about_another(ErrorCode code) {
  return code == ErrorCode::kTimeout || code == ErrorCode::kPeerLost || code == ErrorCode::kAborted;
}

}  // namespace

// Each blob starts with '+' (success), '!' (this rank has a fault), or "?N|" (this rank has lost rank N, or has waited
// for it in vain or until the set-up failed; N is -1 if its error names no rank). After this mark follows the text of
// the result or of the error.
Result<std::vector<std::string>> gather_or_fail(const Gather& gather, const Result<std::string>& result) {
  const bool lost_another = !result && is_about_another(result.error().code);
  std::string own = result ? "+" : lost_another ? fmt::format("?{}|", result.error().rank) : "!";
  auto blobs = gather(own + (result ? *result : result.error().message.substr(0, 1024)));
  if (!result && !lost_another) return result.error();
  if (!blobs) return lost_another ? after_failed_round(blobs.error(), result.error()) : blobs.error();
  // The fault of a rank has priority over the reports of ranks that have lost a rank or waited for one in vain.
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

Result<std::vector<std::string>> gather_or_fail(const Gather& gather, const Result<std::string>& result,
                                                std::uint32_t rank) {
  if (result.ok() || result.error().rank < 0 || result.error().rank == static_cast<std::int32_t>(rank) ||
      is_about_another(result.error().code))
    return gather_or_fail(gather, result);
  Error lost = result.error();
  lost.code = ErrorCode::kPeerLost;
  return gather_or_fail(gather, lost);
}

}  // namespace tutti
